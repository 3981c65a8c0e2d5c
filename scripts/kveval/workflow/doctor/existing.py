"""Findings about servers that answer already, and about this host, which loads and records them."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from kveval.campaign.campaign_file import ExistingServer
from kveval.campaign.specification import Specification
from kveval.configuration.config import Config
from kveval.engines.servers.endpoint import Endpoint
from kveval.engines.servers.errors import DeploymentError
from kveval.host.errors import Failure
from kveval.host.findings import FindingRow, error, ok, pluralize
from kveval.host.http import HttpError, fetch_from
from kveval.stacks.counters import CounterError
from kveval.stacks.lmcache import LMCacheServer
from kveval.stacks.registry import server_of
from kveval.stacks.sidecar import SidecarError
from kveval.stacks.versions import same_release
from kveval.workflow.doctor.local import LocalFacts, disk_finding, pcp_finding

_ANSWER_S = 10.0
_METRICS_CLOSED = "open its metrics: without them nothing proves that a tier was active"
_NO_LOG = Path("the log of whoever started it")


def examine_existing(
    config: Config, specifications: Sequence[Specification], facts: LocalFacts
) -> Iterator[FindingRow]:
    """Yield a finding for each arm's server, and those about this host. Nothing is switched."""
    arms = {one.cell.scenario: one for one in reversed(specifications)}
    for arm, server in config.campaign.existing.items():
        if arm in arms:
            required = config.required_counters(arms[arm].cell)
            names = [one["counter"] for one in required]
            for address in server.metrics or (server.url,):
                yield _server(arm, address, server, arms[arm], names)
            if server.metrics:
                yield _gateway(arm, server, arms[arm])
            if server.lmcache is not None and server.switch is None:
                yield _lmcache(arm, server.lmcache, arms[arm])
    yield disk_finding(config, specifications, facts)
    yield pcp_finding(facts)
    yield _generator(config, facts)


def _gateway(
    arm: str, server: ExistingServer, specification: Specification
) -> FindingRow:
    """Return whether the model is served where the load goes, in front of the replicas."""
    program, name = server_of(specification.versions), specification.model.served_name
    key = os.environ.get(server.key, "") if server.key else ""
    endpoint = Endpoint(program, name, fetch_from(server.url, key), log=_NO_LOG)
    try:
        names = [] if server.switch else program.models(endpoint.ask)
    except HttpError as failure:
        fix = f"existing.{arm}.url: where the gateway answers"
        return error(arm, str(failure), fix, "no_answer")
    if server.switch or name in names:
        what = f"{server.url}: in front of {pluralize(len(server.metrics), 'server')}"
        return ok(arm, what)
    said = f"{server.url} serves {', '.join(names) or 'no model'}, not {name}"
    return error(arm, said, f"existing.{arm}.served_model", "other_model")


def _lmcache(arm: str, address: str, specification: Specification) -> FindingRow:
    """Return whether LMCache's server beside the arm's answers, and is of the declared version."""
    beside = LMCacheServer([], _NO_LOG, fetch_from(address))
    try:
        beside.identify(specification.versions)
        beside.counters()
    except SidecarError as failure:
        fix = f"existing.{arm}.lmcache: where LMCache's HTTP server answers, or server.lmcache: its version"
        return error(arm, str(failure), fix, failure.code)
    return ok(arm, f"{address}: LMCache {beside.version}")


def _server(
    arm: str,
    url: str,
    server: ExistingServer,
    specification: Specification,
    required: Sequence[str],
) -> FindingRow:
    """Return what the arm's server answers, or that it is brought into service only before its runs.

    `url`: its address, that of one of several replicas; `required`: names of the counters that prove the arm active.
    """
    if server.key and not os.environ.get(server.key):
        said = f"{server.key}, the key of {server.url}, is not set"
        return error(arm, said, f"export {server.key}=...", "no_key")
    if server.switch is not None:
        said = f"before each of its runs: {server.switch}"
        return ok(arm, f"{said} (at most {server.switch_limit_s:g} s; not run now)")
    program = server_of(specification.versions)
    key = os.environ[server.key] if server.key else ""
    fetch = fetch_from(url, key)
    name = specification.model.served_name
    endpoint = Endpoint(program, name, fetch, log=_NO_LOG, required=required)
    try:
        endpoint.ask(program.health_path, timeout_s=_ANSWER_S)
        endpoint.require_declared(specification.versions)
    except HttpError as failure:
        fix = f"existing.{arm}.url: where a server answers, or start it"
        return error(arm, str(failure), fix, "no_answer")
    except DeploymentError as failure:
        fix = f"server.{program.name}, or existing.{arm}.served_model: what answers"
        return error(arm, str(failure), fix, failure.code)
    said = f"{url}: {program.title} {endpoint.version} serves {name}"
    return _counters(arm, server, endpoint, said)


def _counters(
    arm: str, server: ExistingServer, endpoint: Endpoint, said: str
) -> FindingRow:
    """Return whether the server shows its counters, and can switch loading off where the arm needs it."""
    try:
        endpoint.counters()
        if server.lmcache is None:
            endpoint.require_counters()
        if not server.load_from_tier:
            endpoint.require_loading_switchable()
            said += "; requests switch loading from its tier off"
    except DeploymentError as failure:
        fix = f"serve the arm with the tier at {server.url}, with its own connector"
        return error(arm, str(failure), fix, failure.code)
    except (CounterError, HttpError) as failure:
        fix, code = _METRICS_CLOSED, "no_metrics"
        if failure.code == "no_such_counter":
            fix, code = (
                f"scenarios.{arm}.exercised: counters of that page",
                failure.code,
            )
        return error(arm, f"{said}; {failure}", fix, code)
    return ok(arm, said)


def _generator(config: Config, facts: LocalFacts) -> FindingRow:
    """Return whether this host has the declared load generator."""
    declared = config.campaign.server.guidellm
    install = "bash scripts/setup.sh server"
    if isinstance(facts.versions, Failure):
        return error("guidellm", str(facts.versions), install, "none_there")
    version = facts.versions.get("guidellm")
    said = f"{version or 'not installed'}; the campaign declares {declared}"
    if version is not None and same_release(version, declared):
        return ok("guidellm", said)
    return error("guidellm", said, install, found=version, declared=declared)
