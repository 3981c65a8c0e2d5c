"""One server, on this host or in a pod: what is asked of it, and what it must answer."""

import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kveval.engines.servers.errors import DeploymentError
from kveval.engines.watchdog import Work, read_work
from kveval.host.http import HttpError, decoded
from kveval.stacks.counters import (
    CounterError,
    metric_types,
    parse_counters,
    parse_samples,
    unreadable,
)
from kveval.stacks.model_server import ModelServer
from kveval.stacks.talk import Fetch
from kveval.stacks.versions import same_release

_GENERATED_S = 120.0


@dataclass
class Endpoint:
    """One server; `fetch` sends requests to it, `log` is its log on this host, `number` its number among replicas.

    `through`: what requests pass on their way to it, "" for nothing; `required`: names of the counters that prove the
    arm active, also those that do not begin as the program's own do.
    """

    program: ModelServer
    served_model: str
    fetch: Fetch
    log: Path
    version: str = ""
    number: int = 0
    through: str = ""
    required: Collection[str] = ()

    def ask(
        self,
        path: str,
        method: str = "GET",
        body: object = None,
        timeout_s: float = 30.0,
    ) -> Any:
        """Send one request and return the decoded JSON, None for other answers. Raises HttpError."""
        return decoded(self.fetch(path, method, body, timeout_s))

    def page(self, timeout_s: float = 10.0) -> str:
        """Return its page of metrics. Raises HttpError."""
        return self.fetch(self.program.metrics_path, "GET", None, timeout_s).decode(
            errors="replace"
        )

    def counters(self) -> dict[str, float]:
        """Return its counters. Raises CounterError."""
        try:
            return parse_counters(self.page(), self.program.prefix, self.required)
        except HttpError as error:
            raise CounterError(f"no metrics: {error}; see {self.log}") from error

    def require_counters(self) -> None:
        """Raise CounterError if its page lacks a required counter that is not one of the program's own.

        The program's own are known by release, and some appear only once they rise.
        """
        names = [name for name in self.required if not self.program.counts(name)]
        if not names:
            return
        try:
            reasons = unreadable(names, metric_types(self.page()))
        except HttpError as error:
            raise CounterError(f"no metrics: {error}; see {self.log}") from error
        if reasons:
            message = f"the arm's `exercised` names {', '.join(reasons)}, which the server's metrics page does not have"
            raise CounterError(
                f"{message}: {'; '.join(reasons.values())}", code="no_such_counter"
            )

    def work(self, timeout_s: float) -> Work:
        """Return its progress. Raises HttpError, ValueError for a page that is garbled."""
        return read_work(self.page(timeout_s), self.program)

    def reset_caches(self, timeout_s: float = 20.0, *, tiers: bool = True) -> None:
        """Empty its caches, without `tiers` only the device's; retried while it refuses, as during transfers.

        Raises DeploymentError if it still refuses after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while not self.program.emptied(self.ask, tiers=tiers):
            if time.monotonic() > deadline:
                message = f"the server refused to reset its caches for {timeout_s:.0f} s; see {self.log}"
                raise DeploymentError(message, code="caches_not_reset")
            time.sleep(0.5)

    def warm_up(self, prompt_tokens: int) -> None:
        """Let it generate a few tokens from a long and a short prompt, before anything is measured.

        The first request triggers lazy initialisation, and a healthy server may be unable to generate: DeploymentError.
        """
        for length in (prompt_tokens, 16):
            if (
                self.program.generated(
                    self.ask, self.served_model, length, _GENERATED_S
                )
                < 1
            ):
                message = f"the server is healthy but generates nothing; see {self.log}"
                raise DeploymentError(message, code="generates_nothing")

    def stack(self) -> dict[str, Any]:
        """Return its release, and what it tells of its caches and of what is behind them; None for what it does not tell.

        Raises HttpError, CounterError.
        """
        self.version = self.program.version(self.ask)
        facts = asdict(self.program.facts(parse_samples(self.page()), self.ask))
        del facts["read_from"]
        return {"version": self.version, **facts}

    def require_loading_switchable(self) -> None:
        """Raise DeploymentError unless a request can switch loading off: by the release, and by what is configured."""
        facts = self.program.facts(parse_samples(self.page()), self.ask)
        if self.program.switches_loading(self.version, facts):
            return
        message = (
            f"requests cannot switch loading off: {self.program.title} {self.version} "
        )
        if facts.connector is None:
            message += "does not tell what is behind its device's cache; open its development endpoints"
        else:
            message += f"has {facts.connector or 'nothing'} behind its device's cache"
        raise DeploymentError(message, code="loading_not_switched")

    def require_declared(self, versions: Mapping[str, str]) -> None:
        """Read its version. Raises DeploymentError if version or model differ, as those of a foreign server."""
        program = self.program
        self.version, declared = self.program.version(self.ask), versions[program.name]
        if not same_release(self.version, declared):
            reported = f"{program.title} {self.version or 'of unknown version'}"
            message = f"the server is {reported}, the campaign declares {declared}"
            raise DeploymentError(
                message, code="other_version", found=self.version, declared=declared
            )
        names = self.program.models(self.ask)
        if self.served_model not in names:
            message = (
                f"the server serves {names}, the campaign declares {self.served_model}"
            )
            raise DeploymentError(
                message, code="other_model", found=names, declared=self.served_model
            )
