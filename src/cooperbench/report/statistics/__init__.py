"""Estimates with honest error bars, from the standard library alone; tests hold them against scipy and statsmodels."""
