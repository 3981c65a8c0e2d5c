"""A stand-in for GuideLLM 0.8.1: a closed loop of real requests for a fixed time, and a report in its schema.

Standard library only. The file `fault` beside it, if there is one, says what goes wrong; it makes the file `sent`
once a request was answered.
"""

import json
import os
import re
import signal
import sys
import threading
import time
import urllib.request
from pathlib import Path

VERSION = "0.8.1"
FAULT_FILE = Path(sys.argv[0]).with_name("fault")
SENT_FILE = Path(sys.argv[0]).with_name("sent")


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def main() -> None:
    if go := os.environ.get("KVEVAL_GO"):
        Path(go + ".ready").touch()
        while not Path(go).exists():
            time.sleep(0.05)
    fault = FAULT_FILE.read_text().strip() if FAULT_FILE.exists() else ""
    target = re.search(r"target=([^,]+)", option("--backend"))[1]
    streams = json.loads(option("--profile"))["streams"][0]
    seconds = float(re.search(r"seconds=([\d.]+)", option("--constraint"))[1])
    report = Path(re.search(r"path=(.+)", option("--output"))[1])
    if fault == "fails":
        print("26-11-21 11:24:16|ERROR    |guidellm.cli:run:1 - giving up", flush=True)
        sys.exit("ValueError: the data configuration is wrong")
    if fault == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    concurrency = streams if fault != "is too slow" else max(1, streams // 2)
    records: list[tuple[bool, float, float]] = []
    begin = time.time()
    over = time.monotonic() + seconds

    def stream() -> None:
        while time.monotonic() < over:
            started = time.time()
            request = urllib.request.Request(
                f"{target}/v1/completions", b"{}", method="POST"
            )
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    answer.read()
                records.append((True, started, time.time()))
                SENT_FILE.touch()
            except OSError:
                records.append((False, started, time.time()))
                time.sleep(0.02)

    threads = [threading.Thread(target=stream, daemon=True) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report.write_text(json.dumps(described(records, begin, time.time(), streams)))


def described(
    records: list[tuple[bool, float, float]], begin: float, end: float, streams: int
) -> dict:
    done = [record(start, finish) for good, start, finish in records if good]
    errored = [record(start, finish) for good, start, finish in records if not good]
    return {
        "metadata": {"version": 2, "guidellm_version": VERSION},
        "benchmarks": [
            {
                "config": {"strategy": {"kind": "concurrent", "streams": streams}},
                "scheduler_state": {
                    "successful_requests": len(done),
                    "errored_requests": len(errored),
                },
                "metrics": {
                    "request_totals": {
                        "successful": len(done),
                        "errored": len(errored),
                        "incomplete": 0,
                        "total": 0,
                    }
                },
                "requests": {"successful": done, "errored": errored, "incomplete": []},
                "start_time": begin,
                "end_time": end,
                "warmup_duration": 0.0,
            }
        ],
    }


def record(start: float, finish: float) -> dict:
    latency = finish - start
    return {
        "info": {
            "timings": {
                "first_token_iteration": start + latency / 8,
                "last_token_iteration": finish,
            },
            "turn_index": 0,
        },
        "request_start_time": start,
        "request_end_time": finish,
        "request_latency": latency,
        "prompt_tokens": 16,
        "output_tokens": 8,
        "time_to_first_token_ms": 1000 * latency / 8,
        "time_per_output_token_ms": 1000 * latency / 8,
        "inter_token_latency_ms": 1000 * latency / 8,
    }


if __name__ == "__main__":
    main()
