"""The tables of the documentation that are made from what the code knows, each below a comment that names it.

<!-- keys of NAME -->: the keys of a campaign (NAME: Campaign) or of an entry of config/schema.json's $defs
<!-- checks -->: what every rule demands, with the checks that hold it
<!-- exclusions -->: the reasons to leave a run out of a comparison
<!-- leaks -->: the codes of where a cell loses hits
<!-- stage sources -->: where the numbers of a waterfall's stages are from
<!-- findings -->: the codes of what is found of a comparison, by input and effect
<!-- conditions -->: what a difference in each kind of condition means
<!-- verdicts -->, <!-- warnings -->: what the first screen of a report may say
<!-- KV sizes -->: the bytes of the keys and values of every model of config/models.yaml, by dtype and ranks
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from tests.support.document_checks import DOCUMENT_RULES
from tests.support.paths import CONFIG

from kveval.configuration.loading import load_config
from kveval.plugins.curve.predicted.waterfall import LEAKS, SOURCES
from kveval.report.data.vocabulary import VERDICTS, WARNINGS
from kveval.verdict import comparability
from kveval.verdict.codes import CODES, INPUTS, SEVERITIES
from kveval.verdict.exclusions import REASONS
from kveval.verdict.verdict_tables import CHECKS, RULES
from kveval.workflow.command.kv_sizes import HEADINGS, kv_sizes

# Keys of which one stands in place of those that are required.
INSTEAD = {"extends", "import", "compare"}
MARKED = re.compile(
    r"^<!-- (keys of (\w+)|checks|exclusions|leaks|stage sources|findings|conditions|verdicts|warnings|KV sizes) -->"
    r"\n\n?((?:\|.*\n)*)",
    re.MULTILINE,
)


def with_tables(page: str) -> str:
    """A page with its marked tables as they have to be. KeyError for a name that the schema does not have."""
    return MARKED.sub(lambda at: f"<!-- {at[1]} -->\n\n{_made(at[1], at[2])}", page)


def _made(mark: str, entry: str | None) -> str:
    if entry:
        return _keys(entry)
    made = {
        "checks": _checks,
        "exclusions": _exclusions,
        "leaks": _leaks,
        "stage sources": _stage_sources,
        "findings": _findings,
        "conditions": _conditions,
        "verdicts": _verdicts,
        "warnings": _warnings,
        "KV sizes": _kv_sizes,
    }
    return made[mark]()


def _exclusions() -> str:
    rows = [
        (f"`{code}`", _cell(reason.meaning), "yes" if reason.failed else "")
        for code, reason in REASONS.items()
    ]
    return _table(("code", "the run is left out because", "failed"), rows)


def _leaks() -> str:
    rows = [(f"`{code}`", _cell(meaning)) for code, meaning in LEAKS.items()]
    return _table(("code", "the cell has it when"), rows)


def _stage_sources() -> str:
    rows = [(source, _cell(meaning)) for source, meaning in SOURCES.items()]
    return _table(("source", "the number is from"), rows)


def _findings() -> str:
    """A row for each input, and one for codes that are of none; the codes in the column of their effect."""
    rows = []
    for name in (*INPUTS, ""):
        codes = {
            severity: ", ".join(
                f"`{code}`"
                for code, meaning in CODES.items()
                if meaning[:2] == (name, severity)
            )
            for severity in SEVERITIES
        }
        rows.append((name or "no input", *codes.values()))
    return _table(("of", *SEVERITIES), rows)


def _conditions() -> str:
    """A row for each kind of condition, then one for each reason why conditions of these kinds do not matter."""
    rows = [
        (f"`{kind}`", rule.what, rule.severity, rule.because)
        for kind, rule in comparability.RULES.items()
    ]
    reasons: dict[str, list[str]] = {}
    for name, reason in comparability.EXEMPT.items():
        reasons.setdefault(reason, []).append(f"`{name}`")
    rows += [(", ".join(names), "", "sound", why) for why, names in reasons.items()]
    return _table(("kind", "conditions", "a difference", "because"), rows)


def _verdicts() -> str:
    rows = [(verdict, meaning) for verdict, meaning in VERDICTS.items()]
    return _table(("verdict", "what it says"), rows)


def _warnings() -> str:
    rows = [
        (f"`{code}`", _cell(warning.meaning), _cell(warning.remedy))
        for code, warning in WARNINGS.items()
    ]
    return _table(("code", "what is the case", "what removes it"), rows)


def _kv_sizes() -> str:
    config = load_config(CONFIG / "config.yaml", CONFIG)
    return _table(HEADINGS, [size.texts for size in kv_sizes(config.catalogue.models)])


def _keys(name: str) -> str:
    schema = json.loads((CONFIG / "schema.json").read_text(encoding="utf-8"))
    entry = schema if name == "Campaign" else schema["$defs"][name]
    needed = {
        *entry.get("required", ()),
        *(name for form in entry.get("anyOf", ()) for name in form["required"]),
    }
    rows = [
        (
            f"`{key}`",
            _default(value, key in needed - INSTEAD),
            _cell(value["description"]),
        )
        for key, value in entry["properties"].items()
    ]
    return _table(("key", "default", "meaning"), rows)


def _default(value: dict[str, Any], needed: bool) -> str:
    """What is taken when a key is left out, as far as it is one value."""
    default = value.get("default")
    if needed:
        return "required"
    return (
        ""
        if default in (None, "", [], {}) or isinstance(default, dict)
        else f"`{_cell(json.dumps(default))}`"
    )


def _checks() -> str:
    checks = [check for of in CHECKS.values() for check in of]
    rows = []
    for rule, demand in RULES.items():
        names = [check.name for check in checks if rule in check.rules]
        names += [function.__name__ for function in DOCUMENT_RULES.get(rule, ())]
        rows.append((rule, demand, ", ".join(f"`{name}`" for name in names)))
    return _table(("rule", "demand", "checks"), rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, *rows]
    written = [f"| {' | '.join(line)} |\n" for line in lines]
    return "".join([written[0], "|---" * len(head) + "|\n", *written[1:]])
