"""A stand-in for vLLM's API server: the endpoints this repository uses, a second process for the engine, and faults.

Standard library only; run as `server.py --port N ...`. The environment's FAULT names what goes wrong (see `main`).
Tokens are generated, and counted, only while the engine process runs: it can be killed and stopped like vLLM's.
"""

import contextlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import shared_memory
from pathlib import Path

TOKENS_PER_REQUEST = 8
REQUEST_S = 0.04
CRASH_S = 8.0
# As vLLM writes it; in tests/support/known_crash.py is more of it.
KNOWN_DEFECT = """\
Traceback (most recent call last):
  File "/srv/vllm/v1/core/sched/scheduler.py", line 3234, in _update_from_kv_xfer_finished
    assert req_id in self.requests
           ^^^^^^^^^^^^^^^^^^^^^^^
AssertionError
"""
FAULT = os.environ.get("FAULT", "")
lock = threading.Lock()
state = {"tokens": 0, "running": 0, "served": 0, "device_hits": 0, "tier_hits": 0}
# Prompts that were answered, by where their keys and values are: to be found again by greedy requests alone.
held: dict[str, set[str]] = {"device": set(), "tier": set()}
HAS_TIER = "--kv-transfer-config" in sys.argv


def crash_in(seconds: float, engine: "subprocess.Popen[bytes]") -> None:
    time.sleep(seconds)
    for line in KNOWN_DEFECT.splitlines():
        print(
            f"(EngineCore pid={engine.pid}) ERROR 11-22 14:33:56 [core.py:1512] {line}",
            flush=True,
        )
    engine.kill()


def engine_runs(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            not in "TZ"
        )
    return False


def greedy(prompt: str, tokens: int, likeliest: int) -> dict[str, object]:
    """Answer with tokens that depend on the prompt, each of which is likelier than the next by 3 nats."""
    length = len(prompt.split())
    source = next((name for name in ("device", "tier") if prompt in held[name]), None)
    if source is not None:
        state[f"{source}_hits"] += length
    held["device"].add(prompt)
    if HAS_TIER:
        held["tier"].add(prompt)
    first = int(prompt.partition(" is ")[2][:5])
    wrong = FAULT == "changes its answers" and source is not None
    answer = [first + place + (wrong and place > 0) for place in range(tokens)]
    top = [
        {f"token_id:{first + place}": -0.1, f"token_id:{first + place + 1}": -3.1}
        for place in range(tokens)
    ]
    return {
        "choices": [
            {
                "token_ids": answer,
                "logprobs": {"top_logprobs": top} if likeliest else None,
            }
        ],
        "usage": {"prompt_tokens": length, "completion_tokens": tokens},
    }


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine = 0

    def do_GET(self) -> None:
        if self.path == "/metrics":
            with lock:
                lines = [
                    "# TYPE vllm:num_requests_running gauge",
                    f'vllm:num_requests_running{{engine="0",model_name="m"}} {state["running"]}',
                    "# TYPE vllm:num_requests_waiting gauge",
                    'vllm:num_requests_waiting{engine="0",model_name="m"} 0',
                    "# TYPE vllm:kv_cache_usage_perc gauge",
                    'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5',
                    "# TYPE vllm:generation_tokens_total counter",
                    f'vllm:generation_tokens_total{{engine="0",model_name="m"}} {state["tokens"]}',
                    "# TYPE vllm:prefix_cache_hits_total counter",
                    f'vllm:prefix_cache_hits_total{{engine="0",model_name="m"}} {state["device_hits"]}',
                    "# TYPE vllm:external_prefix_cache_hits_total counter",
                    f'vllm:external_prefix_cache_hits_total{{engine="0",model_name="m"}} {state["tier_hits"]}',
                ]
            self.answer("\n".join(lines) + "\n", kind="text/plain; version=0.0.4")
        elif self.path == "/version":
            self.answer({"version": os.environ["STAND_IN_VERSION"]})
        elif self.path == "/v1/models":
            self.answer({"data": [{"id": os.environ["STAND_IN_MODEL"]}]})
        else:
            self.answer("")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/v1/completions":
            request = json.loads(body)
            self.complete(request if request.get("return_token_ids") else None)
            return
        if self.path.startswith("/reset_prefix_cache"):
            held["device"].clear()
            if "reset_external=true" in self.path:
                held["tier"].clear()
        self.answer({"success": True})

    def complete(self, request: "dict | None") -> None:
        with lock:
            state["running"] += 1
            state["served"] += 1
            served = state["served"]
        # The first requests are the warm-up.
        if (FAULT == "fails every request" and served > 2) or (
            FAULT == "fails some requests" and served % 5 == 4
        ):
            with lock:
                state["running"] -= 1
            self.send_error(500)
            return
        time.sleep(REQUEST_S)
        while not engine_runs(self.engine):
            time.sleep(0.05)
        with lock:
            state["running"] -= 1
            state["tokens"] += TOKENS_PER_REQUEST
        if request is None:
            self.answer({"usage": {"completion_tokens": TOKENS_PER_REQUEST}})
        else:
            self.answer(
                greedy(
                    request["prompt"], request["max_tokens"], request.get("logprobs", 0)
                )
            )

    def answer(self, content: object, kind: str = "application/json") -> None:
        body = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    arguments = sys.argv[1:]
    port = int(arguments[arguments.index("--port") + 1])
    tokens = os.environ["STAND_IN_TOKENS"]
    if FAULT == "prints its environment":
        print("environment:", dict(os.environ), flush=True)
    if FAULT == "prints its secret and dies":
        sys.exit(f"ValueError: cannot log in with {os.environ['KVEVAL_TEST_SECRET']}")
    if (
        FAULT.startswith("dies while ")
        and Path(FAULT.removeprefix("dies while ").removesuffix(" exists")).exists()
    ):
        sys.exit("ValueError: No available memory for the cache blocks")
    # As vLLM's queues between its processes: removed by the one that made it, if that lives to do so.
    segment = shared_memory.SharedMemory(create=True, size=4096)
    host = (
        arguments[arguments.index("--host") + 1]
        if "--host" in arguments
        else "127.0.0.1"
    )
    server = http.server.ThreadingHTTPServer((host, port), Handler)
    engine = subprocess.Popen(["VLLM::EngineCore", "1000"], executable="/bin/sleep")
    Handler.engine = engine.pid
    signal.signal(
        signal.SIGTERM, lambda *_: (engine.kill(), segment.unlink(), sys.exit(0))
    )
    print(
        f"(EngineCore pid={engine.pid}) INFO CPU KV cache size: {tokens} tokens",
        flush=True,
    )
    if (
        FAULT.startswith("known defect while ")
        and (waiting := Path(FAULT.removeprefix("known defect while "))).exists()
    ):
        left = int(waiting.read_text())
        waiting.write_text(str(left - 1)) if left > 1 else waiting.unlink()
        threading.Thread(target=crash_in, args=(CRASH_S, engine), daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
