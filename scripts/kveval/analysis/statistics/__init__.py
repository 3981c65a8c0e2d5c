"""From runs to effects and verdicts: pairing, level selection, intervals, multiplicity, averages over models."""
