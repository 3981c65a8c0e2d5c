"""The words of the remarks on existing results, by their codes: the column `remarks` of a sheet has them.

Of two values that do not agree, `declared` is that of the name or of what was asked for, `effective` what ran.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kveval.host.findings import Finding

Facts = Mapping[str, Any]
# A text with places for facts, or a function of them.
_Template = str | Callable[[Facts], str]


def remark(code: str, **facts: Any) -> Finding:
    """Return a remark on a result; `code`: one that has words."""
    assert code in _WORDS, f"no words for {code}"
    return Finding(code, "note", facts)


def sentence(finding: Finding) -> str:
    """Return a remark in words. Raises KeyError for a code without words."""
    words = _WORDS[finding.code]
    if callable(words):
        return words(finding.facts)
    return words.format_map(finding.facts)


def _several_models(facts: Facts) -> str:
    return f"arguments and report name several models: {', '.join(facts['models'])}"


def _unlisted_model(facts: Facts) -> str:
    entries = " and ".join(facts["entries"]) or "not in models.yaml"
    return f"the model that ran, {facts['model']}, is {entries}"


def _streams_of_name(facts: Facts) -> str:
    levels = ", ".join(map(str, facts["effective"]))
    return f"the name says {facts['declared']} streams, {levels} ran"


def _streams_of_arguments(facts: Facts) -> str:
    levels = ", ".join(map(str, facts["effective"]))
    return f"the arguments say {facts['declared']} streams, {levels} ran"


def _configured_alike(facts: Facts) -> str:
    cells = " and ".join(facts["cells"])
    return f"configured like {cells}: a difference between them is noise (A/A)"


def _no_common_level(facts: Facts) -> str:
    own, others = (
        ", ".join(map(str, facts[name])) for name in ("levels", "other_levels")
    )
    return f"it shares no level ({own}) with the cell's other runs ({others}), and differs in more than levels"


def _several_kinds(facts: Facts) -> str:
    kinds = "; ".join(
        f"{name} {' and '.join(texts)}" for name, texts in facts["kinds"].items()
    )
    return f"the cell has results of {kinds}: `use` yes for one of them, or a scenario of its own for each"


_WORDS: Mapping[str, _Template] = {
    # Its name and its cell.
    "no_form": "its name has no documented form, so nothing is taken from it",
    "unknown_arm": "the arm {arm!r} is not in scenarios.yaml",
    "model_untold": "nothing says which model ran",
    "unknown_model": "the model {model!r} is not in models.yaml",
    "several_models": _several_models,
    "unlisted_model": _unlisted_model,
    "other_model": "the name says {declared}, {effective} ran",
    "no_connector": "no KV connector among the arguments: it ran without a CPU tier",
    "tier_unknown": "nothing says the size of its CPU tier",
    "arguments_unknown": "{cpu_blocks} cpu_blocks as declared; its arguments are not known",
    "arguments_size_none": "{cpu_blocks} cpu_blocks as declared; the arguments do not size it",
    "buffer": "{cpu_blocks} blocks in host memory ({setting}) are a buffer before its files",
    "other_size": "{declared} cpu_blocks declared, {effective} effective ({setting})",
    # What else does not agree.
    "other_run_id": "its Run ID is {run_id}",
    "streams_of_name": _streams_of_name,
    "streams_of_arguments": _streams_of_arguments,
    "other_replicas": "the name says {declared} replicas, the arguments {effective}",
    "other_arm": "the name says arm {declared}, the arguments {effective}",
    "other_load": "{key} {declared} was asked for, the report has {effective}",
    "no_utilization": "GPU Memory Utilization {argument!r} is not a number",
    "other_utilization": (
        "gpu_memory_utilization {effective:g} ran, the catalogue has {declared:g} for this scenario"
    ),
    "configured_alike": _configured_alike,
    # Settings without effect, and files that tell less than they could.
    "blocks_ignored": "LMCache ignores num_cpu_blocks ({num_cpu_blocks})",
    "no_config_file": "LMCACHE_CONFIG_FILE may say otherwise; it is not among the results",
    "no_setting": "{file}, line {line}: no `key: value`",
    "no_words": "{file}: {key} cannot be split into words ({error})",
    "file_unreadable": "{file} cannot be read ({error})",
    "lfs_pointer": "{file}: a Git LFS pointer, not the file: git lfs pull",
    "no_zone": "{program} writes its date without a zone, to the second: it is read as UTC",
    "conversations": "conversations of {turns} turns, {streams} at once",
    "report_unusable": "{error}",
    "report_left_out": "{report} is left out: {used} was read",
    # Why a result is not used, or has to be decided on.
    "copy": "the same measurement as {report}: equal levels at equal times",
    "no_common_level": _no_common_level,
    "several_kinds": _several_kinds,
}
