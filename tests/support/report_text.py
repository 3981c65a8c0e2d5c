"""A written report read back: REPORT.md with its appendices, as if they were one file."""

from pathlib import Path

from kveval.report.files import APPENDICES, MAIN


def whole_report(folder: Path) -> str:
    """Return the text of the report in `folder`; links to figures are relative to it."""
    texts = [
        (folder / name).read_text(encoding="utf-8") for name in (MAIN, *APPENDICES)
    ]
    return "\n".join(text.replace("](../", "](") for text in texts)
