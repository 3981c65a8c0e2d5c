"""The table of what was found before a measurement."""

from hypothesis import given
from hypothesis import strategies as st

from kveval.host.findings import FindingRow, error, ok, table, warning, worst

FINDINGS = st.lists(
    st.builds(
        FindingRow,
        st.sampled_from(["ok", "warning", "error"]),
        st.text("abc ", min_size=1, max_size=20),
        st.text("abc def-", max_size=300),
        st.text("kubectl apply -f", max_size=200),
    ),
    max_size=8,
)


def test_the_gravest_level_decides():
    assert worst([]) == "ok"
    assert worst([ok("a", "b")]) == "ok"
    assert worst([warning("a", "b", "c"), ok("a", "b")]) == "warning"
    assert (
        worst([warning("a", "b", "c"), error("a", "b", "c"), ok("a", "b")]) == "error"
    )


def test_the_table_shows_level_check_finding_and_fix():
    text = table(
        [
            ok("API server", "answers"),
            error("gateway", "there is none", "kubectl apply -f gateway.yaml"),
        ]
    )
    assert text.splitlines() == [
        "ok       API server  answers",
        "ERROR    gateway     there is none",
        "                     fix: kubectl apply -f gateway.yaml",
        "",
        "1 error, 0 warnings, 1 ok",
    ]


@given(FINDINGS)
def test_lines_keep_the_width_and_a_fix_stays_whole(findings):
    lines = table(findings, width=100).splitlines()
    for line in lines:
        assert len(line) <= 100 or line.strip().startswith("fix: ")
    for finding in findings:
        if finding.fix:
            assert any(line.endswith(f"fix: {finding.fix}") for line in lines)
    assert lines[-1].endswith(
        f"{sum(finding.level == 'ok' for finding in findings)} ok"
    )
