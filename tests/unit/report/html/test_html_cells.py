import pytest

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
    ("text", "value"),
    [
        ("1,190 (1,150 to 1,240)", 1190),
        ("+13.3 % (+10.6 to +16.1)", 13.3),
        ("-0.4 % (-1 to more than +1,000)", -0.4),
        ("at least +500 % (+400 to +600)", 500),
        ("8.1 times as much (+710 %)", 8.1),
        ("< 0.001", 0.001),
        ("400 (or 200) (edge)", 400),
        ("21,400 / 40,600", 21400),
        ("**5**", 5),
    ],
)
def test_a_cell_of_a_column_of_numbers_is_sorted_by_its_first_number(
    text: str, value: float
) -> None:
    assert float(sort_key(text, number=True)) == value


@pytest.mark.parametrize("text", ["n/a", "", "not measured"])
def test_what_is_no_number_has_no_key_and_comes_last(text: str) -> None:
    assert sort_key(text, number=True) == ""


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


def test_a_cell_says_how_it_is_set() -> None:
    assert (
        cell_attributes(StyledText("**better**", "better"), number=False)
        == ' class="better"'
    )
    assert cell_attributes("[no-offload](#runs)", number=False) == ' class="short"'
    assert cell_attributes("words " * 9, number=False) == ' class="prose"'
    assert cell_attributes("482", number=True) == ' class="number"'
    assert cell_attributes("1,190", number=True) == ' class="number" data-sort="1190"'
