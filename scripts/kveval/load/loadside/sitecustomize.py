"""Makes GuideLLM prepare everything - its processes, its prompts - and send its first request only when told to.

Python imports a module of this name at its start, from the folder that PYTHONPATH names. GuideLLM waits for
the file that KVEVAL_GO names; the same name with .ready added is made once it is ready to send. With KVEVAL_PRIME, JSON
with url, model, prefixes and streams, every prefix of the load is sent to the server once before that, as soon as the
file with .prime added exists; the .ready file then says how many there were and how long it took. With KVEVAL_USERS,
JSON with users, turns, seed and pause, GuideLLM's streams are users with pauses instead of requests in flight.
With KVEVAL_BEFORE_SERVER GuideLLM may be started before the server: it does not look whether one answers. With KVEVAL_AFTER,
a file, GuideLLM is not even imported before that or the file with .prime added exists.
KVEVAL_KEY is the server's key, which no command line may show.
KVEVAL_PROBE names a file that is made at once, to show that this module is imported. Without any, nothing happens.
Standard library only.
"""

import asyncio
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import json
import math
import os
import random
import sys
import time
import types
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

KEY_VARIABLE = "KVEVAL_KEY"
"""Environment variable of the key that the server asks for."""
_WORKERS = "guidellm.scheduler.worker_group"
_BACKEND = "guidellm.backends.openai.http"
_POLL_S = 0.05
_PRIMING_ANSWER_S = 600.0
# Prefixes are drawn at random: after K (ln K + 20) draws, one of K is still missing with probability e^-20.
_DRAWS_MORE = 30


class Holding(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes a change to one module as soon as it is imported."""

    def __init__(self, module: str, change: Callable[[types.ModuleType], None]) -> None:
        self._module = module
        self._change = change
        self._inner: importlib.abc.Loader | None = None

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Take the place of the loader of that one module."""
        if fullname != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._inner, spec.loader = spec.loader, self
        return spec

    def create_module(
        self, spec: importlib.machinery.ModuleSpec
    ) -> types.ModuleType | None:
        """Leave it to the module's own loader."""
        assert self._inner is not None
        return self._inner.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        """Load the module, then change it."""
        assert self._inner is not None
        self._inner.exec_module(module)
        self._change(module)


def change_workers(module: types.ModuleType) -> None:
    """Change GuideLLM's group of workers as the environment says."""
    users = json.loads(os.environ.get("KVEVAL_USERS", "null"))
    if users is not None:
        # The processes that send import this module as well.
        keep_present(module.WorkerProcess)
        with_pauses(module.WorkerProcessGroup, users)
    if "KVEVAL_GO" in os.environ:
        prime = json.loads(os.environ.get("KVEVAL_PRIME", "null"))
        hold(module.WorkerProcessGroup, Path(os.environ["KVEVAL_GO"]), prime)


def change_backend(module: types.ModuleType) -> None:
    """Change GuideLLM's client as the environment says."""
    if "KVEVAL_BEFORE_SERVER" in os.environ:
        expect_no_server(module.OpenAIHTTPBackend)
    if key := os.environ.get(KEY_VARIABLE, ""):
        send_key(module.OpenAIHTTPBackend, key)


def expect_no_server(backend: Any) -> None:
    """Have GuideLLM's client take for granted that a server answers."""

    async def validate(self: Any) -> None:
        pass

    backend.validate = validate


def send_key(backend: Any, key: str) -> None:
    """Have GuideLLM's client send `key` with each request; GuideLLM 0.8 takes it from its command line alone."""
    build = backend._build_headers

    def _build_headers(self: Any, existing: Any = None) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}", **(build(self, existing) or {})}

    backend._build_headers = _build_headers


def hold(group: Any, go: Path, prime: Mapping[str, Any] | None = None) -> None:
    """Have `group` wait for the file `go` between the making of its processes and their start."""
    create = group.create_processes

    async def create_processes(self: Any) -> None:
        await create(self)
        facts: dict[str, Any] = {}
        if prime is None:
            # GuideLLM writes all prefixes before it returns the first request.
            drawn = [next(self.requests)]
        else:
            drawn, prefixes = draw(self.requests, int(prime["prefixes"]))
            await _there(prime_file(go))
            facts = await asyncio.to_thread(primed, prefixes, prime)
        self.requests = itertools.chain(drawn, self.requests)
        unfinished = go.with_name(go.name + ".unfinished")
        unfinished.write_text(json.dumps(facts))
        unfinished.replace(ready_file(go))
        await _there(go)

    group.create_processes = create_processes


def keep_present(worker: Any) -> None:
    """Have a `worker` process begin no more conversations than it may have requests in flight.

    GuideLLM 0.8 begins another one while a conversation pauses; so its streams would count requests, not users.
    """
    startup = worker._processing_startup

    async def _processing_startup(self: Any) -> None:
        await startup(self)
        receive = self.messaging.get
        receiving = 0

        async def get(timeout: float | None = None) -> Any:
            nonlocal receiving
            present = len(self.turns_queue) + receiving
            if timeout is not None and present >= self.async_limit:
                await asyncio.sleep(timeout)
                # Not the same as TimeoutError up to Python 3.10.
                raise asyncio.TimeoutError  # noqa: UP041
            receiving += 1
            try:
                return await receive(timeout)
            finally:
                receiving -= 1

        self.messaging.get = get

    worker._processing_startup = _processing_startup


def with_pauses(group: Any, users: Mapping[str, Any]) -> None:
    """Have `group` send conversations as users have them, see `of_users`."""
    create = group.create_processes

    async def create_processes(self: Any) -> None:
        self.requests = of_users(self.requests, users)
        await create(self)

    group.create_processes = create_processes


def of_users(conversations: Iterator[Any], users: Mapping[str, Any]) -> Iterator[Any]:
    """Yield conversations with a pause after each answer but the last; those that are first begin halfway."""
    turns = int(users["turns"])
    for number, conversation in enumerate(conversations):
        kept = turns_of(number, int(users["users"]), turns)
        names = [f"main_{turn}" for turn in range(kept)]
        pauses_s = pauses(users["pause"], int(users["seed"]), number, kept)
        for name, pause_s in zip(names, pauses_s, strict=False):
            settings = conversation.nodes[name].settings
            settings.requeue_delay = pause_s or None
        yield conversation.subgraph_for_nodes({*names})


def turns_of(number: int, users: int, turns: int) -> int:
    """Return how many turns conversation `number` has, which counts from 0.

    The first of each user is as if it had begun before: so conversations end at different times from the beginning on.
    """
    return turns - number % turns if number < users else turns


def pauses(pause: Mapping[str, Any], seed: int, number: int, turns: int) -> list[float]:
    """Draw the pauses of conversation `number`, seconds: one after each answer but the last.

    `pause`: mean, and, unless it is constant, stdev and distribution, normal (cut off at 0) or lognormal.
    """
    mean, stdev = float(pause["mean"]), float(pause.get("stdev") or 0.0)
    generator = random.Random(f"kveval/pauses/{seed}/{number}")
    if not stdev:
        return [mean] * (turns - 1)
    if pause["distribution"] == "normal":
        return [max(0.0, generator.gauss(mean, stdev)) for _ in range(turns - 1)]
    variance = math.log1p((stdev / mean) ** 2)
    middle = math.log(mean) - variance / 2
    return [
        generator.lognormvariate(middle, math.sqrt(variance)) for _ in range(turns - 1)
    ]


async def _there(file: Path) -> None:
    while not file.exists():
        await asyncio.sleep(_POLL_S)


def draw(conversations: Iterator[Any], count: int) -> tuple[list[Any], list[str]]:
    """Take conversations until `count` distinct prefixes have come; return them, and the prefixes.

    Raises ValueError when there are fewer prefixes than that.
    """
    drawn: list[Any] = []
    prefixes: dict[str, None] = {}
    while len(prefixes) < count:
        if len(drawn) > count * (count.bit_length() + _DRAWS_MORE):
            raise ValueError(
                f"{len(prefixes)} distinct prefixes came in {len(drawn)} conversations, not {count}"
            )
        drawn.append(next(conversations))
        for node in drawn[-1].nodes.values():
            if found := " ".join(node.request.columns.get("prefix_column", [])):
                prefixes[found] = None
    return drawn, list(prefixes)


def primed(prefixes: Sequence[str], prime: Mapping[str, Any]) -> dict[str, Any]:
    """Send every prefix once, as many at a time as the load has streams, and return how that went.

    Raises OSError for a server that does not answer, or refuses.
    """
    begin = time.monotonic()

    def send(prefix: str) -> None:
        # As GuideLLM sends a conversation's first turn, whose prefix is the system's message.
        messages = [
            {"role": "system", "content": prefix},
            {"role": "user", "content": [{"type": "text", "text": "."}]},
        ]
        body = {"model": prime["model"], "messages": messages, "max_tokens": 1}
        body |= prime.get("body", {})
        headers = {"Content-Type": "application/json"}
        if KEY_VARIABLE in os.environ:
            headers["Authorization"] = f"Bearer {os.environ[KEY_VARIABLE]}"
        request = urllib.request.Request(
            f"{prime['url']}/v1/chat/completions", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=_PRIMING_ANSWER_S) as answer:
            answer.read()

    with ThreadPoolExecutor(max(1, int(prime["streams"]))) as senders:
        list(senders.map(send, prefixes))
    return {"prefixes": len(prefixes), "seconds": round(time.monotonic() - begin, 2)}


def wait_for_turn() -> None:
    """Wait for the file that KVEVAL_AFTER names, unless it is the turn of this generator."""
    # Without the variable, the processes that this one starts do not wait: the file may be gone by then.
    if (earlier := os.environ.pop("KVEVAL_AFTER", None)) is None:
        return
    awaited = (Path(earlier), prime_file(Path(os.environ["KVEVAL_GO"])))
    while not any(file.exists() for file in awaited):
        time.sleep(_POLL_S)


def ready_file(go: Path) -> Path:
    """Return the file that says that the generator is ready to send."""
    return go.with_name(go.name + ".ready")


def prime_file(go: Path) -> Path:
    """Return the file that says that it is the turn of this generator, and that it may prime the caches if it does."""
    return go.with_name(go.name + ".prime")


if "KVEVAL_PROBE" in os.environ:
    Path(os.environ["KVEVAL_PROBE"]).touch()
elif {"KVEVAL_GO", "KVEVAL_USERS", KEY_VARIABLE} & os.environ.keys():
    wait_for_turn()
    sys.meta_path.insert(0, Holding(_WORKERS, change_workers))
    sys.meta_path.insert(0, Holding(_BACKEND, change_backend))
