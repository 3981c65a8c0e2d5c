"""Checks of a finished document: what its sentences claim, how precise its numbers are, whether its parts exist.

Every function takes a `Document` and returns what it found, nothing if all is well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tests.support.markdown import Parts, numbers, parts_of, plain, without

from kveval.report.data.numbers import decimals_for
from kveval.tables.levels.outcomes import Outcome

# Never, whoever says it.
BANNED = re.compile(
    r"\b(confirm\w*|conclusive\w*|production[- ]ready)\b", re.IGNORECASE
)
# Equality, which only an equivalence test can show.
PARITY_WORDS = re.compile(
    r"\b(parity|identical\w*|indistinguishable|equivalen\w+|the same (?:throughput|performance|latency)"
    r"|(?:no|zero|negligible|without) (?:\w+ )?(?:impact|effect|overhead|difference|degradation))\b",
    re.IGNORECASE,
)
# Quantities and causes that a verdict may state and a description may not.
CLAIM_WORDS = re.compile(
    r"\b(all|every|always|never|none|zero|significant\w*|outperform\w*|degrad\w*|improve\w*|regress\w*|prov(?:e|es|en)"
    r"|because|due to|caus(?:e|es|ed)|leads? to|results? in|thanks to|therefore|driven by|explains?)\b",
    re.IGNORECASE,
)
_INTERVAL = re.compile(
    r"([+-]?\d[\d,]*(?:\.\d+)?)\s*(?:%|\w[\w/]*)?\s*\(([+-]?\d[\d,]*(?:\.\d+)?) to ([+-]?\d[\d,]*(?:\.\d+)?)\)"
)
_SHARE = re.compile(r"(\d+(?:\.\d+)?) % of (\d[\d,]*)\b")
_PERCENT = re.compile(r"([+-]?\d[\d,]*(?:\.\d+)?) ?%")
_RANGE_END = re.compile(r"\(([^()]*) to ([^()]*)\)")
_PRODUCT = re.compile(
    r"\b(\d+(?: ?[x\N{MULTIPLICATION SIGN}*] ?\d+)+) ?= ?(\d[\d,]*)\b"
)
_MOJIBAKE = re.compile(
    "\N{LATIN CAPITAL LETTER A WITH TILDE}[\x80-\xbf\u2013-\u2122]|\xe2\u20ac|\ufffd"
)
_FILE = re.compile(
    r"^[\w.@+-]+(?:/[\w.@+-]+)*\.(?:csv|md|png|svg|parquet|json|yaml|smk|py|sh|txt)$"
)
# Words in capitals stand for something in a path: measurements/NUMBER/run-N/.
_PLACEHOLDER = re.compile(r"[A-Z]{2,}|[*{}<>]|\b[A-Z]\b")


@dataclass(frozen=True)
class Percentage:
    """A percentage as the document shows it ("+13.3"), and the cells that it compares: numerator and denominator."""

    shown: str
    numerator: str
    denominator: str


@dataclass(frozen=True)
class Document:
    """A rendered document and what it was made from.

    `folder`: where it lies; relative links start there, other paths there or in `root`. `fixed`: texts without data
    (see `prose.fixed_fragments`; captions too). `answers`: cells of tables that are sentences, and are read as such.
    `verdicts`: sentence made from the table of verdicts -> the verdicts in it. `numbers`: numbers that may stand in
    sentences though no table has them, settings for instance. `percentages`: every percentage of the comparison.
    `counts`: noun -> how many there are ("cells" -> 9). `models`: names and ids.
    """

    text: str
    folder: Path
    fixed: Sequence[str] = ()
    answers: Sequence[str] = ()
    verdicts: Mapping[str, Collection[str]] = field(default_factory=dict)
    numbers: Collection[str] = ()
    percentages: Sequence[Percentage] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    models: Collection[str] = ()
    root: Path | None = None
    content: bytes | None = None

    @cached_property
    def parts(self) -> Parts:
        """The document taken apart."""
        return parts_of(self.text)

    @cached_property
    def open_sentences(self) -> list[str]:
        """Sentences without what is fixed: what is left was put in from data, or written by hand."""
        sentences = (*self.parts.sentences, *map(plain, self.answers))
        return [left for left in without(sentences, self.fixed) if left]

    @cached_property
    def data_cells(self) -> list[str]:
        """Cells of tables that are no sentences."""
        answers = set(map(plain, self.answers))
        return [cell for cell in self.parts.cells if cell not in answers]

    @cached_property
    def claims(self) -> list[str]:
        """Open sentences without those made from verdicts."""
        return [
            left for left in without(self.open_sentences, list(self.verdicts)) if left
        ]


DocumentCheck = Callable[[Document], list[Outcome]]


def judge_document(document: Document) -> list[Outcome]:
    """Run every check on a document."""
    return [
        outcome
        for checks in DOCUMENT_RULES.values()
        for check in checks
        for outcome in check(document)
    ]


def banned_words(document: Document) -> list[Outcome]:
    """Nothing is confirmed, conclusive or production-ready, in fixed text or anywhere else."""
    return [
        Outcome(
            "banned_words",
            "fail",
            {"phrase": match[0]},
            "{phrase!r}: no measurement shows that",
            _short(sentence),
        )
        for sentence in (*document.parts.sentences, *document.parts.cells)
        if (match := BANNED.search(sentence))
    ]


def claim_words(document: Document) -> list[Outcome]:
    """Quantifiers and causes stand only in sentences made from the table of verdicts."""
    return [
        Outcome(
            "claim_words",
            "fail",
            {"phrase": match[0]},
            "{phrase!r} is not said by a verdict",
            _short(sentence),
        )
        for sentence in document.claims
        if (match := CLAIM_WORDS.search(sentence))
    ]


def numbers_in_prose(document: Document) -> list[Outcome]:
    """Each number in a sentence is that of a cell of a table, or one declared."""
    known = {
        number.lstrip("+-") for cell in document.data_cells for number in numbers(cell)
    }
    known |= {
        number.lstrip("+-")
        for text in document.numbers
        for number in (text, *numbers(text))
    }
    known |= {str(count) for count in document.counts.values()}
    return [
        Outcome(
            "numbers_in_prose",
            "fail",
            {"number": number},
            "{number} is in no table of the document",
            _short(sentence),
        )
        for sentence in document.open_sentences
        for number in numbers(sentence)
        if number.lstrip("+-") not in known
    ]


def parity_words(document: Document) -> list[Outcome]:
    """Equality is said only where the equivalence test passed: in a sentence made from rows with that verdict."""
    shown = [
        plain(sentence)
        for sentence, verdicts in document.verdicts.items()
        if "parity" in verdicts
    ]
    return [
        Outcome(
            "parity_words",
            "fail",
            {"phrase": match[0]},
            "{phrase!r}, but no equivalence was shown",
            _short(sentence),
        )
        for sentence, left in zip(
            document.open_sentences,
            without(document.open_sentences, shown),
            strict=True,
        )
        if (match := PARITY_WORDS.search(left))
    ]


def one_denominator(document: Document) -> list[Outcome]:
    """The percentages of a sentence refer to one and the same cell, and each to one that is on record."""
    references: dict[str, set[str]] = {}
    for entry in document.percentages:
        references.setdefault(_number(entry.shown), set()).add(entry.denominator)
    declared = {
        number
        for text in document.numbers
        for number in (_number(text), *map(_number, numbers(text)))
    }
    outcomes = []
    for sentence in document.open_sentences:
        shown = [
            _number(value) for value in _PERCENT.findall(_RANGE_END.sub("", sentence))
        ]
        unknown = [
            value
            for value in shown
            if value not in references and value.lstrip("+-") not in declared
        ]
        if unknown:
            outcomes.append(
                Outcome(
                    "one_denominator",
                    "fail",
                    {"percent": unknown[0]},
                    "{percent} % of what is not on record",
                    _short(sentence),
                )
            )
            continue
        sets = [references[value] for value in shown if value in references]
        if sets and not set.intersection(*sets):
            outcomes.append(
                Outcome(
                    "one_denominator",
                    "fail",
                    {"cells": sorted(set.union(*sets))},
                    "percentages of different cells: {cells}",
                    _short(sentence),
                )
            )
    return outcomes


def too_fine(document: Document) -> list[Outcome]:
    """No number has a digit finer than its interval, or a share one finer than a single case of its n."""
    outcomes = []
    for text in (*document.parts.sentences, *document.parts.cells):
        for value, low, high in _INTERVAL.findall(text):
            half = (_value(high) - _value(low)) / 2
            allowed = max(decimals_for(half), 0) if half > 0 else 0
            if half > 0 and max(map(_decimals, (value, low, high))) > allowed:
                words = "{value} ({low} to {high}) is known to {decimals} decimals"
                facts = {"value": value, "low": low, "high": high, "decimals": allowed}
                outcomes.append(Outcome("too_fine", "fail", facts, words, _short(text)))
        for share, count in _SHARE.findall(text):
            allowed = max(0, math.floor(math.log10(max(_value(count), 1) / 100)))
            if _decimals(share) > allowed:
                words = "{percent} % of {count}: one of them is {one_percent:.2g} %"
                one = 100 / _value(count)
                facts = {"percent": share, "count": count, "one_percent": one}
                outcomes.append(Outcome("too_fine", "fail", facts, words, _short(text)))
    return outcomes


def encoding(document: Document) -> list[Outcome]:
    """The file is UTF-8, and nothing in it was decoded as something else."""
    if document.content is not None:
        try:
            document.content.decode("utf-8")
        except UnicodeDecodeError as error:
            facts = {"byte": error.start}
            return [Outcome("encoding", "fail", facts, "not UTF-8 at byte {byte}")]
    match = _MOJIBAKE.search(document.text)
    if match is None:
        return []
    around = document.text[max(0, match.start() - 15) : match.end() + 15]
    words = "text decoded wrongly: {around!r}"
    return [Outcome("encoding", "fail", {"around": around}, words)]


def links_exist(document: Document) -> list[Outcome]:
    """Relative links and pictures lead to files that exist, paths in code as well."""
    missing = [
        target
        for target in document.parts.links
        if not re.match(r"[a-z][a-z0-9+.-]*:|#", target)
        and not (document.folder / target.partition("#")[0]).exists()
    ]
    places = [document.folder, *([] if document.root is None else [document.root])]
    missing += [
        path
        for path in document.parts.code
        if _FILE.match(path) and "/" in path and not _PLACEHOLDER.search(path)
        if not any((place / path).exists() for place in places)
    ]
    return [
        Outcome("links_exist", "fail", {"target": target}, "there is no {target}")
        for target in dict.fromkeys(missing)
    ]


def counts_add_up(document: Document) -> list[Outcome]:
    """Counts are those of the campaign, and products are right: 28 cells are 7 x 4."""
    outcomes = []
    for sentence in document.parts.sentences:
        for noun, count in document.counts.items():
            for part, whole in re.findall(
                rf"\b(?:(\d[\d,]*) of )?(\d[\d,]*) {re.escape(noun)}\b", sentence
            ):
                wrong = _value(part) > count if part else False
                # "3 of 9 cells" states the whole; "3 cells" alone may be a part.
                if wrong or (_value(whole) != count if part else _value(whole) > count):
                    outcomes.append(
                        Outcome(
                            "counts_add_up",
                            "fail",
                            {"count": count, "noun": noun},
                            "there are {count} {noun}",
                            _short(sentence),
                        )
                    )
        for factors, product in _PRODUCT.findall(sentence):
            if math.prod(
                int(factor) for factor in re.findall(r"\d+", factors)
            ) != _value(product):
                outcomes.append(
                    Outcome(
                        "counts_add_up",
                        "fail",
                        {"factors": factors, "product": product},
                        "{factors} is not {product}",
                        _short(sentence),
                    )
                )
    return outcomes


def models_known(document: Document) -> list[Outcome]:
    """Models are called by names or ids of the catalogue: one letter off is a model that does not exist."""
    families = {
        name.rpartition("/")[2].partition("-")[0]
        for name in document.models
        if "-" in name
    }
    known = set(document.models)
    outcomes = []
    for family in sorted(families):
        pattern = re.compile(
            rf"(?<![\w/.-])(?:[\w.-]+/)?{re.escape(family)}-\d[\w.-]*\w"
        )
        for text in (*document.parts.sentences, *document.parts.cells):
            for name in pattern.findall(text):
                stem = name.removesuffix("-miniature")
                if stem not in known and stem.rpartition("/")[2] not in known:
                    outcomes.append(
                        Outcome(
                            "models_known",
                            "fail",
                            {"model": name},
                            "no model {model} in the catalogue",
                            _short(text),
                        )
                    )
    return list(dict.fromkeys(outcomes))


DOCUMENT_RULES: Mapping[str, tuple[DocumentCheck, ...]] = {
    "R6": (one_denominator,),
    "R12": (parity_words,),
    "R18": (banned_words, claim_words, numbers_in_prose),
    "R21": (too_fine,),
    "R22": (encoding, links_exist, counts_add_up, models_known),
}
"""Rule -> the checks of a finished document that hold it; see kveval.verdict.verdict_tables.RULES."""


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."


def _number(text: str) -> str:
    return text.replace(",", "").replace("%", "").strip()


def _value(text: str) -> float:
    return float(_number(text)) if text else 0.0


def _decimals(text: str) -> int:
    return len(text.partition(".")[2])
