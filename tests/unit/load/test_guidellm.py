import copy
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from kveval.host.processes import supervisor
from kveval.load import guidellm
from kveval.load.guidellm import (
    Level,
    LoadError,
    LoadTarget,
    Primed,
    command,
    data_argument,
    environment,
    levels_known_ahead,
    levels_of,
    loaded_s,
    next_level,
    priming_environment,
    profile_argument,
    report_facts,
    run_level,
    time_limit_s,
    unanswered_s,
    users_environment,
    worker_processes,
)
from kveval.load.idle import Idle
from kveval.load.workload import (
    LengthSpread,
    Pause,
    PerLevel,
    WorkingSet,
    workload_of,
)

WORKLOAD = workload_of(
    {
        "profile": "concurrent",
        "prompt_tokens": 64,
        "output_tokens": 16,
        "turns": 3,
        "prefix_tokens": 2000,
        "prefix_count": 20,
        "seed": 889,
        "levels": [1, 4, 8],
        "seconds": 20,
        "warmup_s": 4,
        "request_timeout_s": 60,
    }
)


def test_seeds_differ_by_run_and_level_and_not_by_arm():
    seeds = [level.seed for run in (1, 2, 3) for level in levels_of(WORKLOAD, run)]
    assert len(set(seeds)) == 9
    assert levels_of(WORKLOAD, 2) == levels_of(copy.copy(WORKLOAD), 2)


def test_the_published_workload_is_passed_on_as_guidellm_names_it():
    published = WORKLOAD.replace(
        prefix_tokens=10000,
        prefix_count=800,
        prompt_tokens=128,
        output_tokens=128,
        turns=5,
    )
    assert data_argument(published, 650) == (
        "kind=synthetic_text,prompt_tokens=128,output_tokens=128,turns=5,prefix_tokens=10000,prefix_count=800"
    )


def test_the_prefix_count_may_follow_the_level():
    assert "prefix_count=1300" in data_argument(
        WORKLOAD.replace(prefix_count=PerLevel(per_level=2)), 650
    )


@pytest.mark.parametrize(
    ("profile", "level", "expected"),
    [
        ("concurrent", 8, {"kind": "concurrent", "streams": [8]}),
        ("constant", 90, {"kind": "constant", "rate": [1.5]}),
        ("poisson", 90, {"kind": "poisson", "rate": [1.5]}),
        ("prefix-length", 512, {"kind": "synchronous"}),
    ],
)
def test_every_profile_is_passed_on_as_guidellm_names_it(profile, level, expected):
    assert (
        json.loads(
            profile_argument(WORKLOAD.replace(profile=profile, warmup_s=0), level)
        )
        == expected
    )


def test_varying_lengths_and_the_length_of_a_prefix_are_passed_on():
    varying = WORKLOAD.replace(
        profile="prefix-length",
        prefix_tokens=0,
        prefix_count=WorkingSet(tokens=4096),
    )
    varying = varying.replace(output_spread=LengthSpread(stdev=8, min=2, max=64))
    assert data_argument(varying, 512) == (
        "kind=synthetic_text,prompt_tokens=64,output_tokens=16,turns=3,"
        "output_tokens_stdev=8,output_tokens_min=2,output_tokens_max=64,prefix_tokens=512,prefix_count=8"
    )


def test_prefixes_of_unequal_popularity_are_groups_with_weights():
    unequal = WORKLOAD.replace(prefix_count=4, prefix_zipf=1.0)
    found = json.loads(data_argument(unequal, 8))
    assert found["kind"] == "synthetic_text"
    assert "prefix_count" not in found
    assert found["prefix_buckets"] == [
        {"bucket_weight": weight, "prefix_count": 1, "prefix_tokens": 2000}
        for weight in (16, 8, 5, 4)
    ]
    many = json.loads(data_argument(unequal.replace(prefix_count=5000), 8))
    assert len(json.dumps(many)) < 100_000


USERS = WORKLOAD.replace(
    profile="users",
    prefix_tokens=0,
    prefix_count=0,
    document_tokens=10_000,
    pause_s=10.0,
    warmup_s=0,
)


def test_users_have_documents_arrive_one_after_the_other_and_pause():
    assert data_argument(USERS, 8) == (
        "kind=synthetic_text,prompt_tokens=64,output_tokens=16,turns=3,first_prompt_tokens=10064"
    )
    assert json.loads(profile_argument(USERS, 8)) == {
        "kind": "concurrent",
        "streams": [8],
        "rampup_duration": 10,
    }
    found = users_environment(USERS, Level(8, 0, 123))
    assert json.loads(found["KVEVAL_USERS"]) == {
        "users": 8,
        "turns": 3,
        "seed": 123,
        "pause": {"mean": 10},
    }
    assert users_environment(WORKLOAD, Level(8, 0, 123)) == {}


def test_pauses_may_vary():
    varying = USERS.replace(pause_s=Pause(mean=10, stdev=8))
    found = json.loads(users_environment(varying, Level(8, 0, 1))["KVEVAL_USERS"])
    assert found["pause"] == {"mean": 10, "stdev": 8, "distribution": "lognormal"}


def test_the_spreads_of_a_document_and_its_question_add_up():
    varying = USERS.replace(
        document_spread=LengthSpread(stdev=4, min=9_000, max=11_000),
        prompt_spread=LengthSpread(stdev=3, min=60, max=70),
    )
    assert data_argument(varying, 8).endswith(
        "first_prompt_tokens=10064,first_prompt_tokens_stdev=5,"
        "first_prompt_tokens_min=9060,first_prompt_tokens_max=11070"
    )
    varying = varying.replace(prompt_spread=None)
    assert data_argument(varying, 8).endswith(
        "first_prompt_tokens_stdev=4,first_prompt_tokens_min=9064,first_prompt_tokens_max=11064"
    )


def test_with_pauses_an_idle_generator_is_nothing_odd():
    assert loaded_s(USERS, 8) == unanswered_s(USERS, 8) == 0
    assert loaded_s(USERS.replace(pause_s=0.0), 8) == USERS.seconds


def test_poisson_arrivals_come_from_one_worker_process():
    assert worker_processes(64, WORKLOAD.replace(profile="poisson")) == 1
    assert worker_processes(64, WORKLOAD) == 10


def test_a_workload_without_prefixes_asks_for_none():
    assert "prefix" not in data_argument(WORKLOAD.replace(prefix_tokens=0), 1)


def test_the_command_asks_for_one_level_with_warm_up_and_every_record(tmp_path):
    argv = command(
        "guidellm",
        WORKLOAD,
        Level(8, 2, 123),
        LoadTarget("http://127.0.0.1:1", "m", tmp_path),
        tmp_path / "r.json",
    )
    options = dict(zip(argv[2:-2:2], argv[3:-2:2], strict=True))
    assert json.loads(options["--profile"]) == {
        "kind": "concurrent",
        "streams": [8],
        "warmup": {"value": 4, "mode": "duration"},
    }
    assert options["--constraint"] == "kind=max_duration,seconds=20"
    assert options["--seed"] == "kind=static,value=123"
    assert options["--metrics"] == "kind=generative,sample_size=0"


@pytest.mark.parametrize(
    ("profile", "expected_s"),
    [
        ("concurrent", 120),
        ("prefix-length", 120),
        ("poisson", 0),
        ("constant", 0),
        ("bursts", 0),
    ],
)
def test_only_a_closed_loop_always_has_requests_in_flight(profile, expected_s):
    assert loaded_s(WORKLOAD.replace(profile=profile, seconds=120), 4) == expected_s


def test_the_time_limit_leaves_room_for_writing_the_prefixes():
    assert (
        time_limit_s(WORKLOAD.replace(prefix_tokens=10000, prefix_count=800), 1)
        > time_limit_s(WORKLOAD, 1) + 55
    )


@pytest.mark.parametrize(("cpus", "workers"), [(1, 1), (2, 1), (16, 4), (128, 10)])
def test_worker_processes_follow_the_host(cpus, workers):
    assert worker_processes(cpus) == workers


def test_the_environment_holds_no_secret(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert "hf_secret" not in environment(2).values()


def start(
    tmp_path,
    program,
    *,
    limit_s=20.0,
    sending_limit_s=20.0,
    watch=None,
    sending=None,
    go=None,
    idle_before_s=0.0,
):
    report = tmp_path / "raw" / "guidellm-0001.json"
    report.parent.mkdir(exist_ok=True)
    with supervisor(tmp_path / "registry.json") as processes:
        argv = [sys.executable, "-c", program, str(report)]
        log = report.with_suffix(".log")
        env = {**os.environ, "GO": str(go)}
        limits = {
            "limit_s": limit_s,
            "sending_limit_s": sending_limit_s,
            "idle_before_s": idle_before_s,
        }
        hooks = {
            "watch": watch or (lambda elapsed_s: None),
            "sending": sending or (lambda: None),
        }
        return run_level(
            processes, argv, report, log, **limits, **hooks, env=env, go=go
        )


def test_a_generator_that_fails_is_named_with_its_log(tmp_path):
    log = tmp_path / "raw" / "guidellm-0001.log"
    with pytest.raises(LoadError) as error:
        start(tmp_path, "print('cause'); raise SystemExit(3)")
    assert (error.value.code, error.value.facts) == (
        "generator_failed",
        {"exit_code": 3, "log": log},
    )
    assert str(log) in str(error.value)
    assert "cause" in log.read_text()


def test_a_generator_that_does_not_wait_is_named(tmp_path):
    with pytest.raises(LoadError) as error:
        start(tmp_path, "pass", go=tmp_path / "go")
    assert error.value.code == "did_not_wait"


def test_in_a_search_only_the_first_level_is_known_ahead():
    assert levels_known_ahead(WORKLOAD, 1) == levels_of(WORKLOAD, 1)
    search = {"start": 4, "stop": 64}
    searched = workload_of({**WORKLOAD.to_json(), "levels": {"search": search}})
    [first] = levels_known_ahead(searched, 1)
    assert first == next_level(searched, 1, {})


def test_a_generator_that_hangs_is_stopped(tmp_path):
    with pytest.raises(LoadError) as error:
        start(tmp_path, "import time; time.sleep(100)", limit_s=1.0)
    assert (error.value.code, error.value.facts) == (
        "still_running",
        {"limit_s": 1.0, "idle": False},
    )


@pytest.mark.parametrize(
    ("program", "idle"),
    [("import time; time.sleep(100)", True), ("while True: pass", False)],
)
def test_one_that_hangs_idle_is_stopped_before_the_time_for_its_answers_is_over(
    tmp_path, monkeypatch, program, idle
):
    monkeypatch.setattr(guidellm, "Idle", partial(Idle, window_s=0.6))
    with pytest.raises(LoadError) as error:
        start(tmp_path, program, limit_s=3.0, idle_before_s=1.5)
    assert error.value.facts == {"limit_s": 3.0, "idle": idle}


def test_what_children_do_is_work(tmp_path):
    burn = "import time; t = time.process_time()\nwhile time.process_time() - t < 0.3: pass"
    program = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {burn!r}]); print(); time.sleep(9)"
    with subprocess.Popen(
        [sys.executable, "-uc", program], stdout=subprocess.PIPE
    ) as process:
        idle = Idle(process.pid, window_s=1.0)
        assert not idle.lasts(0.0)
        process.stdout.readline()
        assert not idle.lasts(1.0)
        assert idle.lasts(2.1)
        process.kill()


def test_only_streams_give_up_what_is_not_answered():
    assert unanswered_s(WORKLOAD, 1) == 60
    assert unanswered_s(WORKLOAD.replace(profile="poisson"), 1) == 0


def test_a_dead_server_ends_the_level_at_once(tmp_path):
    def watch(elapsed_s):
        raise RuntimeError("the server died")

    with pytest.raises(RuntimeError, match="server died"):
        start(tmp_path, "import time; time.sleep(100)", watch=watch)


def test_the_report_of_an_earlier_attempt_does_not_pass_for_this_ones(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "guidellm-0001.json").write_text("{}")
    start(tmp_path, "pass")
    assert not (tmp_path / "raw" / "guidellm-0001.json").exists()


HELD = """
import os, pathlib, time
go = pathlib.Path(os.environ["GO"])
while not go.with_name("go.prime").exists():
    time.sleep(0.01)
go.with_name("go.ready").write_text('{"prefixes": 3, "seconds": 1.5}')
while not go.exists():
    time.sleep(0.01)
"""


def test_a_held_generator_is_told_to_send_once_it_has_primed_the_caches(tmp_path):
    go, told = tmp_path / "go", []
    wall_s, primed = start(
        tmp_path, HELD, sending=lambda: told.append(go.exists()), go=go
    )
    assert told == [False]
    assert primed == Primed(3, 1.5)
    assert wall_s < 20


def test_a_generator_that_hangs_after_it_was_told_to_send_is_stopped_sooner(tmp_path):
    with pytest.raises(LoadError) as error:
        start(
            tmp_path,
            HELD + "time.sleep(100)",
            limit_s=90.0,
            sending_limit_s=1.0,
            go=tmp_path / "go",
        )
    assert error.value.code == "still_running"
    assert error.value.facts["limit_s"] < 20


def test_without_priming_the_load_begins_with_its_process(tmp_path):
    told = []
    _, primed = start(tmp_path, "pass", sending=lambda: told.append(True))
    assert (told, primed) == ([True], None)


def test_a_generator_that_fails_while_priming_never_sends(tmp_path):
    told = []
    with pytest.raises(LoadError) as error:
        start(
            tmp_path,
            "raise SystemExit('no prefix')",
            sending=lambda: told.append(True),
            go=tmp_path / "go",
        )
    assert (error.value.code, told) == ("generator_failed", [])


def test_priming_has_time_of_its_own(tmp_path):
    primed = WORKLOAD.replace(prime=True)
    assert time_limit_s(primed, 1) == time_limit_s(WORKLOAD, 1) + 2000 * 20 / 200


def test_a_held_generator_learns_what_to_prime():
    target = LoadTarget("http://127.0.0.1:1", "tiny", "tokenizer")
    assert priming_environment(WORKLOAD, Level(4, 1, 1), target) == {}
    found = priming_environment(WORKLOAD.replace(prime=True), Level(4, 1, 1), target)
    assert json.loads(found["KVEVAL_PRIME"]) == {
        **{"url": "http://127.0.0.1:1", "model": "tiny", "prefixes": 20, "streams": 4}
    }


def report_with(tmp_path, **changed):
    content = {
        "metadata": {"guidellm_version": "0.8.1"},
        "benchmarks": [
            {
                "start_time": 10.0,
                "end_time": 26.0,
                "metrics": {
                    "request_totals": {"successful": 5, "errored": 1, "incomplete": 4}
                },
            }
        ],
    } | changed
    path = tmp_path / "guidellm-0008.json"
    path.write_text(json.dumps(content))
    return path


def test_the_measured_window_comes_from_the_report(tmp_path):
    facts = report_facts(report_with(tmp_path), "0.8.1")
    assert (facts.start, facts.end) == (10.0, 26.0)


def test_another_version_of_the_generator_is_refused(tmp_path):
    with pytest.raises(LoadError) as error:
        report_facts(report_with(tmp_path), "0.5.3")
    assert (error.value.code, error.value.facts) == (
        "other_version",
        {"found": "0.8.1", "declared": "0.5.3"},
    )


def test_a_level_in_which_every_request_failed_is_a_failure(tmp_path):
    benchmark = {
        "start_time": 1,
        "end_time": 2,
        "metrics": {
            "request_totals": {"successful": 0, "errored": 17, "incomplete": 0}
        },
    }
    with pytest.raises(LoadError) as error:
        report_facts(report_with(tmp_path, benchmarks=[benchmark]), "0.8.1")
    assert (error.value.code, error.value.facts) == (
        "nothing_completed",
        {"errored": 17},
    )


@pytest.mark.parametrize(
    "text", ["", '{"benchmarks": []}', '{"benchmarks": [{"met', "[]"]
)
def test_a_missing_truncated_or_foreign_report_is_a_failure(tmp_path, text):
    path = tmp_path / "guidellm-0008.json"
    path.write_text(text)
    with pytest.raises(LoadError) as damaged:
        report_facts(path, "0.8.1")
    path.unlink()
    with pytest.raises(LoadError) as missing:
        report_facts(path, "0.8.1")
    assert damaged.value.code == missing.value.code == "no_usable_report"


COMMON = {
    "levels": [4, 90],
    "prompt_tokens": 128,
    "output_tokens": 64,
    "seconds": 120.0,
    "warmup_s": 10.0,
    "seed": 889,
}
WARM_UP = '"warmup":{"value":10.0,"mode":"duration"}'


@pytest.mark.parametrize(
    ("workload", "profile", "data"),
    [
        (
            {"turns": 5, "prefix_tokens": 2000, "prefix_count": {"per_level": 2}},
            f'{{"kind":"concurrent","streams":[90],{WARM_UP}}}',
            "kind=synthetic_text,prompt_tokens=128,output_tokens=64,turns=5,prefix_tokens=2000,prefix_count=180",
        ),
        (
            {
                **{
                    "profile": "poisson",
                    "prefix_tokens": 2000,
                    "prefix_count": {"tokens": 60_000},
                },
                "output_spread": {"stdev": 20, "min": 8, "max": 200},
            },
            f'{{"kind":"poisson","rate":[1.5],{WARM_UP}}}',
            "kind=synthetic_text,prompt_tokens=128,output_tokens=64,turns=1,output_tokens_stdev=20,output_tokens_min=8,"
            "output_tokens_max=200,prefix_tokens=2000,prefix_count=30",
        ),
        (
            {
                **{
                    "profile": "bursts",
                    "bursts": {"factor": 5.0, "share": 0.1, "mean_s": 20.0},
                },
                **{"prefix_tokens": 600, "prefix_count": 8},
            },
            f'{{"kind":"replay","schedule_turn":"timestamp",{WARM_UP}}}',
            '{"kind":"mooncake","source":{"kind":"json_file","path":"/REPORT.trace.jsonl"},"hash_id_block_size":600}',
        ),
        (
            {
                "profile": "prefix-length",
                "warmup_s": 0.0,
                "prefix_count": {"tokens": 4096},
            },
            '{"kind":"synchronous"}',
            "kind=synthetic_text,prompt_tokens=128,output_tokens=64,turns=1,prefix_tokens=90,prefix_count=45",
        ),
    ],
    ids=["closed loop", "open loop", "trace", "sweep of prefix lengths"],
)
def test_the_command_line_of_a_level_is_this_one(workload, profile, data):
    """Pinned: another command line is another load under the same measurement id."""
    load = workload_of(COMMON | workload)
    target = LoadTarget("URL", "MODEL", Path("/TOKENIZER"))
    assert command(
        "GUIDELLM", load, levels_of(load, 2)[1], target, Path("/REPORT.json")
    ) == [
        *("GUIDELLM", "run"),
        *("--backend", "kind=openai_http,target=URL,model=MODEL"),
        *("--profile", profile),
        *("--constraint", "kind=max_duration,seconds=120"),
        *("--seed", "kind=static,value=200890"),
        *("--data", data),
        *("--tokenizer", "kind=hf_auto,model=/TOKENIZER"),
        *("--output", "kind=json,path=/REPORT.json"),
        *("--metrics", "kind=generative,sample_size=0"),
        *("--disable-console", "--disable-progress"),
    ]


def test_what_each_request_has_in_addition_is_json_for_guidellm_and_for_priming():
    load = workload_of(COMMON | {"prime": True})
    body = {"kv_transfer_params": {"max_load_tokens": 0}}
    target = LoadTarget("http://h:1", "MODEL", "TOKENIZER", body)
    level = levels_of(load, 1)[0]
    argv = command("GUIDELLM", load, level, target, Path("/REPORT.json"))
    backend = json.loads(argv[argv.index("--backend") + 1])
    assert backend == {
        "kind": "openai_http",
        "target": "http://h:1",
        "model": "MODEL",
        "extras": {"body": body},
    }
    primed = json.loads(priming_environment(load, level, target)["KVEVAL_PRIME"])
    assert primed["body"] == body
