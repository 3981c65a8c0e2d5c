"""The way from runs to effects and verdicts: pairs, level selection, intervals, multiplicity, averages over models."""
