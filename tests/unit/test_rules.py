"""Rules can be read without opening the library: of a run they ask one thing, its record."""

import re

import pytest
from tests.support.paths import REPOSITORY, RULE_FILES

RULES = [
    file
    for file in [REPOSITORY / "Snakefile", *RULE_FILES]
    # The functions that rules call.
    if file.name not in ("common.smk", "inputs.smk")
]
FIELD = re.compile(r" wildcards: run_of\(wildcards(, PILOT)?\)\.\w+(\.\w+)?[,)\n]")


@pytest.mark.parametrize("file", RULES, ids=lambda file: file.name)
def test_a_lambda_in_a_rule_names_a_field_of_a_run_and_does_nothing_else(file) -> None:
    for rest in file.read_text(encoding="utf-8").split("lambda")[1:]:
        assert FIELD.match(rest), f"lambda{rest[:80]}"
