"""Remarks on existing results, which the column `remarks` of a sheet has.

Of two values that do not agree, `declared` is that of the name or of what was asked for, `effective` what ran.
"""

from typing import Any

from kveval.host.findings import Remark


def remark(code: str, words: str, /, **facts: Any) -> Remark:
    """Return a remark on a result; `words`: a template for its facts."""
    return Remark(code, "note", facts, words)
