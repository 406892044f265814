"""`cooperbench report --paper FOLDER`: tables and figures for a paper.

`tables` makes the tables from the analysis that the terminal and the page show, `latex` and
`markdown` write them, `figures` draws, and `folder` puts everything into a folder.
"""
