"""Settings that differ between two sides reach the first screen of a report."""

import pytest
from tests.unit.report.test_report import first_screen, measured, plan
from tests.unit.verdict.test_comparability import RECORD, campaign


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("setting/--enforce-eager", "true", "better"),
        ("variable/VLLM_ATTENTION_BACKEND", "TORCH_SDPA", "better"),
        ("machine/cluster", "8d5c2f3e-0000-4000-8000-000000000002", "better"),
        ("batch/--max-num-seqs", "2", "not comparable"),
        ("prefix_caching/--no-enable-prefix-caching", "true", "not comparable"),
        ("weights/--quantization", "fp8", "not comparable"),
        ("ranks/replicas", "2", "not comparable"),
    ],
)
def test_a_setting_of_one_side_alone_is_named(key: str, value: str, said: str) -> None:
    levels = campaign(RECORD, {**RECORD, key: value})
    screen = first_screen(plan(), measured(levels))
    assert said in screen.lower()
    assert key.partition("/")[2] in screen
