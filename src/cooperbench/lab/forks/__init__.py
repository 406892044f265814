"""Forks: a recorded pair is replayed up to a point and goes on from there, with one intervention.

`recording` reads a recorded pair, `point` finds how much of it comes before a fork point, `gate`
keeps replayed agents in the recorded order, `start` begins attempts at pairs with a replay,
`intervention` changes one thing at the fork point, and `study` runs forks of all kinds.
"""
