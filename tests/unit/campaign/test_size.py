"""One notation of a tier's size: GiB to three digits, with blocks beside."""

import pytest

from kveval.campaign.size import GIB, Size, size_range
from kveval.campaign.sizing import Budget, size_for_tokens


@pytest.mark.parametrize(
    ("size_bytes", "blocks", "text"),
    [
        (50 * GIB, 53_333, "50.0 GiB (53,333 blocks)"),
        (2048 * GIB, 2_000_000, "2,048 GiB (2,000,000 blocks)"),
        (163_840_000, 10_000, "0.153 GiB (10,000 blocks)"),
        (8_192_000, 500, "0.00763 GiB (500 blocks)"),
        (0, 0, "-"),
    ],
)
def test_a_size_reads_in_gib_with_its_blocks(
    size_bytes: int, blocks: int, text: str
) -> None:
    assert str(Size(blocks, size_bytes)) == text


def test_a_budget_has_the_size_that_was_asked_for() -> None:
    budget = Budget.from_blocks(1000, 500, block_size=128)
    assert budget.size == Size(500, 500 * 16 * 1000)


def test_tokens_need_whole_blocks() -> None:
    assert size_for_tokens(17, 1000) == Size(2, 32_000)


def test_one_size_of_several_models_reads_from_the_least_to_the_largest() -> None:
    sizes = [Size(10_000, 50 * GIB), Size(10_000, 24 * GIB), Size(10_000, 30 * GIB)]
    assert size_range(sizes) == "24.0 to 50.0 GiB (10,000 blocks)"
    assert size_range(sizes[:1]) == str(sizes[0])
