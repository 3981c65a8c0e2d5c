import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveval.report.data import numbers as numerals
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
    ("text", "number"),
    [
        (numerals.with_interval(1191.4, 1150.0, 1240.0), 1190),
        (numerals.effect(13.26, 10.6, 16.08), 13.3),
        (numerals.effect(-0.4, -1.0, 3000.0), 0.0),
        (numerals.effect(-8.4, -9.0, -8.0), -8.4),
        (numerals.factor(310.6, 299.2, 322.4), 310),
        (numerals.points(-4.62, -5.9, -3.4), -4.6),
        (numerals.rounded(4.4e-19, 22), 0.0001),
        (numerals.significant(0.0), 0.0),
        ("at least +5 % (+2 to +9)", 5.0),
        ("[195](measurements/beef/run-1/)", 195),
        ("22.0 GiB (10,000 blocks)", 22.0),
        ("10 of 12", 10),
        ("4 (or 8) (edge)", 4),
        ("< 0.001", 0.001),
    ],
)
def test_a_number_is_sorted_by_its_first_digits(text: str, number: float) -> None:
    assert float(sort_key(text, number=True)) == pytest.approx(number)


@pytest.mark.parametrize("text", [numerals.MISSING, "", "never", "-", "none met"])
def test_what_is_not_known_has_no_key_and_comes_last(text: str) -> None:
    assert sort_key(text, number=True) == ""


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_the_order_of_keys_is_that_of_the_numbers(less: float, more: float) -> None:
    less, more = sorted((less, more))
    keys = [sort_key(numerals.rounded(number, 3), True) for number in (less, more)]
    assert float(keys[0]) <= float(keys[1])


def test_texts_are_sorted_with_their_numbers_in_order_and_without_marks() -> None:
    arms = [
        "[native-offload 10K](#a)",
        "no-offload",
        "native-offload 5K",
        "**Native-offload 500**",
    ]
    in_order = [arms[2], arms[0], arms[3], arms[1]]
    assert sorted(arms, key=lambda arm: sort_key(arm, number=False)) == in_order


@pytest.mark.parametrize(
    ("text", "number", "attributes"),
    [
        ("**better** {.better}", False, ' class="better"'),
        ("[no-offload](#runs)", False, ' class="short"'),
        ("words " * 9, False, ' class="prose"'),
        ("482", True, ' class="number"'),
        ("1,190", True, ' class="number" data-sort="1190"'),
    ],
)
def test_a_cell_says_how_it_is_set(text: str, number: bool, attributes: str) -> None:
    assert cell_attributes(text, number) == attributes
