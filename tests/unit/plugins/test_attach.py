"""`kveval attach` against servers at the seam of HTTP: what it finds out, what it leaves alone, and what stops it."""

import http.client
import json
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import kveval
from tests.support.fake_model_server import BYTES_PER_TOKEN, FakeServer, serving
from tests.support.paths import SCRIPTS

from kveval.plugins.attach import capacity, client, meter, prefix, survey

HERE = Path()
HEAVY = ("snakemake", "pandas", "kubernetes", "scipy", "matplotlib", "pyarrow")


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "_QUIET_S", 0.0)
    monkeypatch.setattr(prefix, "_STORING_S", (0.0, 0.0))
    monkeypatch.setattr(capacity, "_STORING_S", 0.0)
    monkeypatch.setattr(meter, "_SETTLED_S", 0.1)
    monkeypatch.setattr(client, "time", CLOCK)


class ServersClock:
    """The clock of the server that is asked."""

    server = FakeServer()

    def monotonic(self) -> float:
        return self.server.clock_s


CLOCK = ServersClock()


def attached(state: FakeServer, *words: str, status: int = 0) -> dict[str, Any]:
    """Attach to a server, and return the document."""
    CLOCK.server = state
    with serving(state):
        code, output = kveval(HERE, "attach", state.url, "--json", *words)
    assert code == status, output
    document: dict[str, Any] = json.loads(output[output.index("{\n") :].partition("\n}")[0] + "\n}")  # fmt: skip
    return document


def text_of(state: FakeServer, *words: str, status: int = 0) -> str:
    CLOCK.server = state
    with serving(state):
        code, output = kveval(HERE, "attach", state.url, *words)
    assert code == status, output
    return output


@pytest.mark.parametrize("release", ["0.12.0", "0.18.1", "0.24.0", "0.32.0"])
def test_a_tier_that_serves_is_active_by_the_counters_of_every_release(
    release: str,
) -> None:
    state = FakeServer(release=release, tier_tokens=400_000)
    document = attached(state)
    assert document["tier"]["state"] == "active"
    assert document["tier"]["proof"] == "counters"
    server = document["server"]
    assert (server["program"], server["version"]) == ("vllm", release)
    assert (server["block_tokens"], server["device_blocks"]) == (16, 6250)
    assert server["connector"] == "OffloadingConnector"
    assert server["tier_bytes"] == 400_000 * BYTES_PER_TOKEN
    medians = {name: times["median_ms"] for name, times in document["prefix"].items()}
    assert medians["cold"] > medians["device"]
    assert medians["cold"] > medians["tier"]
    assert document["answers"]["state"] == "same"
    assert document["answers"]["cold_prompts"] == 3
    assert document["answers"]["cold_same"] == 3
    assert (medians["unloaded"] is not None) == (release == "0.32.0")
    assert document["stopped"] is None


def test_it_takes_little_of_the_device_and_tells_what_it_did() -> None:
    state = FakeServer(tier_tokens=400_000)
    document = attached(state)
    sent = document["sent"]
    assert sent["requests"] == state.requests <= 20
    assert sent["device_share"] <= 0.02
    assert sent["device_emptied"] == state.emptied == 2
    larger = attached(FakeServer(tier_tokens=400_000), "--share", "10")["sent"]
    assert 0.02 < larger["device_share"] <= 0.1
    small = text_of(FakeServer(device_tokens=4_000, tier_tokens=8_000))
    assert "this small device gave up more" in small


def test_without_a_tier_it_is_not_active_and_the_remedy_is_named() -> None:
    document = attached(FakeServer())
    assert document["tier"]["state"] == "not active"
    assert document["tier"]["proof"] == "counters"
    assert document["server"]["connector"] == ""
    assert "--kv-offloading-size" in document["next"][0]
    assert "NOT ACTIVE" in text_of(FakeServer())


def test_a_tier_that_is_configured_and_serves_nothing_is_not_active() -> None:
    document = attached(FakeServer(tier_tokens=400_000, tier_serves=False))
    assert document["tier"]["state"] == "not active"
    assert "serves nothing" in document["next"][0]


def test_foreign_traffic_is_named_and_keeps_the_device_from_being_emptied() -> None:
    state = FakeServer(tier_tokens=400_000, foreign_share=0.3)
    document = attached(state)
    foreign = document["foreign_traffic"]
    assert foreign["size"] == "large"
    assert foreign["share"] == pytest.approx(0.3, abs=0.01)
    assert state.emptied == 0
    assert document["prefix"]["tier"]["reason"].startswith("others use this server")
    assert document["next"][0].startswith("others use this server")
    slow = FakeServer(tier_tokens=400_000, foreign_share=0.3)
    output = text_of(slow, "--reset")
    assert "30 % of the traffic was others'" in output
    assert "ACTIVE (by time)" in output


def test_the_usage_of_answers_tells_what_served_them_where_counters_do_not() -> None:
    state = FakeServer(tier_tokens=400_000, foreign_share=0.3, tells_cached=True)
    document = attached(state, "--reset")
    assert document["prefix"]["tier"]["proof"] == "usage"
    assert (document["tier"]["state"], document["tier"]["proof"]) == ("active", "usage")


@pytest.mark.parametrize(("tier", "state"), [(400_000, "active"), (0, "not active")])
def test_without_counters_times_decide_and_it_is_marked(tier: int, state: str) -> None:
    server = FakeServer(tier_tokens=tier, metrics_open=False)
    document = attached(server, "--reset")
    assert (document["tier"]["state"], document["tier"]["proof"]) == (state, "time")
    assert "metrics" in document["server"]["metrics_closed"]
    assert document["foreign_traffic"]["size"] == "unknown"
    assert document["server"]["device_tokens"] is None


def test_the_device_is_emptied_only_where_nobody_else_is_seen_then() -> None:
    closed = FakeServer(tier_tokens=400_000, metrics_open=False)
    document = attached(closed)
    assert (closed.emptied, document["tier"]["state"]) == (0, "unknown")
    reason = "whether others use this server is not known"
    assert document["prefix"]["tier"]["reason"].startswith(reason)
    # They came after it began to look.
    later = FakeServer(tier_tokens=400_000, running_from=4)
    document = attached(later)
    assert (later.emptied, document["foreign_traffic"]["running_most"]) == (0, 0)
    assert document["prefix"]["tier"]["reason"].startswith("others use this server")


def test_behind_a_balancer_nothing_is_said_of_the_tier() -> None:
    document = attached(FakeServer(tier_tokens=400_000, replicas=4), "--reset")
    assert document["tier"] == {
        "state": "unknown",
        "proof": "",
        "why": prefix.SEVERAL_SERVERS,
    }
    assert document["prefix"]["tier"]["reason"] == prefix.SEVERAL_SERVERS
    assert document["answers"]["state"] == "unknown"
    assert any("ask each replica" in step for step in document["next"])


def test_metrics_that_are_elsewhere_on_this_server_are_read() -> None:
    moved = FakeServer(tier_tokens=400_000, metrics_elsewhere="/v2/metrics/")
    assert attached(moved)["tier"]["proof"] == "counters"
    place = "http://127.0.0.2:9100/metrics"
    away = attached(FakeServer(metrics_elsewhere=place), "--reset")
    assert f"--metrics {place}" in away["server"]["metrics_closed"]


@pytest.mark.parametrize(
    "end", ["", "/", "/v1", "/v1/", "/v1/completions", "/v1/chat/completions"]
)
def test_an_address_is_taken_as_users_have_it(end: str) -> None:
    assert client.base_address(f"http://server:8000{end}") == "http://server:8000"
    assert client.base_address(f"http://gateway/team{end}") == "http://gateway/team"


def test_an_authority_of_ones_own_is_named_where_a_certificate_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> Any:
        raise ssl.SSLCertVerificationError("self-signed certificate")

    monkeypatch.setattr(http.client.HTTPSConnection, "connect", refuse)
    code, output = kveval(HERE, "attach", "https://127.0.0.1:9")
    assert (code, "SSL_CERT_FILE=FILE" in output) == (1, True)


def test_what_is_known_at_ctrl_c_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prefix, "_ask_tier", interrupt)
    document = attached(FakeServer(tier_tokens=400_000), status=130)
    assert document["stopped"] == "Ctrl-C"
    assert document["prefix"]["device"]["median_ms"] is not None


def test_a_closed_endpoint_leaves_the_tier_open_and_says_what_would_tell() -> None:
    document = attached(FakeServer(tier_tokens=400_000, emptying_open=False))
    assert document["tier"]["state"] == "unknown"
    assert "VLLM_SERVER_DEV_MODE" in document["prefix"]["tier"]["reason"]
    assert "--capacity" in document["next"][-1]
    # Salts give the second computation that the closed endpoint cannot.
    assert document["answers"]["cold_same"] == 3
    unsalted = FakeServer(tier_tokens=9, emptying_open=False, knows_salt=False)
    assert attached(unsalted)["answers"]["cold_prompts"] == 0


def test_what_the_tier_served_before_counts_where_it_cannot_be_asked() -> None:
    state = FakeServer(tier_tokens=400_000, emptying_open=False)
    state.counted = {"tier": 64_000.0, "prompt": 100_000.0}
    document = attached(state)
    assert document["tier"]["state"] == "active"
    assert document["tier"]["proof"] == "counters since start"
    assert document["since_start"]["tier_tokens"] == 64_000


def test_wrong_answers_from_the_tier_are_told_unless_computed_ones_differ_too() -> None:
    wrong = attached(FakeServer(tier_tokens=400_000, tier_answers_wrongly=True))
    assert wrong["answers"]["state"] == "changed"
    assert wrong["answers"]["changed"] == 3
    assert "differ from computed ones" in wrong["next"][0]
    varying = attached(FakeServer(tier_tokens=400_000, answers_vary=True))
    assert varying["answers"]["state"] == "unknown"
    assert "two computations" in varying["answers"]["why"]


@pytest.mark.parametrize(
    ("tie_nats", "state"), [(0.0, "near ties"), (0.031, "near ties"), (3.0, "changed")]
)
def test_a_near_tie_is_no_changed_answer(tie_nats: float, state: str) -> None:
    document = attached(FakeServer(tier_tokens=400_000, tie_nats=tie_nats))
    assert document["answers"]["first_token"] == 1
    assert document["answers"]["margin_nats"] == pytest.approx(tie_nats)
    text = text_of(FakeServer(tier_tokens=400_000, tie_nats=tie_nats))
    assert f"(first at token 2, {tie_nats:.3f} nats apart)" in text
    assert document["answers"]["state"] == state
    assert document["answers"]["same"] == 2
    assert ("differ from computed ones" in document["next"][0]) == (state == "changed")


def test_a_tier_that_answers_as_the_device_is_right() -> None:
    # Both make other additions than computing does, however far apart two tokens are.
    state = FakeServer(tier_tokens=400_000, tie_nats=3.0, device_ties=True)
    document = attached(state)
    assert document["answers"]["state"] == "near ties"
    assert (document["answers"]["near_ties"], document["answers"]["changed"]) == (1, 0)


@pytest.mark.parametrize("emptying_open", [True, False])
def test_the_retained_capacity_is_that_of_the_tier(emptying_open: bool) -> None:
    state = FakeServer(
        device_tokens=8_000, tier_tokens=40_000, emptying_open=emptying_open
    )
    words = () if emptying_open else ("--capacity-tokens", "50000")
    found = attached(state, "--capacity", "--yes", *words)
    retained = found["capacity"]
    assert retained["retained_tokens"] == pytest.approx(40_000, rel=0.1)
    assert not retained["at_least"]
    assert retained["retained_bytes"] == BYTES_PER_TOKEN * retained["retained_tokens"]
    assert retained["share_of_declared"] == pytest.approx(1, abs=0.1)
    assert retained["device_tokens"] > 0
    assert found["tier"]["state"] == "active"
    assert state.requests <= 200


def test_a_tier_smaller_than_the_device_mirrors_it() -> None:
    state = FakeServer(device_tokens=30_000, tier_tokens=10_000)
    document = attached(state, "--capacity", "--yes")
    assert document["capacity"]["retained_tokens"] == pytest.approx(30_000, rel=0.1)
    assert any("mirrors it" in step for step in document["next"])


def test_capacity_by_time_counts_whole_contexts() -> None:
    state = FakeServer(
        device_tokens=2_000,
        tier_tokens=6_000,
        metrics_open=False,
    )
    document = attached(state, "--capacity", "--yes", "--capacity-tokens", "10500")
    found = document["capacity"]
    assert found["proof"] == "time"
    assert found["retained_tokens"] == pytest.approx(6_000, abs=250)


def test_capacity_is_not_searched_for_without_agreement_or_a_size() -> None:
    state = FakeServer(tier_tokens=40_000)
    output = text_of(state, "--capacity")
    assert "in place of what they hold of others" in output
    assert "not agreed to" in output
    assert "at least" in output
    assert state.requests <= 20
    closed = text_of(FakeServer(metrics_open=False), "--capacity", "--yes")
    assert "--capacity-tokens" in closed


def test_what_could_not_be_exhausted_is_at_least_that() -> None:
    state = FakeServer(device_tokens=8_000, tier_tokens=40_000)
    document = attached(state, "--capacity", "--yes", "--capacity-tokens", "20000")
    assert document["capacity"]["at_least"]
    assert document["capacity"]["retained_tokens"] == pytest.approx(20_000, rel=0.1)


def test_sglang_is_recognised_and_its_tier_proven_by_its_own_counters() -> None:
    state = FakeServer(
        program="sglang", release="0.5.23", device_tokens=8_000, tier_tokens=40_000
    )
    document = attached(state, "--capacity", "--yes")
    server = document["server"]
    assert (server["program"], server["version"]) == ("sglang", "0.5.23")
    assert (server["connector"], server["tier_tokens"]) == ("HiCache (host)", 40_000)
    assert document["tier"] == {
        "state": "active",
        "proof": "counters",
        "why": document["tier"]["why"],
    }
    assert document["capacity"]["retained_tokens"] == pytest.approx(40_000, rel=0.1)
    assert document["foreign_traffic"]["size"] == "none"
    alone = attached(FakeServer(program="sglang", release="0.5.23"))
    assert alone["tier"]["state"] == "not active"
    assert "--enable-hierarchical-cache" in alone["next"][0]


def test_data_parallel_engines_are_the_reason_why_a_tier_is_not_known() -> None:
    state = FakeServer(
        program="sglang", release="0.5.23", tier_tokens=40_000, engines=2
    )
    assert attached(state)["server"]["engines"] == 2
    vllm = FakeServer(tier_tokens=400_000, tier_serves=False, engines=2)
    tier = attached(vllm)["tier"]
    assert tier["state"] == "unknown"
    assert "2 engines answer here" in tier["why"]


def test_an_unknown_program_is_timed_and_said_to_be_unknown() -> None:
    document = attached(FakeServer(program="other", metrics_open=False))
    assert document["server"]["program"] == "other"
    assert document["tier"]["state"] == "unknown"
    assert document["prefix"]["cold"]["proof"] == "time"


def test_metrics_of_another_server_are_not_taken_for_this_ones() -> None:
    document = attached(FakeServer(tier_tokens=400_000, counts_ours=False), "--reset")
    assert "another server" in document["server"]["metrics_closed"]
    assert document["tier"]["state"] == "unknown"


def test_the_table_of_a_recipe_has_its_bytes() -> None:
    output = text_of(FakeServer(tier_tokens=400_000), "--recipe")
    header, _, row = output.splitlines()[-3:]
    assert header.startswith("| config | prompt tokens | store | reset | load |")
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[0] == "`offloading_cpu`"
    assert int(cells[2].replace(",", "")) > int(cells[4].replace(",", "")) > 0
    assert cells[3:] == ["yes", cells[4], "yes"]


def test_a_wrong_key_and_a_wrong_model_are_mistakes_and_no_key_is_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_KEY", "swordfish-7")
    monkeypatch.setenv("OTHER_KEY", "hunter-2222")
    CLOCK.server = server = FakeServer(key="swordfish-7", tier_tokens=400_000)
    with serving(server):
        for words in ((), ("--key-env", "OTHER_KEY"), ("--key-env", "NO_KEY")):
            code, output = kveval(HERE, "attach", server.url, *words)
            assert (code, "--key-env" in output) == (2, True)
            assert "hunter" not in output
        for form in ((), ("--json",), ("--recipe",)):
            code, output = kveval(
                HERE, "attach", server.url, "--key-env", "MY_KEY", *form
            )
            assert code == 0, output
            assert "swordfish" not in output
        code, output = kveval(
            HERE, "attach", server.url, "--key-env", "MY_KEY", "--model", "huge"
        )
        assert (code, "does not serve huge; it serves tiny" in output) == (2, True)
        before = server.requests
        code, output = kveval(HERE, "attach", f"http://me:secret@{server.url[7:]}")
        assert (code, "secret" in output, server.requests) == (2, False, before)


def test_nobody_at_the_address_is_one_line() -> None:
    code, output = kveval(HERE, "attach", "127.0.0.1:9")
    assert code == 1
    assert output.startswith("FAILED: nothing can be asked")
    assert len(output.splitlines()) == 1
    code, output = kveval(HERE, "attach", "ftp://example.org")
    assert (code, "http://HOST:PORT" in output) == (2, True)


def test_it_stops_at_the_first_failure_and_at_its_bounds() -> None:
    failing = FakeServer(tier_tokens=400_000, fails_after=4)
    document = attached(failing, status=1)
    assert "engine dead" in document["stopped"]
    assert failing.requests == 5
    assert document["prefix"]["cold"]["median_ms"] is not None
    few = FakeServer(tier_tokens=400_000)
    assert "5 requests" in attached(few, "--max-requests", "5", status=1)["stopped"]
    assert few.requests == 5
    late = FakeServer(late_s=0.5)
    output = text_of(late, "--max-ttft", "0.2", status=1)
    assert "no token within 0.2 s" in output
    assert late.requests == 1


def test_the_command_imports_nothing_of_the_workflow() -> None:
    code = (
        "import sys\n"
        "from kveval.workflow.command.main import app\n"
        "try: app(['attach', '127.0.0.1:9'])\n"
        "except SystemExit: pass\n"
        "import kveval.plugins.attach.command\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=SCRIPTS,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
