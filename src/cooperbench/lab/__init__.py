"""Studies: runs of the same pairs that differ in the levels of factors.

A study makes the configurations of its arms and a plan of what it will test. The runner runs the
arms like any other runs; the report compares them (`report.studies`).
"""
