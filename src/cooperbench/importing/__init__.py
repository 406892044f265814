"""Import of runs that another program recorded: `cooperbench import-run`.

`import_run` tells the story: find the pairs in a folder (`source`), read their small files
(`source_files`), convert trajectories (`transcript`) and messages (`messages`), and write a run in
our records (`pair`). Everything that agents wrote is read in a worker process with limits.
"""
