"""Predictions and prices: hits and gains that a tier's size lets expect, where hits are lost, what tokens cost.

Imports `verdict`, `tables`, `curve`, and `store` and above.
"""
