"""Pairs that are worked on elsewhere, by jobs of an engine: the same as `--executor local` does here.

Slurm and Ray run and judge pairs; Google Batch judges what agents of `--backend gcp` have handed in.

An engine starts jobs and tells what becomes of them; it knows nothing of pairs. A job tells the driver by events (JSON
objects) what happens; where nodes and driver share no disk, files go with orders and come back with events.
"""
