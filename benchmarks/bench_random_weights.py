"""Speed of a server with random weights under which answers depend on the prompt, against vLLM's own dummy weights.

    python benchmarks/bench_random_weights.py [ROUNDS] [CAMPAIGN.yaml MODEL]

Servers of the campaign's first cell of that model run side by side on this host (a miniature needs 5 GiB) and are
asked in turns, in either order. Two have vLLM's own weights: by what these two differ, the host cannot tell others. Of
the quotients of a round the median and its 95 % interval are printed, and the quotient of the fastest tenths, which
other load on the host moves least; a wave is eight requests at once. ROUNDS are 60 unless given.
"""

import contextlib
import itertools
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from kveval.campaign.random_model import write_served  # noqa: E402
from kveval.campaign.specification import Specification  # noqa: E402
from kveval.configuration.loading import load_config  # noqa: E402
from kveval.engines.local.server import Deployment, deployed  # noqa: E402
from kveval.host.processes import supervisor  # noqa: E402
from kveval.stacks.vllm import Vllm  # noqa: E402

WAVE = 8
_TOKENS = itertools.count(300)


def asked(server: Deployment, prompt_tokens: int, output_tokens: int) -> None:
    """Request a completion whose prompt no cache has."""
    first = next(_TOKENS)
    prompt = [
        300 + (first * place + place) % 3000 for place in range(1, prompt_tokens + 1)
    ]
    body = {
        "model": server.endpoints[0].served_model,
        "prompt": prompt,
        "max_tokens": output_tokens,
    }
    body |= {"ignore_eos": True, "temperature": 0}
    server.endpoints[0].ask(
        "/v1/completions", method="POST", body=body, timeout_s=600.0
    )


def measured(server: Deployment, longest: int) -> dict[str, float]:
    """Return the seconds of each kind of request."""
    prompt = min(2048, longest - 8)
    kinds = {
        f"prefill of {prompt} tokens": (1, prompt, 1),
        "decode of 64 tokens": (1, 16, 64),
    }
    kinds["wave of 8, 256 tokens in, 32 out"] = (WAVE, min(256, longest - 32), 32)
    found = {}
    with ThreadPoolExecutor(WAVE) as pool:
        for name, (count, tokens_in, tokens_out) in kinds.items():
            begin = time.perf_counter()
            list(
                pool.map(
                    lambda _, sizes=(tokens_in, tokens_out): asked(server, *sizes),
                    range(count),
                )
            )
            found[name] = time.perf_counter() - begin
    return found


@contextlib.contextmanager
def both(specification: Specification, folder: Path):
    """Deploy the servers, by what their weights are."""
    model = write_served(
        specification.model.geometry, folder / "model", dtype=specification.model.dtype
    )
    plugins = Vllm.plugins
    with contextlib.ExitStack() as stack:
        processes, servers = (
            stack.enter_context(supervisor(folder / "registry.json")),
            {},
        )
        for name, given in (
            ("vLLM's own", None),
            ("prompt-dependent", plugins),
            ("vLLM's own again", None),
        ):
            Vllm.plugins = given
            (folder / name).mkdir()
            place = {
                "model_dir": model,
                "files_in": folder,
                "log": folder / name / "server.log",
            }
            environments = [ROOT / ".server-venv"]
            one = stack.enter_context(
                deployed(processes, specification, environments=environments, **place)
            )
            print(
                f"{name}: up after {one.startup_s:.1f} s, version {one.facts.get('random_weights', 'none')}"
            )
            one.warm_up(specification.workload.first_prompt_tokens)
            servers[name] = one
        Vllm.plugins = plugins
        yield servers


def main(rounds: int, campaign: Path, model: str) -> None:
    """Print seconds and quotients."""
    config = load_config(campaign, ROOT / "config")
    specification = config.specification(
        next(cell for cell in config.cells if cell.model == model)
    )
    seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with (
        tempfile.TemporaryDirectory() as folder,
        both(specification, Path(folder)) as servers,
    ):
        first, *others = servers
        for number in range(rounds + 1):
            for name in list(servers)[:: 1 if number % 2 else -1]:
                for kind, value in measured(
                    servers[name], specification.model.max_model_len
                ).items():
                    seconds[kind][name] += [value] if number else []
    for kind, by_name in seconds.items():
        own = by_name[first]
        print(f"{kind}: {statistics.median(own):.4f} s")
        for name in others:
            ours = by_name[name]
            quotients = sorted(new / old for old, new in zip(own, ours, strict=True))
            low, high = (quotients[round(place)] for place in middle(len(quotients)))
            fastest = (
                statistics.quantiles(ours, n=10)[0] / statistics.quantiles(own, n=10)[0]
            )
            told = f"{statistics.median(quotients):.3f} ({low:.3f} to {high:.3f}), fastest tenth {fastest:.3f}"
            print(f"    {name}, quotient: {told}")


def middle(count: int) -> tuple[float, float]:
    """Return the places in order between which the median lies with 95 %."""
    half = 0.98 * count**0.5
    return max(0.0, count / 2 - half - 1), min(count - 1.0, count / 2 + half)


if __name__ == "__main__":
    ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    CAMPAIGN = (
        Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "config" / "config.yaml"
    )
    main(ROUNDS, CAMPAIGN, sys.argv[3] if len(sys.argv) > 3 else "Qwen3-0.6B")
