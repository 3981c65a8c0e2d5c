"""A program beside a server that is one file and one entry is all that configuration and clusters ask for."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from tests.support.config_files import NATIVE, RELEASES, load, on_cluster
from tests.support.fake_cluster import Call, FakeTransport
from tests.support.other_server.adapter import Toy, no_tier
from tests.support.other_server.beside import Shelf, shelved

from kveval.campaign.problems import ConfigError
from kveval.configuration.config import Config
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.transport import Reply
from kveval.engines.kubernetes.manifests.context import RunContext
from kveval.engines.kubernetes.manifests.rendering import PORTS, render
from kveval.engines.kubernetes.pods import sidecar_container
from kveval.stacks.model_server import Arm
from kveval.stacks.registry import SERVERS, SIDECARS

PORTS_WITH_SHELF = {**PORTS, "shelf_port": Shelf.ports["shelf_port"].number}
IMAGES = {"cpu_server": "registry/toy:1.5", "shelf": "registry/shelf:2.0"}


class Shelving(Toy):
    """A server whose tier in host memory is a shelf beside it."""

    arms: ClassVar[dict[str, Arm]] = {"none": no_tier, "native": shelved}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SERVERS, "toy", Shelving())
    monkeypatch.setitem(SIDECARS, "shelf", Shelf)


def configured(folder: Path, **changes: Any) -> Config:
    """Return a campaign of one cell on a cluster; `changes`: keys of its server."""
    entry = ([NATIVE.model], [NATIVE.scenario], [NATIVE.cpu_blocks])
    own = {"program": "toy", "version": "1.5", "build": "toy-cpu", "images": IMAGES}
    own |= {"device_blocks": 1120, "max_model_len": 16384}
    files = on_cluster(
        RELEASES[-1], [entry], server=own | changes, site={"address": "service"}
    )
    del files["config"]["server"]["vllm"], files["config"]["server"]["lmcache"]
    files["config"]["scenarios"] = {
        "ordered": {
            "extends": NATIVE.scenario,
            "companions": {"shelf": {"args": ["--order", "new"], "env": {"A": "1"}}},
        }
    }
    files["config"]["matrix"][0]["scenarios"] = ["ordered"]
    config: Config = load(folder, files)
    return config


def run_context(config: Config, transport: FakeTransport) -> RunContext:
    specification, site = config.specification(config.cells[0]), config.campaign.cluster
    assert site is not None
    api = Api(transport, outage_s=0)
    ports = PORTS_WITH_SHELF
    return RunContext(specification, site, 1, "spring", ports, "0", api)


def test_it_is_deployed_in_a_pod_of_its_own_with_a_scenarios_settings(
    tmp_path: Path,
) -> None:
    context = run_context(configured(tmp_path), FakeTransport())
    documents = {
        (document["kind"], document["metadata"]["labels"]["kveval.dev/component"]): (
            document
        )
        for document in render(context)
    }
    [container] = documents["Deployment", "shelf"]["spec"]["template"]["spec"][
        "containers"
    ]
    tier_bytes = context.specification.budget.tier_bytes
    assert container["command"] == [
        *("shelfd", "--port", "7000", "--room", str(tier_bytes)),
        *("--order", "new"),
    ]
    assert (container["image"], container["env"]) == (
        "registry/shelf:2.0",
        [{"name": "A", "value": "1"}],
    )
    assert container["readinessProbe"]["httpGet"] == {"path": "/open", "port": "shelf"}
    memory = container["resources"]["limits"]["memory"]
    assert 0 <= int(memory.removesuffix("Mi")) * 2**20 - 2 * tier_bytes < 2**20
    [port] = documents["Service", "shelf"]["spec"]["ports"]
    assert (port["name"], port["port"]) == ("shelf", 7000)
    server = documents["Deployment", "model-server"]["spec"]["template"]["spec"]
    address = f"{context.name('shelf')}.{context.namespace}.svc:7000"
    assert address in server["containers"][0]["args"]
    assert yaml.safe_dump_all([*documents.values()])


def test_it_is_asked_in_its_pod(tmp_path: Path) -> None:
    def answer(call: Call) -> Reply:
        _, _, path = call.path.partition("/pods/shelf-0:7000/proxy")
        return Reply(200, {}, {"/release": b"2.0", "/count": b"3"}[path])

    context = run_context(configured(tmp_path), FakeTransport(answer))
    pod = {
        "metadata": {"name": "shelf-0"},
        "spec": {"containers": [{"name": "shelf", "command": ["shelfd"]}]},
    }
    shelf = SIDECARS["shelf"].in_pod(
        sidecar_container(context, pod, "shelf", "shelf.log")
    )
    shelf.identify({})
    assert (shelf.argv, shelf.log, shelf.version) == (["shelfd"], "shelf.log", "2.0")
    assert shelf.counters() == {"shelf_things": 3.0}


def test_without_an_image_it_is_named_with_where_to_give_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        configured(tmp_path, images={"cpu_server": "registry/toy:1.5"})
    [problem] = error.value.problems
    assert (problem.key, problem.code) == ("server.images", "no_image_known")
    assert "shelf" in problem.message
    assert "server.images.shelf" in problem.valid


def test_images_of_programs_that_nobody_knows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        configured(tmp_path, images=IMAGES | {"shelv": "registry/shelf:2.0"})
    [problem] = error.value.problems
    assert (problem.key, problem.code) == ("server.images.shelv", "unknown_name")
    assert problem.near[0] == "shelf"
