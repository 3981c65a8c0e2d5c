import json
from pathlib import Path
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from kveval.host.redaction import Redactor

SECRETS = st.text('hijk"\\\n\tüß€ %/=+', min_size=1, max_size=40)
OTHERS = st.text("ABC: ,", max_size=50)


@given(SECRETS.filter(str.strip), OTHERS, OTHERS)
def test_no_form_of_a_secret_stays_in_a_text(
    secret: str, before: str, after: str
) -> None:
    redactor = Redactor({"TOKEN": secret})
    for form in (
        secret,
        json.dumps(secret)[1:-1],
        repr(secret)[1:-1],
        quote(secret, safe=""),
    ):
        text = f"{before}<{form}>{after}"
        assert redactor.found_in(text) == ["TOKEN"]
        assert redactor.text(text) == f"{before}<[TOKEN]>{after}"


def test_only_what_is_set_counts() -> None:
    redactor = Redactor.of(
        ["HF_TOKEN", "EMPTY", "UNSET"], {"HF_TOKEN": "hf_abc", "EMPTY": ""}
    )
    assert redactor.secrets == {"HF_TOKEN": "hf_abc"}
    assert (
        redactor.text("Authorization: Bearer hf_abc")
        == "Authorization: Bearer [HF_TOKEN]"
    )
    assert "hf_abc" not in repr(redactor)


def test_the_text_files_of_a_folder_are_cleaned_and_others_left_alone(
    tmp_path: Path,
) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "server.log").write_bytes(b"\xff token hf_abc\n")
    (tmp_path / "raw" / "pcp.0").write_bytes(b"hf_abc")
    untouched = tmp_path / "raw" / "other.log"
    untouched.write_text("nothing\n")
    before = untouched.stat().st_mtime_ns
    Redactor({"HF_TOKEN": "hf_abc"}).folder(tmp_path)
    assert (tmp_path / "raw" / "server.log").read_bytes() == b"\xff token [HF_TOKEN]\n"
    assert (tmp_path / "raw" / "pcp.0").read_bytes() == b"hf_abc"
    assert untouched.stat().st_mtime_ns == before
    assert {path.name for path in (tmp_path / "raw").iterdir()} == {
        "server.log",
        "pcp.0",
        "other.log",
    }
