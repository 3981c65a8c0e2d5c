"""What a program's log says at its end."""

import re
from pathlib import Path

_NOISE = re.compile(r"^\(?\w* ?p?i?d?=?\d*\)?\s*(Traceback|File |\s)")


def last_words(log: Path) -> str:
    """Return ': ' and the last line of a log that names an error, or nothing."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    telling = [
        line.strip()
        for line in lines
        if re.search(r"(Error|Exception|error:|Killed|[Aa]ddress already in use)\b", line) and not _NOISE.match(line)
    ]
    return f": {telling[-1][:300]}" if telling else ""
