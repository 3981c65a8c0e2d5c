import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.markdown import fixed_fragments, numbers, parts_of, without

DOCUMENT = """# A title with 3 words

First sentence, of *two lines*
that belong together. Second `code 7` one.

- an item with [a link](figures/a.png)
- another

| a | b \\| c |
| --- | ---: |
| 1,190 | +13.3 % (+10.6 to +16.1) |

```
fenced 99 and [no link](gone.png)
```

> quoted <b>words</b>
"""


def test_a_document_is_taken_apart() -> None:
    parts = parts_of(DOCUMENT)
    assert parts.sentences == [
        "A title with 3 words",
        "First sentence, of two lines that belong together.",
        "Second one.",
        "an item with a link",
        "another",
        "quoted words",
    ]
    assert parts.cells == ["a", "b \\| c", "1,190", "+13.3 % (+10.6 to +16.1)"]
    assert parts.links == ["figures/a.png"]
    assert parts.code == ["code 7"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+13.3 % of 1,190 tok/s at p50", ["+13.3", "1,190"]),
        ("Qwen3-0.6B with 10K blocks, vLLM 0.32.0, TTFT", []),
        ("from -12.7 to 8, at 50.", ["-12.7", "8", "50"]),
        ("2026-01-01", []),
        ("cells 8-12 and 3x", []),
        ("(95 %)", ["95"]),
    ],
)
def test_numbers_are_those_that_stand_by_themselves(
    text: str, expected: list[str]
) -> None:
    assert numbers(text) == expected


def test_fixed_words_of_a_template_are_what_is_between_its_data() -> None:
    template = "# {{ title }}\n\n{% if x %}\nVerdicts are for a margin of {{ margin }} % in every level.\n{% endif %}\n"
    fragments = fixed_fragments(template)
    assert fragments == ["Verdicts are for a margin of", "% in every level."]
    rendered = "Verdicts are for a margin of 5 % in every level."
    (left,) = without([rendered], fragments)
    assert numbers(left) == ["5"]
    assert "every" not in left
    assert without(["every cell"], ["every"]) == ["every cell"], (
        "a single word could stand anywhere"
    )


@given(st.text(max_size=300))
def test_anything_can_be_taken_apart(text: str) -> None:
    parts = parts_of(text)
    assert all(parts.sentences)
    assert all("\n" not in sentence for sentence in (*parts.sentences, *parts.cells))
