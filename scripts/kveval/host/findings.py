"""Findings as data, and the table of those before a measurement: whether it can work here, and the fix."""

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import Formatter
from typing import Any, Literal

Level = Literal["ok", "warning", "error"]
_MARKS: dict[Level, str] = {"ok": "ok", "warning": "warning", "error": "ERROR"}


@dataclass(frozen=True)
class Finding:
    """Something that was found, as data: code and severity decide, and words are made of it where it is shown.

    Attributes:
        code: one of those that the words are listed by.
        severity: how grave it is, a word of those who found it.
        facts: the values in its words; the names of quantities end in their units.
    """

    code: str
    severity: str
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)


class _Template(Formatter):
    """Templates of `str.format`, whose fields may be lists: joined by their format, else by commas."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return a value as text."""
        if isinstance(value, list | tuple):
            return (format_spec or ", ").join(map(str, value))
        return str(super().format_field(value, format_spec))


_TEMPLATE = _Template()


def fill(template: str, facts: Mapping[str, Any]) -> str:
    """Return a template of `str.format` with facts in it; a list's format is what stands between its values."""
    return _TEMPLATE.vformat(template, (), facts)


@dataclass(frozen=True)
class Remark(Finding):
    """A finding with its words.

    Attributes:
        words: a constant template for `fill`. What comes from outside is a fact, and not in it.
        remedy: likewise what is to be changed, "" for nothing.
    """

    words: str = ""
    remedy: str = ""

    @property
    def what(self) -> str:
        """The words with the facts in them."""
        return fill(self.words, self.facts)

    @property
    def fix(self) -> str:
        """The remedy in words, "" for none."""
        return fill(self.remedy, self.facts)

    def __str__(self) -> str:
        return "; ".join(filter(None, (self.what, self.fix)))


@dataclass(frozen=True)
class FindingRow:
    """The result of one check, as a row of the table of `kveval doctor` and `kveval verify`.

    Attributes:
        level: error: the campaign cannot run; warning: it can, with a reservation; ok.
        check: what was checked, in a few words.
        what: what was found, with figures.
        fix: a command, or the campaign's key to change; empty if nothing is to be done.
        code: a stable name for the kind of finding, where level and check do not identify it.
        facts: the values in `what`.
    """

    level: Level
    check: str
    what: str
    fix: str = ""
    code: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False)


def ok(check: str, what: str, code: str = "", **facts: Any) -> FindingRow:
    """Return the row of a check that needs no action."""
    return FindingRow("ok", check, what, code=code, facts=facts)


def warning(
    check: str, what: str, fix: str, code: str = "", **facts: Any
) -> FindingRow:
    """Return the row of a check that does not stop a campaign."""
    return FindingRow("warning", check, what, fix, code, facts)


def error(check: str, what: str, fix: str, code: str = "", **facts: Any) -> FindingRow:
    """Return the row of a check that stops a campaign."""
    return FindingRow("error", check, what, fix, code, facts)


def worst(findings: Sequence[FindingRow]) -> Level:
    """Return the most severe level of the findings; ok if there are none."""
    levels = {finding.level for finding in findings}
    return next((level for level in ("error", "warning") if level in levels), "ok")


def table(findings: Sequence[FindingRow], width: int = 120) -> str:
    """Return the findings as a table of text in the order given, and a last line that counts them.

    What was found is wrapped at `width` characters; a fix is not, so that a command can be copied.
    """
    marks = max(map(len, _MARKS.values()))
    checks = max((len(finding.check) for finding in findings), default=0)
    indent = marks + checks + 4
    lines = []
    for finding in findings:
        text_lines = textwrap.wrap(
            finding.what,
            max(width - indent, 40),
            break_long_words=False,
            break_on_hyphens=False,
        )
        first, *rest = text_lines or [""]
        lines.append(
            f"{_MARKS[finding.level]:<{marks}}  {finding.check:<{checks}}  {first}"
        )
        lines += [" " * indent + line for line in rest]
        lines += [f"{' ' * indent}fix: {finding.fix}"] if finding.fix else []
    counts = Counter(finding.level for finding in findings)
    words = [
        pluralize(counts["error"], "error"),
        pluralize(counts["warning"], "warning"),
        f"{counts['ok']} ok",
    ]
    return "\n".join([*lines, "", ", ".join(words)])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    form = "  ".join(f"{{:<{width}}}" for width in widths)
    return [form.format(*row).rstrip() for row in rows]


def pluralize(count: int, word: str) -> str:
    """Return a count with its noun: `1 error`, `2 errors`."""
    return f"{count} {word}{'' if count == 1 else 's'}"
