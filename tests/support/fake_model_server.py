"""A model server at the seam of HTTP: caches that hold whole texts, and the metrics of several programs and releases.

A token is a word. By the server's own clock, which tests give the client, a request takes a millisecond, and its tokens
that no cache serves `COMPUTE_S_PER_TOKEN` each, so that no other program changes a time.
"""

import contextlib
import http.server
import json
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

BLOCK_TOKENS = 16
BYTES_PER_TOKEN = 1024
MODEL = "tiny"
REQUEST_S, COMPUTE_S_PER_TOKEN = 0.001, 0.0003


@dataclass
class Cache:
    """Texts by when they were last used; the oldest go when there are more than `room` tokens."""

    room: int
    texts: "OrderedDict[str, int]" = field(default_factory=OrderedDict)

    def serves(self, text: str) -> int:
        """Return the tokens that it has of a text."""
        if text in self.texts:
            self.texts.move_to_end(text)
        return self.texts.get(text, 0)

    def store(self, text: str, tokens: int) -> int:
        """Keep a text; return how many tokens are new."""
        new = 0 if text in self.texts else tokens
        self.texts[text] = tokens
        self.texts.move_to_end(text)
        while sum(self.texts.values()) > self.room:
            self.texts.popitem(last=False)
        return new


@dataclass
class FakeServer:
    """What the server is; counters are by the names of `metrics`."""

    program: str = "vllm"
    release: str = "0.32.0"
    device_tokens: int = 100_000
    tier_tokens: int = 0
    tier_serves: bool = True
    tier_answers_wrongly: bool = False
    tie_nats: float | None = None
    """By how much the second token that is computed for a prompt is likelier than the one that the tier gives; None: it
    gives that one. It is the first prompt that the tier serves."""
    tied_prompt: str = ""
    device_ties: bool = False
    """Whether the device's cache gives that token as well, for the first prompt that it serves."""
    answers_vary: bool = False
    """Whether each computation gives another answer."""
    metrics_open: bool = True
    emptying_open: bool = True
    arguments_open: bool = True
    tells_cached: bool = False
    knows_salt: bool = True
    counts_ours: bool = True
    engines: int = 1
    """Data-parallel engines."""
    replicas: int = 1
    """How many servers a balancer asks in turn; the metrics are those of one of them."""
    running_from: int | None = None
    """After how many of our requests one of others runs."""
    metrics_elsewhere: str = ""
    """Where a request for the metrics is redirected to."""
    foreign_share: float = 0.0
    key: str = ""
    fails_after: int | None = None
    late_s: float = 0.0
    requests: int = 0
    emptied: int = 0
    url: str = ""
    clock_s: float = 0.0
    device: Cache = field(init=False)
    tier: Cache = field(init=False)
    counted: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.device = Cache(self.device_tokens)
        self.tier = Cache(self.tier_tokens)

    def count(self, name: str, amount: float) -> None:
        self.counted[name] = self.counted.get(name, 0.0) + amount

    def complete(self, body: dict[str, Any]) -> tuple[int, int, list[int]]:
        """Return prompt tokens, those of them that caches had, and the tokens of the answer."""
        salt = body.get("cache_salt", "") if self.knows_salt else ""
        text = f"{salt} {body['prompt']}"
        prompt = len(body["prompt"].split())
        kept = prompt // BLOCK_TOKENS * BLOCK_TOKENS
        loads = "kv_transfer_params" not in body
        device = self.device.serves(text)
        tier = 0
        if not device and loads and self.tier_serves:
            tier = self.tier.serves(text)
        time.sleep(self.late_s)
        self.clock_s += REQUEST_S + (prompt - device - tier) * COMPUTE_S_PER_TOKEN
        self.device.store(text, kept)
        stored = self.tier.store(text, kept) if self.tier_tokens else 0
        if self.counts_ours and self.requests % self.replicas == 0:
            foreign = self.foreign_share / (1 - self.foreign_share)
            self.count("prompt", prompt * (1 + foreign))
            self.count("requests", 1 + foreign)
            self.count("device", device)
            self.count("tier", tier)
            self.count("load_bytes", tier * BYTES_PER_TOKEN)
            self.count("store_bytes", stored * BYTES_PER_TOKEN)
        seed = zlib.crc32(body["prompt"].encode())
        if (tier and self.tier_answers_wrongly) or self.answers_vary:
            seed += self.requests
        answer = [(seed + place) % 4096 for place in range(body["max_tokens"])]
        if (tier or (device and self.device_ties)) and self.tie_nats is not None:
            self.tied_prompt = self.tied_prompt or body["prompt"]
            answer[1] = (answer[1] + (body["prompt"] == self.tied_prompt)) % 4096
        return prompt, device + tier, answer

    def metrics(self) -> str:
        """Return the page of this program and release."""
        lines = self._sglang() if self.program == "sglang" else self._vllm()
        typed = []
        for line in lines:
            name = line.partition("{")[0]
            kind = "counter" if name.endswith("_total") else "gauge"
            typed += [f"# TYPE {name} {kind}", line]
        return "\n".join([*typed, ""])

    def _vllm(self) -> Iterator[str]:
        at = 'engine="0",model_name="tiny"'
        get = self.counted.get
        labels = f'block_size="{BLOCK_TOKENS}",enable_prefix_caching="True"'
        if self.release >= "0.32":
            labels += f',kv_cache_size_tokens="{self.device_tokens}"'
        labels += f',num_gpu_blocks="{self.device_tokens // BLOCK_TOKENS}",kv_offloading_size="None"'
        for engine in range(self.engines):
            yield f'vllm:cache_config_info{{engine="{engine}",{labels}}} 1.0'
        running = int(
            self.running_from is not None and self.requests >= self.running_from
        )
        yield f"vllm:num_requests_running{{{at}}} {running}"
        yield f"vllm:prompt_tokens_total{{{at}}} {get('prompt', 0)}"
        yield f'vllm:request_success_total{{finished_reason="length",{at}}} {get("requests", 0)}'
        yield f"vllm:prefix_cache_hits_total{{{at}}} {get('device', 0)}"
        yield f"vllm:external_prefix_cache_hits_total{{{at}}} {get('tier', 0)}"
        if not self.tier_tokens or self.release < "0.16":
            return
        both = {"CPU_to_GPU": "load_bytes", "GPU_to_CPU": "store_bytes"}
        for way, name in both.items():
            yield f'vllm:kv_offload_total_bytes_total{{{at},transfer_type="{way}"}} {get(name, 0)}'
        if self.release >= "0.24":
            for name in both.values():
                # They appear when they first rise.
                if get(name):
                    yield f"vllm:kv_offload_{name}_total{{{at}}} {get(name)}"

    def _sglang(self) -> Iterator[str]:
        at = 'engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0"'
        get = self.counted.get
        yield f"sglang:max_total_num_tokens{{{at}}} {self.device_tokens}"
        yield f"sglang:num_running_reqs{{{at}}} 0.0"
        if self.tier_tokens:
            yield f"sglang:hicache_host_total_tokens{{{at}}} {self.tier_tokens}"
        yield f"sglang:prompt_tokens_total{{{at}}} {get('prompt', 0)}"
        yield f"sglang:num_requests_total{{{at}}} {get('requests', 0)}"
        for source, name in {"device": "device", "host": "tier"}.items():
            if get(name):
                yield f'sglang:cached_tokens_total{{cache_source="{source}",{at}}} {get(name)}'

    def arguments(self) -> dict[str, Any]:
        """Return what the server tells of its start, where that is open."""
        if self.program == "sglang":
            return {
                "version": self.release,
                "page_size": BLOCK_TOKENS,
                "enable_hierarchical_cache": bool(self.tier_tokens),
                "hicache_size": 0,
                "dp_size": self.engines,
                "disable_radix_cache": False,
            }
        transfer = None
        if self.tier_tokens:
            extra = {
                "cpu_bytes_to_use": self.tier_tokens * BYTES_PER_TOKEN,
                "redis_password": "swordfish",
            }
            transfer = {
                "kv_connector": "OffloadingConnector",
                "kv_connector_extra_config": extra,
            }
        return {"vllm_config": {"kv_transfer_config": transfer}}


class _Handler(http.server.BaseHTTPRequestHandler):
    server_state: ClassVar[FakeServer]

    def do_GET(self) -> None:
        state = self.server_state
        path = self.path.partition("?")[0]
        if self._refused():
            return
        if path == "/v1/models":
            entry = {"id": MODEL, "owned_by": state.program, "max_model_len": 8192}
            self.answer({"object": "list", "data": [entry]})
        elif path == "/metrics" and state.metrics_elsewhere:
            self.send_response(307)
            self.send_header("Location", state.metrics_elsewhere)
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif path in ("/metrics", "/v2/metrics/") and state.metrics_open:
            self.answer(state.metrics(), "text/plain; version=0.0.4")
        elif path == "/version" and state.program == "vllm":
            self.answer({"version": state.release})
        elif path == "/server_info" and state.arguments_open:
            self.answer(state.arguments())
        else:
            self.answer({"detail": "Not Found"}, status=404)

    def do_POST(self) -> None:
        state = self.server_state
        length = int(self.headers.get("Content-Length", 0))
        content = self.rfile.read(length)
        path = self.path.partition("?")[0]
        if self._refused():
            return
        if path == "/reset_prefix_cache" and state.emptying_open:
            assert "reset_external" not in self.path, "the tier is others', too"
            state.device.texts.clear()
            state.emptied += 1
            self.answer({"success": True})
        elif path == "/v1/completions":
            self.complete(json.loads(content))
        else:
            assert path != "/flush_cache", "it would empty the tier, too"
            self.answer({"detail": "Not Found"}, status=404)

    def complete(self, body: dict[str, Any]) -> None:
        state = self.server_state
        if body["model"] != MODEL:
            self.answer({"error": {"message": "no such model"}}, status=404)
            return
        state.requests += 1
        if state.fails_after is not None and state.requests > state.fails_after:
            self.answer({"error": {"message": "engine dead"}}, status=500)
            return
        prompt, cached, tokens = state.complete(body)
        usage: dict[str, Any] = {"prompt_tokens": prompt}
        if state.tells_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        choice: dict[str, Any] = {"text": " ".join(map(str, tokens))}
        if body.get("return_token_ids"):
            choice["token_ids"] = tokens
        if not body.get("stream"):
            # What judges a difference: these are the only likely tokens.
            likely = [{f"token_id:{token}": 0.0} for token in tokens]
            if state.tie_nats is not None:
                computed, other = ((tokens[0] + more) % 4096 for more in (1, 2))
                likely[1] = {
                    f"token_id:{computed}": -0.5,
                    f"token_id:{other}": -0.5 - state.tie_nats,
                }
            choice["logprobs"] = {"top_logprobs": likely}
            self.answer({"choices": [choice], "usage": usage})
            return
        events = [{"choices": [choice]}, {"choices": [], "usage": usage}]
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        self.answer("".join([*lines, "data: [DONE]\n\n"]), "text/event-stream")

    def _refused(self) -> bool:
        key = self.server_state.key
        if not key or self.headers.get("Authorization") == f"Bearer {key}":
            return False
        given = self.headers.get("Authorization", "")
        # Some servers repeat what they were given.
        self.answer({"error": f"Unauthorized: {given}"}, status=401)
        return True

    def answer(
        self, content: Any, kind: str = "application/json", status: int = 200
    ) -> None:
        body = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(state: FakeServer) -> Iterator[FakeServer]:
    """Serve until the body ends; `url` is its address."""
    handler = type("Handler", (_Handler,), {"server_state": state})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}
        )
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
