"""The steps of a verdict, which `analysis/verdict.py` puts one after the other, and averages over models.

Pairs of runs, runs that are left out, what is found of a comparison (`codes.py`), levels, estimates.
"""
