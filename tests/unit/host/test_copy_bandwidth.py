"""The probe of copies: its rates, and a host whose Python has no torch."""

import sys
from pathlib import Path

from kveval.host.copy_bandwidth import best_gb_s, probe


def test_the_best_of_at_least_three_copies_counts():
    copies = []
    rate = best_gb_s(lambda: copies.append(bytes(1000)), 1000, seconds=0.0)
    # One more, which touches the pages.
    assert len(copies) == 4
    assert rate > 0


def test_what_cannot_copy_tells_nothing(tmp_path):
    assert probe(tmp_path / "no-python") == {}
    stub = tmp_path / "python"
    stub.write_text(f"#!{sys.executable}\nprint('no JSON')\n")
    stub.chmod(0o755)
    assert probe(Path(stub)) == {}
