"""Verdicts computed elsewhere: what is sent, what runs there, what comes back, and Google Batch as the place."""
