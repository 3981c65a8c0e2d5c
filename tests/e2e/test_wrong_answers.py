"""A tier that does not give back what it was given, on the real server: the check of answers finds it, and finds
nothing where nothing is wrong.

Of the other arms' answers, test_every_arm.py.
"""

import shutil
from collections.abc import Iterator

import pytest
from tests.support.config_files import CONFIG, NATIVE, RAW
from tests.support.paths import REPOSITORY

from kveval.campaign.random_model import write_served
from kveval.configuration.loading import load_config
from kveval.engines.local.server import deployed
from kveval.host.processes import supervisor
from kveval.stacks.vllm import Vllm
from kveval.store.run_file import Answers

ENVIRONMENT = REPOSITORY / ".server-venv"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        not (ENVIRONMENT / "bin" / "guidellm").exists(),
        reason="no server environment: bash scripts/setup.sh server",
    ),
]
LAST_LAYER = "the last layer is not copied"
ONE_IN_FOUR = "another block in place of one block in 4, from block 0 on"
TRIES = [
    f"another block in place of one block in 25, from block {first} on"
    for first in (1, 9, 17)
]
# Copies blocks from the tier to the device as the file beside it says; without one, as it should.
BREAKABLE = f'''
import pathlib
import re

_DEFECT = pathlib.Path(__file__).with_name("defect")
_submit_load = HostCopyWorker.submit_load


def submit_load(self, job_id, src_spec, dst_spec):
    defect = _DEFECT.read_text() if _DEFECT.exists() else ""
    whole = self._group_pages
    if defect == "{LAST_LAYER}":
        self._group_pages = [dict(pages) for pages in whole]
        self._group_pages[0].pop(len(self._tier) - 1)
    mixed = re.search(r"one block in (\\d+), from block (\\d+)", defect)
    one_in, first = map(int, mixed.groups()) if mixed else (1, len(src_spec.block_ids))
    if first < len(src_spec.block_ids):
        src_spec.block_ids = src_spec.block_ids.copy()
        src_spec.block_ids[first::one_in] = src_spec.block_ids[first - 1]
    try:
        return _submit_load(self, job_id, src_spec, dst_spec)
    finally:
        self._group_pages = whole


HostCopyWorker.submit_load = submit_load
'''


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Answers]]:
    """The answers of one server, by the defect of its tier: none, then each."""
    folder = tmp_path_factory.mktemp("answers")
    assert Vllm.plugins is not None
    plugins = shutil.copytree(Vllm.plugins, folder / "plugins")
    with (plugins / "kveval_host_offload.py").open("a") as module:
        module.write(BREAKABLE)
    specification = load_config(RAW["config"], CONFIG).specification(NATIVE)
    model = write_served(specification.model.geometry, folder / "model")
    (folder / "raw").mkdir()
    found: dict[str, Answers] = {}
    with (
        pytest.MonkeyPatch.context() as patch,
        supervisor(folder / "registry.json") as processes,
    ):
        patch.setattr(Vllm, "plugins", plugins)
        with deployed(
            processes,
            specification,
            environments=[ENVIRONMENT],
            model_dir=model,
            files_in=folder,
            log=folder / "raw" / "server.log",
        ) as server:
            assert server.facts["random_weights"] == 1
            server.warm_up(specification.workload.first_prompt_tokens)
            for number, defect in enumerate(("", LAST_LAYER, ONE_IN_FOUR, *TRIES)):
                (plugins / "defect").write_text(defect)
                server.reset_caches()
                # Each try has prompts of its own, as each replica has.
                server.endpoints[0].number = number
                found[defect] = server.check_answers(
                    tier=True, longest=specification.model.max_model_len
                )
    yield found


def test_a_right_cache_changes_no_answer(answers: dict[str, Answers]) -> None:
    by_source = answers[""].by_source
    assert by_source.keys() == {"device", "tier"}
    for source, compared in by_source.items():
        assert (compared.unchecked, compared.changed) == ("", 0), (
            f"{source}: {compared}"
        )
        assert compared.served_tokens > 0.5 * compared.prompt_tokens, source


def test_a_tier_that_mixes_up_one_block_in_25_is_found(
    answers: dict[str, Answers],
) -> None:
    compared = [answers[defect] for defect in TRIES]
    assert all(comparison.wrong for comparison in compared), compared


@pytest.mark.parametrize("defect", [LAST_LAYER, ONE_IN_FOUR])
def test_a_tier_that_gives_back_less_than_it_got_is_found(
    answers: dict[str, Answers], defect: str
) -> None:
    found = answers[defect]
    assert found.wrong, found
    # It is the tier that is wrong, and not the device.
    assert found.device is not None
    assert (found.device.unchecked, found.device.changed) == ("", 0)
