"""An engine for servers that run already: they are measured from this host, and neither started, stopped nor restarted.

Its deployer only attaches; load runner and recorder are those of this host. What brings another arm into service is a
command of the user's. Of several servers behind one address, each is read at its own.
"""

import json
import math
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kveval.campaign.campaign_file import ExistingServer
from kveval.campaign.specification import Specification, described, differences
from kveval.engines.job import Job, MeasurementError
from kveval.engines.local.engine import HostEngine
from kveval.engines.local.load_runner import require_load_possible
from kveval.engines.merged_pages import MergedPages
from kveval.engines.preflight import disk_bytes
from kveval.engines.protocol import AddressedServer, Deployer, Log
from kveval.engines.servers.declared import require_device_cache, require_tier
from kveval.engines.servers.endpoint import Endpoint
from kveval.engines.servers.errors import DeploymentError, ServerDied
from kveval.engines.switching import CommandError, Switches, run_command
from kveval.engines.watchdog import require_free
from kveval.host.cores import Cores
from kveval.host.hashing import content_hash
from kveval.host.http import HttpError, fetch_from
from kveval.host.ports import listening_processes
from kveval.host.processes import Supervisor
from kveval.stacks.counters import CounterError
from kveval.stacks.lmcache import LMCacheServer
from kveval.stacks.registry import server_of
from kveval.stacks.sidecar import SidecarError
from kveval.stacks.talk import Fetch
from kveval.store.store import RUN, Store

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_LOOK_S = 2.0
_NO_LOG = Path("the log of whoever started it")
_NOT_FOUND = (404, 405)
_READY_S, _READY_POLL_S = 60.0, 1.0
# How much memory a server finds free for its device's cache varies a little from start to start.
_DEVICE_SIZES, _SAME_SIZE_SHARE = ("device_blocks", "device_tokens"), 0.05
Stack = Sequence[Mapping[str, Any]]
"""What the servers of an arm tell of themselves, see `Endpoint.stack`: one, or one for each replica."""


def endpoints_of(
    specification: Specification,
    existing: ExistingServer,
    required: Collection[str] = (),
) -> dict[str, Endpoint]:
    """Return an arm's server, or its replicas, by address; `required`: the counters that prove the arm active."""
    program = server_of(specification.versions)
    name, key = specification.model.served_name, key_of(existing)
    return {
        address: Endpoint(
            program,
            name,
            fetch_from(address, key),
            _NO_LOG,
            number=number,
            required=required,
        )
        for number, address in enumerate(existing.metrics or (existing.url,))
    }


def stack_now(specification: Specification, existing: ExistingServer) -> Stack:
    """Return what the servers of an arm tell of themselves now. Raises HttpError, CounterError."""
    endpoints = endpoints_of(specification, existing)
    return [endpoint.stack() for endpoint in endpoints.values()]


def stored_stack(place: Path) -> Stack | None:
    """Return the stack that a stored run was measured on; None if it recorded none, or cannot be read."""
    try:
        attached = json.loads((place / RUN).read_text())["attached"]
        return list(attached["stack"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def stack_changes(then: Stack, now: Stack) -> str:
    """Return in words what differs between two stacks, "" for nothing.

    What only one of them tells is no difference, nor are sizes of the device's cache within 5 % of each other.
    """
    changes: list[tuple[str, Any, Any]] = []
    if len(then) != len(now):
        changes.append(("replicas", len(then), len(now)))
    for number, (before, after) in enumerate(zip(then, now, strict=False)):
        key = f"replica {number}" if len(now) > 1 else ""
        changes += _changes(before, after, key)
    return described(changes) if changes else ""


def _changes(
    then: Mapping[str, Any], now: Mapping[str, Any], key: str
) -> Iterator[tuple[str, Any, Any]]:
    for name, before, after in differences(then, now, key):
        if before is None or after is None:
            continue
        is_size = name.rpartition(".")[2] in _DEVICE_SIZES
        if is_size and math.isclose(before, after, rel_tol=_SAME_SIZE_SHARE):
            continue
        yield name, before, after


def key_of(existing: ExistingServer) -> str:
    """Return the key that a server asks for, "" for none."""
    return os.environ.get(existing.key, "") if existing.key else ""


class AttachedServer(AddressedServer):
    """The server at an address, or its replicas behind a gateway; their command lines and logs are unknown, and their
    processes unless they are on this host.

    `servers`: by address; `front`: what answers at `url`, where the load goes; `lmcache`: the address of LMCache's
    server beside the one server, if it has one.
    """

    def __init__(
        self,
        servers: Mapping[str, Endpoint],
        front: Endpoint,
        url: str,
        lmcache: str | None = None,
    ) -> None:
        beside = []
        if lmcache is not None:
            beside = [LMCacheServer([], _NO_LOG, fetch_from(lmcache))]
        super().__init__(list(servers.values()), beside, argv=[], env={})
        self.url = url
        self._lmcache = lmcache
        self.front = front
        self._servers = servers
        self._looked_at = float("-inf")
        pages = [endpoint.page for endpoint in self.endpoints]
        self._merged = MergedPages(pages) if len(pages) > 1 else None

    @property
    def metrics_urls(self) -> dict[str, str]:
        """The server's own metrics page, or the page with those of all replicas, and LMCache's."""
        address = self._merged.url if self._merged else next(iter(self._servers))
        pages = {self.program.name: f"{address}{self.program.metrics_path}"}
        if self._lmcache is not None:
            pages[LMCacheServer.name] = f"{self._lmcache}/metrics"
        return pages

    @property
    def process_ids(self) -> list[int]:
        """The processes that listen at addresses of this host's loopback interface, and their descendants."""
        found: set[int] = set()
        beside = [] if self._lmcache is None else [self._lmcache]
        for address in map(urlsplit, (*self._servers, *beside)):
            if address.hostname in _LOOPBACK and address.port is not None:
                found.update(listening_processes(address.port))
        return sorted(found)

    def require_alive(self) -> None:
        """Raise ServerDied if nothing listens at an address any more; asked at most every two seconds."""
        if time.monotonic() - self._looked_at < _LOOK_S:
            return
        self._looked_at = time.monotonic()
        for address, endpoint in {self.url: self.front, **self._servers}.items():
            _require_answer(address, endpoint.fetch, self.program.health_path)
        if self._lmcache is not None:
            fetch = fetch_from(self._lmcache)
            _require_answer(self._lmcache, fetch, LMCacheServer.health_path)

    def close(self) -> None:
        """Show the page of all replicas no longer."""
        if self._merged is not None:
            self._merged.close()
            self._merged = None

    def file_counters(self) -> dict[str, float]:
        """Return nothing: files of a tier are not looked for."""
        return {}

    def empty_files(self) -> None:
        """Do nothing, for the same reason."""

    def startup_log(self, endpoint: Endpoint) -> str:
        """Return nothing: the log is unknown, and so are the sizes of caches that it reports."""
        return ""


def _require_answer(address: str, fetch: Fetch, path: str) -> None:
    """Raise ServerDied if nothing listens at an address any more."""
    try:
        fetch(path, timeout_s=_LOOK_S)
    except HttpError as error:
        cause = error.__cause__
        # That a server is late with its answer, as a busy one may be, is for the watch of its progress to judge.
        if isinstance(getattr(cause, "reason", cause), ConnectionError):
            raise ServerDied(f"no server answers at {address}: {error}") from error


class AttachedDeployer(Deployer[AttachedServer]):
    """Attaches to the server of the job's arm and leaves it running.

    Its caches are emptied by its own endpoint, if that is open.
    """

    beginning = "attaching to the server"

    def __init__(self, job: Job, existing: ExistingServer, log: Path, say: Log) -> None:
        specification = job.specification
        servers = endpoints_of(specification, existing, job.required_names)
        front = replace(
            next(iter(servers.values())),
            fetch=fetch_from(existing.url, key_of(existing)),
        )
        self._specification = specification
        self._existing = existing
        self._log = log
        self._switches = Switches.of_campaign(job.campaign)
        lmcache = existing.lmcache
        self._server = AttachedServer(servers, front, existing.url, lmcache)
        self._say = say
        self._stack: list[dict[str, Any]] = []
        self.empties_caches = True
        """Whether its endpoint to empty its caches is open, as far as it was asked yet."""

    @property
    def server(self) -> AttachedServer:
        """The server at the address."""
        return self._server

    def start(self) -> AttachedServer:
        """Switch to the arm, if there is a command for it; check version and model, and warm up. Raises DeploymentError."""
        server = self._server
        if self._existing.switch is not None:
            self._switch(self._existing.switch)
        try:
            for beside in server.sidecars:
                beside.identify(self._specification.versions)
            server.require_declared(self._specification)
            if not self._specification.load_from_tier:
                server.endpoints[0].require_loading_switchable()
            self._stack = server.map_endpoints(Endpoint.stack)
            server.facts = self._sizes_of(self._stack[0]) | server.facts
        except (HttpError, CounterError) as error:
            raise DeploymentError(
                f"the server at {server.url} cannot be measured: {error}",
                code="no_answer",
            ) from error
        except SidecarError as error:
            raise DeploymentError(
                f"LMCache's server at {self._existing.lmcache} cannot be measured: {error}",
                code=error.code,
            ) from error
        server.warm_up(self._specification.workload.first_prompt_tokens)
        if self._existing.metrics:
            self._await_model(server.front, time.monotonic() + _READY_S)
        self.refresh(restart=False)
        return server

    def _sizes_of(self, stack: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sizes that a server tells, by the names that a started one reports them by.

        The tier's is that of the arm only if the arm has one, and no other beside it. Raises DeploymentError if one is
        not as declared.
        """
        budget = self._specification.budget
        sizes = {"kv_cache_tokens": stack["device_tokens"]}
        require_device_cache(stack["device_tokens"], budget.device_tokens, _NO_LOG)
        if budget.host_bytes and not budget.split:
            sizes["tier_bytes"] = stack["tier_bytes"]
            require_tier(stack["tier_bytes"], budget.host_bytes, _NO_LOG)
        return {name: size for name, size in sizes.items() if size is not None}

    def _switch(self, command: str) -> None:
        """Run the command, then wait until the model is served. Raises DeploymentError."""
        limit_s = self._existing.switch_limit_s
        self._say(f"switching: {command}")
        try:
            run_command(command, limit_s, self._log, self._switches.note)
        except CommandError as error:
            message = f"the command that switches to this arm {error}"
            raise DeploymentError(message, code=f"switch_{error.code}") from error
        deadline = time.monotonic() + limit_s
        for endpoint in (*self._server.endpoints, self._server.front):
            self._await_model(endpoint, deadline)

    def _await_model(self, endpoint: Endpoint, deadline: float) -> None:
        """Wait until a server, or what is in front of it, has the model and generates. Raises DeploymentError."""
        program, name = endpoint.program, endpoint.served_model
        while True:
            try:
                models = program.models(endpoint.ask)
                if name in models and program.generated(
                    endpoint.ask, name, 16, _READY_S
                ):
                    return
                state = f"it serves {', '.join(models) or 'no model'}"
            except HttpError as error:
                state = str(error)
            if time.monotonic() > deadline:
                message = f"{self._server.url} does not serve {name}"
                if self._existing.switch is not None:
                    message += " after the switch"
                raise DeploymentError(f"{message}: {state}", code="not_switched")
            time.sleep(_READY_POLL_S)

    def refresh(self, *, restart: bool) -> None:
        """Empty the caches, if the server's endpoint for it is open; never by a restart."""
        if not self.empties_caches:
            return
        try:
            self._server.reset_caches()
        except HttpError as error:
            if error.facts["status"] not in _NOT_FOUND:
                raise
            self.empties_caches = False
            if not self._specification.load_from_tier:
                # The arm that loads has sent the same prompts to it, which the device's cache would serve now.
                message = f"the server at {self._server.url} has no open endpoint to empty its caches"
                raise DeploymentError(
                    f"{message}, which two arms on one server need",
                    code="caches_not_emptied",
                ) from error
            self._say(
                f"the server at {self._server.url} has no open endpoint to empty its caches: levels begin with what they hold"
            )

    def close(self) -> None:
        """Stop nothing but what was made to read the metrics of replicas: whoever started the server stops it."""
        self._server.close()

    @property
    def placeholders(self) -> Mapping[str, str]:
        """The addresses of the server and its replicas, and of LMCache's server."""
        beside = (
            {}
            if self._existing.lmcache is None
            else {self._existing.lmcache: "{lmcache}"}
        )
        servers = (self._server.url, *self._existing.metrics)
        return dict.fromkeys(servers, "{server}") | beside

    def facts(self) -> dict[str, Any]:
        """Return that the run was attached to a server, what that told of itself, and what could be done with its caches."""
        facts = {"empties_caches": self.empties_caches, "stack": self._stack}
        return {"attached": facts}


class AttachedEngine(HostEngine):
    """One run on the servers that answer already as the job's arm, measured from this host."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        assert job.existing is not None
        self._existing = job.existing
        self._messages: set[str] = set()

    def hardware(self) -> Mapping[str, Any]:
        """Describe this host for an address of its own; else return a fingerprint of the host that the address names.

        Arms behind one name are measured on one machine, as far as an address tells.
        """
        host = urlsplit(self._existing.url).hostname or ""
        if self._is_here:
            return self._host
        return {"fingerprint": f"attached-{content_hash(host, 12)}"}

    def may_adopt(self, stored: Path, say: Log) -> bool:
        """Tell whether a stored run was measured on the stack that answers now, as far as that can be asked."""
        then = stored_stack(stored)
        if then is None:
            return True
        unknown = f"{stored} is adopted without comparing the stack it was measured on"
        if self._existing.switch is not None:
            self._say_once(say, f"{unknown}, which its switch brings into service")
            return True
        try:
            now = stack_now(self._job.specification, self._existing)
        except (HttpError, CounterError) as error:
            self._say_once(say, f"{unknown}: {error}")
            return True
        if changes := stack_changes(then, now):
            other = f"it was measured on another stack: {changes}"
            self._say_once(say, f"{stored} is not adopted: {other}")
        return not changes

    def _say_once(self, say: Log, message: str) -> None:
        """Say it unless it was said: a run is looked for before and after its job waits for the host."""
        if message not in self._messages:
            self._messages.add(message)
            say(message)

    @property
    def _is_here(self) -> bool:
        return urlsplit(self._existing.url).hostname in _LOOPBACK

    def wait_until_quiet(self, say: Log) -> None:
        """Wait for this host's processors if the server is on this host."""
        if self._is_here:
            super().wait_until_quiet(say)

    def require_possible(self, store: Store) -> None:
        """Raise a Failure if the server's key is not set, or if this host cannot send and record its load."""
        require_load_possible(self._job)
        specification = self._job.specification
        key = self._existing.key
        if key and not os.environ.get(key):
            raise MeasurementError(
                f"the environment variable {key}, the key of {self._existing.url}, is not set",
                code="no_key",
            )
        store.root.mkdir(parents=True, exist_ok=True)
        needed = disk_bytes(specification.workload, self._host["cpus"])
        require_free(store.root, needed, "a run of this workload")

    def _deployer(
        self, scratch: Path, say: Log, processes: Supervisor, cores: Cores
    ) -> AttachedDeployer:
        log = scratch / "raw" / "switch.log"
        return AttachedDeployer(self._job, self._existing, log, say)
