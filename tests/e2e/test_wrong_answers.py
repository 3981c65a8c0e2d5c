"""A tier that does not give back what it was given, on the real server: the check of answers finds it, and finds
nothing where nothing is wrong.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.config_files import BASE, CONFIG, LMCACHE, NATIVE, RAW
from tests.support.paths import REPOSITORY

from kveval.campaign.cell import Cell
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
# What replaces the copy of blocks from the tier to the device.
BREAKS = {
    "the last layer is not copied": """
def submit_load(self, job_id, src_spec, dst_spec):
    whole = self._group_pages
    self._group_pages = [dict(pages) for pages in whole]
    self._group_pages[0].pop(len(self._tier) - 1)
    try:
        return self._copy(job_id, self._tier, src_spec, self._device, dst_spec, dst_spec.group_sizes)
    finally:
        self._group_pages = whole
""",
    "one block in four is not copied": """
def submit_load(self, job_id, src_spec, dst_spec):
    for spec in (src_spec, dst_spec):
        spec.block_ids = spec.block_ids[[number % 4 > 0 for number in range(len(spec.block_ids))]]
    sizes = [len(src_spec.block_ids)]
    return self._copy(job_id, self._tier, src_spec, self._device, dst_spec, sizes)
""",
}


@pytest.fixture
def answers(tmp_path: Path) -> Callable[[Cell], Answers]:
    def ask(cell: Cell) -> Answers:
        specification = load_config(RAW["config"], CONFIG).specification(cell)
        model = write_served(specification.model.geometry, tmp_path / "model")
        (tmp_path / "raw").mkdir()
        with (
            supervisor(tmp_path / "registry.json") as processes,
            deployed(
                processes,
                specification,
                environments=[ENVIRONMENT],
                model_dir=model,
                files_in=tmp_path,
                log=tmp_path / "raw" / "server.log",
            ) as server,
        ):
            assert server.facts["random_weights"] == 1
            server.warm_up(specification.workload.first_prompt_tokens)
            server.reset_caches()
            tier = specification.budget.host_bytes > 0
            return server.check_answers(
                tier=tier, longest=specification.model.max_model_len
            )

    return ask


@pytest.mark.parametrize(
    "cell", [BASE, NATIVE, LMCACHE], ids=lambda cell: cell.scenario
)
def test_right_caches_change_no_answer(
    answers: Callable[[Cell], Answers], cell: Cell
) -> None:
    found = answers(cell)
    assert found.by_source.keys() == {"device", *(["tier"] if cell.cpu_blocks else [])}
    for source, compared in found.by_source.items():
        assert (compared.unchecked, compared.changed) == ("", 0), (
            f"{source}: {compared}"
        )
        assert compared.served_tokens > 0.5 * compared.prompt_tokens, source


@pytest.mark.parametrize("broken", BREAKS)
def test_a_tier_that_gives_back_less_than_it_got_is_found(
    answers: Callable[[Cell], Answers],
    broken: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plugins = tmp_path / "plugins"
    assert Vllm.plugins is not None
    shutil.copytree(Vllm.plugins, plugins)
    with (plugins / "kveval_host_offload.py").open("a") as module:
        module.write(f"\n{BREAKS[broken]}\nHostCopyWorker.submit_load = submit_load\n")
    monkeypatch.setattr(Vllm, "plugins", plugins)
    found = answers(NATIVE)
    assert found.wrong, found
    # It is the tier that is wrong, and not the device.
    assert found.device is not None
    assert (found.device.unchecked, found.device.changed) == ("", 0)
