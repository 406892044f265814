"""Pairs that are worked on elsewhere: by jobs of an engine (Slurm, Ray), each with one or a few pairs.

An engine starts jobs and tells what becomes of them; it knows nothing of pairs. `driver` knows what is left to do, and
`worker` is what a job does: the same as `--executor local` does here. A job tells the driver by events (JSON objects)
what happens; where nodes and driver share no disk, files go with orders and come back with events.
"""
