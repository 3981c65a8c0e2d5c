"""Effects and verdicts from runs: pairing, level selection, intervals, multiplicity, averages over models."""
