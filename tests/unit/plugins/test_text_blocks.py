"""Traces of logs with the text of prompts: the share that repeats, whatever a token is, and what cannot be counted."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kveval.plugins.traces.trace_making import MadeTrace, TraceOptions, make_trace

ENGLISH = "abcdefghijklmnopqrstuvwxyz "
CHINESE = [chr(0x4E00 + number) for number in range(2000)]


def written(letters: Sequence[str], characters: int, seed: int) -> str:
    return "".join(random.Random(seed).choices(letters, k=characters))


def asked(time: float, content: object, tokens: int, **more: object) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"ts": time, "messages": messages, "prompt_tokens": tokens, "completion_tokens": 5} | more  # fmt: skip


def made_of(folder: Path, rows: Sequence[object], **options: Any) -> MadeTrace:
    source, output = folder / "log", folder / "trace.jsonl"
    output.unlink(missing_ok=True)
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return make_trace(source, output, TraceOptions(**options), output)


def chat(
    letters: Sequence[str], per_token: float, shared: int, own: int, begin: int = 0
) -> list[dict[str, Any]]:
    """Ten requests with a beginning of `shared` tokens, and `own` tokens each."""
    system = written(letters, round(shared * per_token), 1)
    return [
        asked(
            begin + number,
            system + written(letters, round(own * per_token), begin + number + 2),
            shared + own,
        )
        for number in range(10)
    ]


@pytest.mark.parametrize("per_token", [0.7, 1.5, 4.0, 5.0, 9.0])
@pytest.mark.parametrize(("shared", "own"), [(1000, 100), (600, 400), (96, 4000)])
def test_the_logs_own_counts_say_how_long_a_token_is(tmp_path, per_token, shared, own):
    made = made_of(tmp_path, chat(ENGLISH, per_token, shared, own))
    assert made.hit_share == pytest.approx(0.9 * shared / (shared + own), abs=0.02)
    assert made.log.texts.characters_per_token == pytest.approx(per_token, rel=0.05)
    assert made.log.texts.unclear == 0


def test_each_prompt_has_its_own_length_of_a_token(tmp_path):
    rows = chat(CHINESE, 1.5, 1000, 100) + chat(ENGLISH, 5.0, 600, 400, begin=20)
    made = made_of(tmp_path, rows)
    assert made.hit_share == pytest.approx((9000 + 5400) / 21_000, abs=0.02)
    lines = made.file.read_text()
    random.Random(3).shuffle(rows)
    made_of(tmp_path, rows)
    assert made.file.read_text() == lines


def test_a_conversation_shares_what_was_said_before_in_any_language(tmp_path):
    system, rows = written(ENGLISH, 2500, 1), []
    text, tokens = system, 500
    for turn in range(8):
        text += written(CHINESE, 150, turn + 2)
        tokens += 100
        rows.append(asked(turn, text, tokens))
    made = made_of(tmp_path, rows)
    prompts = [600 + 100 * turn for turn in range(8)]
    assert made.hit_share == pytest.approx(sum(prompts[:-1]) / sum(prompts), abs=0.02)


def image(content: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + content}}  # fmt: skip


def question(number: int) -> dict[str, Any]:
    return {"type": "text", "text": written(ENGLISH, 400, number)}


def test_an_image_does_not_swallow_the_question_behind_it(tmp_path):
    base64 = written(ENGLISH.strip(), 90_000, 5)
    plain = [asked(number, written(ENGLISH, 400, number + 50), 100) for number in range(4)]  # fmt: skip
    same = [asked(9 + number, [image(base64), question(number)], 900) for number in range(8)]  # fmt: skip
    made = made_of(tmp_path, plain + same)
    assert made.log.texts.unclear == 8
    # 800 tokens of the image, seven times more.
    assert made.hit_share == pytest.approx(7 * 800 / 7600, abs=0.02)
    assert made.log.texts.least_share == 0
    assert made.log.texts.most_share == pytest.approx(7 * 900 / 7600, abs=0.02)
    before = [asked(9 + number, [question(number), image(base64)], 900) for number in range(8)]  # fmt: skip
    assert made_of(tmp_path, before).hit_share == 0
    other = [asked(9 + number, [image(f"{number}{base64}"), question(1)], 900) for number in range(8)]  # fmt: skip
    assert made_of(tmp_path, other).log.texts.most_share == 0


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_image", "image_url": "https://example.org/a.png"},
        {"type": "image", "source": {"type": "base64", "data": "iVBO" * 9000}},
        {"type": "input_audio", "input_audio": {"data": "UklG" * 9000}},
        {"inline_data": {"mime_type": "image/png", "data": "iVBO" * 9000}},
    ],
)
def test_parts_that_are_no_text_are_known_by_their_types(tmp_path, part):
    rows = [asked(number, [part, question(number)], 900) for number in range(8)]
    made = made_of(tmp_path, rows)
    assert made.log.texts.unclear == 8
    assert made.hit_share == pytest.approx(0.875 * 8 / 9, abs=0.02)


def test_text_that_the_log_cut_off_gives_a_range(tmp_path):
    rows = [asked(number, "Summarise: ", 5000) for number in range(4)]
    texts = made_of(tmp_path, rows).log.texts
    assert (texts.unclear, texts.least_share) == (4, 0)
    assert texts.most_share == pytest.approx(0.75, abs=0.01)
    # And so does more text than so many tokens can have.
    rows = [asked(number, "x" * 90_000 + str(number), 900) for number in range(4)]
    texts = made_of(tmp_path, rows).log.texts
    assert (texts.unclear, texts.least_share) == (4, 0)


def test_any_text_has_as_many_blocks_as_its_tokens(tmp_path):
    for tokens in (1, 15, 16, 17, 4096):
        for text in ("", "a", "\0", "[1, 2", "ä" * 5000, [1, 2, 3]):
            rows = [asked(0, text, tokens), asked(1, text, tokens)]
            assert made_of(tmp_path, rows).requests in (1, 2)
