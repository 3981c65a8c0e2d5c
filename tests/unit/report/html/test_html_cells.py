import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import StyledText
from kveval.report.html.cells import cell_attributes, inline, sort_key


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("**no** `x|y`", "<strong>no</strong> <code>x|y</code>"),
        (
            "[195](measurements/beef/run-1/)",
            '<a href="measurements/beef/run-1/">195</a>',
        ),
        (
            "a < b & <script>alert(1)</script>",
            "a &lt; b &amp; &lt;script&gt;alert(1)&lt;/script&gt;",
        ),
        ("throughput_tok_s of 2 * 3", "throughput_tok_s of 2 * 3"),
        ('plain "words"', "plain &#34;words&#34;"),
    ],
)
def test_inline_markdown_becomes_html_and_html_does_not(text: str, html: str) -> None:
    assert str(inline(text)) == html


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (numerals.with_interval(1191.4, 1150.0, 1240.0), 1191.4),
        (numerals.effect(13.26, 10.6, 16.08), 13.26),
        (numerals.effect(-0.4, -1.0, 3000.0), -0.4),
        (numerals.points(-4.62, -5.9, -3.4), -4.62),
        (numerals.rounded(4.4e-19, 22), 4.4e-19),
        (numerals.mean_of([21_400.0, 40_600.0]), 31_000.0),
        (numerals.minutes(180.0), 180.0),
        (numerals.count(21_400), 21_400.0),
        (numerals.significant(0.0), 0.0),
    ],
)
def test_a_number_is_sorted_by_its_value_however_it_is_written(
    value: numerals.NumberText, number: float
) -> None:
    assert float(sort_key(value, number=True)) == pytest.approx(number)
    assert sort_key(value.with_text("text"), True) == sort_key(value, True)


@pytest.mark.parametrize(
    "text", [numerals.mean_of([]), numerals.significant(float("nan")), "", "never"]
)
def test_what_is_not_known_has_no_key_and_comes_last(text: str) -> None:
    assert sort_key(text, number=True) == ""


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_the_order_of_keys_is_that_of_the_numbers(one: float, other: float) -> None:
    keys = [
        float(sort_key(numerals.significant(number), number=True))
        for number in (one, other)
    ]
    assert (one < other) <= (keys[0] <= keys[1])


def test_texts_are_sorted_with_their_numbers_in_order_and_without_marks() -> None:
    arms = [
        "[native-offload 10K](#a)",
        "no-offload",
        "native-offload 5K",
        "**Native-offload 500**",
    ]
    said = [
        "native-offload 5K",
        "[native-offload 10K](#a)",
        "**Native-offload 500**",
        "no-offload",
    ]
    assert sorted(arms, key=lambda arm: sort_key(arm, number=False)) == said
    counts = ["10 of 12", "9 of 12", "4 (or 8) (edge)"]
    assert sorted(counts, key=lambda count: sort_key(count, number=True)) == [
        counts[2],
        counts[1],
        counts[0],
    ]


def test_a_cell_says_how_it_is_set() -> None:
    assert (
        cell_attributes(StyledText("**better**", "better"), number=False)
        == ' class="better"'
    )
    assert cell_attributes("[no-offload](#runs)", number=False) == ' class="short"'
    assert cell_attributes("words " * 9, number=False) == ' class="prose"'
    assert cell_attributes("482", number=True) == ' class="number"'
    count = numerals.count(1190)
    assert cell_attributes(count, number=True) == ' class="number" data-sort="1190"'
