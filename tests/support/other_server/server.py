"""A server that is not vLLM: all but the load generator's endpoint goes by other names. Standard library only."""

import http.server
import json
import os
import sys
import threading
import time

TOKENS_PER_REQUEST = 8
REQUEST_S = 0.04
lock = threading.Lock()
state = {"tokens": 0, "running": 0}


def option(name: str, default: str = "0") -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    tier = 0

    def do_GET(self) -> None:
        if self.path == "/stats":
            self.answer(self.stats(), kind="text/plain; version=0.0.4")
        elif self.path == "/about":
            self.answer({"release": "1.5", "serving": option("--name")})
        elif self.path == "/healthz":
            self.answer({"fine": True})
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path not in ("/say", "/v1/completions"):
            self.send_error(404)
            return
        with lock:
            state["running"] += 1
        time.sleep(REQUEST_S)
        with lock:
            state["running"] -= 1
            state["tokens"] += TOKENS_PER_REQUEST
        self.answer({"said": TOKENS_PER_REQUEST})

    def do_DELETE(self) -> None:
        self.answer({"empty": self.path == "/caches"})

    def stats(self) -> str:
        with lock:
            tokens, running = state["tokens"], state["running"]
        hits = tokens if self.tier else 0
        values = {
            "toy_generated_tokens_total": tokens,
            "toy_requests_active": running,
            "toy_requests_queued": 0,
            "toy_cache_fill_ratio": 0.5,
            "toy_looked_up_tokens_total": 4 * tokens,
            "toy_found_tokens_total": 2 * tokens,
            "toy_tier_found_tokens_total": hits,
            'toy_moved_bytes_total{way="in"}': 1000 * hits,
        }
        lines = []
        for name, value in values.items():
            plain = name.partition("{")[0]
            lines += [
                f"# TYPE {plain} {'counter' if plain.endswith('_total') else 'gauge'}",
                f"{name} {value}",
            ]
        return "\n".join([*lines, ""])

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
    Handler.tier = int(option("--tier-bytes"))
    print(f"room for {os.environ['TOY_CACHE_TOKENS']} tokens", flush=True)
    if Handler.tier:
        print(f"tier of {Handler.tier} B", flush=True)
    http.server.ThreadingHTTPServer(
        ("127.0.0.1", int(option("--listen"))), Handler
    ).serve_forever()


if __name__ == "__main__":
    main()
