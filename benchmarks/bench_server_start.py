"""Two ways of starting the local server, against each other: time to start, throughput, latency and answers.

    python benchmarks/bench_server_start.py [--pairs 10] [--cell MODEL/SCENARIO/CPU_BLOCKS] [--seconds 40] [--same]

Of each pair one server has its engine forked, with VLLM_WORKER_MULTIPROC_METHOD=fork, the other one is started without
what kveval_start and sitecustomize do (`--same`: both as the first one, which shows the noise). Both stay up, on the engine's
cores for servers, and get the same requests in small batches, in the order A B B A, so that a host that changes its
speed slows both alike. The last lines have the ratios of the first server to the other one, geometric means over pairs
with their 95 % intervals, and how many answers differed: of the first prompts, which are sent one at a time, none may;
later ones are computed in batches that differ by chance, which decides ties. Needs a quiet machine with two cores.
"""

import argparse
import contextlib
import http.client
import json
import math
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from kveval.campaign.random_model import write_served
from kveval.configuration.loading import load_config
from kveval.engines.local import server as local_server
from kveval.host.cores import divided, on_cores, usable
from kveval.host.processes import supervisor

ROOT = Path(__file__).resolve().parents[1]
CAMPAIGN = ROOT / "config" / "campaigns" / "laptop-all-arms.yaml"
STREAMS = 2
# In turns: none of the prefixes is still in the device's cache of 17,920 tokens, and all of them are in a tier of 32,000.
PREFIXES, PREFIX_TOKENS, QUESTION_TOKENS, ANSWER_TOKENS = 6, 4000, 64, 32


@dataclass
class Side:
    """One server of a pair: its start, and of each batch of requests the time, the first tokens and the answers."""

    start_s: float
    model: str
    port: int
    batch_s: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)

    def send(self, prompts: list[list[int]], streams: int) -> None:
        """Send a batch with so many requests in flight."""
        begin = time.perf_counter()
        with ThreadPoolExecutor(streams) as pool:
            replies = list(pool.map(self._ask, prompts))
        self.batch_s.append(time.perf_counter() - begin)
        self.ttft_s.append(fmean(reply[0] for reply in replies))
        self.answers.extend(reply[1] for reply in replies)

    def _ask(self, prompt: list[int]) -> tuple[float, str]:
        """Return the seconds to the first token, and the answer."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        begin, first, parts = time.perf_counter(), 0.0, []
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        with contextlib.closing(connection):
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            for line in connection.getresponse():
                if not line.startswith(b"data: {"):
                    continue
                first = first or time.perf_counter() - begin
                parts.append(json.loads(line[6:])["choices"][0]["text"])
        return first, "".join(parts)


def prompts_of(numbers: random.Random, vocabulary: int) -> list[list[list[int]]]:
    """Return batches of prompts: every shared prefix, with a question of its own."""
    prefixes = [
        [numbers.randrange(100, vocabulary) for _ in range(PREFIX_TOKENS)]
        for _ in range(PREFIXES)
    ]

    def question() -> list[int]:
        return [numbers.randrange(100, vocabulary) for _ in range(QUESTION_TOKENS)]

    return [[prefix + question() for prefix in prefixes] for _ in range(500)]


def pair(number: int, args: argparse.Namespace, folder: Path) -> list[Side]:
    """Start both servers, in an order that alternates, and send them the same load; return the forked one first."""
    config = load_config(CAMPAIGN, ROOT / "config")
    specification = config.specification(config.cell(args.cell))
    cores = divided(usable())
    model = folder / "model"
    if not model.exists():
        served = specification.model
        write_served(
            served.geometry, model, dtype=served.dtype, quantization=served.quantization
        )
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    sides: list[Side | None] = [None, None]
    with (
        on_cores(cores.beside),
        supervisor(folder / "registry") as processes,
        contextlib.ExitStack() as stack,
    ):
        for side in (0, 1) if number % 2 else (1, 0):
            local_server.server_environment = (
                forking if side == 0 or args.same else stock
            )
            with on_cores(cores.server):
                deployment = stack.enter_context(
                    local_server.deployed(
                        processes,
                        specification,
                        environments=[ROOT / ".server-venv"],
                        model_dir=model,
                        files_in=folder,
                        log=folder / f"server-{number}-{side}.log",
                    )
                )
            deployment.warm_up(PREFIX_TOKENS)
            deployment.reset_caches()
            port = int(deployment.url.rsplit(":", 1)[1])
            sides[side] = Side(
                deployment.startup_s, specification.model.served_name, port
            )
        both = [side for side in sides if side is not None]
        batches = prompts_of(random.Random(number), vocabulary)
        end = math.inf
        for index, batch in enumerate(batches):
            for side in both if index % 2 else reversed(both):
                side.send(batch, STREAMS if index else 1)
            if index == 0:
                end = time.monotonic() + args.seconds
            if time.monotonic() >= end:
                break
    return both


OURS = local_server.server_environment


def forking(*args: Any, **kwargs: Any) -> dict[str, str]:
    """Return the server's environment with the engine forked."""
    return OURS(*args, **kwargs) | {"VLLM_WORKER_MULTIPROC_METHOD": "fork"}


def stock(*args: Any, **kwargs: Any) -> dict[str, str]:
    """Return the server's environment with the processes started as vLLM does it: kveval_start is not in its list."""
    return OURS(*args, **kwargs) | {"VLLM_PLUGINS": "kveval_weights"}


def ratios(sides: list[Side]) -> dict[str, float]:
    """Return the first server's figures by the other one's."""
    ours, other = sides
    # The first batch primed the caches. A server's second batch of two in a row is the faster one: each has as many.
    last = len(ours.batch_s) - (len(ours.batch_s) - 1) % 2

    def ratio(of_ours: list[float], of_other: list[float]) -> float:
        return sum(of_ours[1:last]) / sum(of_other[1:last])

    return {
        "start": ours.start_s / other.start_s,
        "throughput": ratio(other.batch_s, ours.batch_s),
        "ttft": ratio(ours.ttft_s, other.ttft_s),
    }


def interval(values: list[float]) -> str:
    """Return the geometric mean with its 95 % interval by Student's t."""
    logs = [math.log(value) for value in values]
    if len(logs) < 2:
        return f"{math.exp(logs[0]):.3f}"
    half = stats.t.ppf(0.975, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    low, middle, high = (math.exp(fmean(logs) + part) for part in (-half, 0, half))
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--cell", default="Qwen3-0.6B/no-offload/0")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--same", action="store_true")
    args = parser.parse_args()
    results: list[dict[str, float]] = []
    alone, together = [0, 0], [0, 0]
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.pairs):
            both = pair(number, args, Path(folder))
            results.append(ratios(both))
            texts = list(zip(*(side.answers for side in both), strict=True))
            for count, some in (
                (alone, texts[:PREFIXES]),
                (together, texts[PREFIXES:]),
            ):
                count[0] += sum(a != b for a, b in some)
                count[1] += len(some)
            starts = " and ".join(f"{side.start_s:.1f}" for side in both)
            figures = " ".join(f"{k} {v:.3f}" for k, v in results[-1].items())
            print(
                f"{args.cell} pair {number}: up after {starts} s, {len(both[0].batch_s) - 1} batches, {figures}",
                flush=True,
            )
    for name in results[0]:
        print(f"{args.cell} {name}: {interval([result[name] for result in results])}")
    print(
        f"{args.cell} answers that differ: {alone[0]} of {alone[1]} asked alone,"
        f" {together[0]} of {together[1]} asked together",
        flush=True,
    )


if __name__ == "__main__":
    main()
