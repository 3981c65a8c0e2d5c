"""What a run says of this host beside its levels."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.fault_chain import stand_in_environment

from kveval.engines.local.deployer import HostDeployer
from kveval.host.cores import divided, usable


@pytest.mark.parametrize("run", [1, 2, 3])
def test_a_cells_first_run_measures_how_fast_this_host_copies(
    run: int, tmp_path: Path
) -> None:
    environment = stand_in_environment(tmp_path / "server")
    job: Any = SimpleNamespace(run=run, build=None, server_environment=environment)
    no_processes: Any = None
    cores = divided(usable())
    deployer = HostDeployer(job, environment, cores, tmp_path, no_processes, print)
    facts = deployer.facts()
    assert facts["cores"]["server"] == sorted(cores.server)
    assert ("copy_bandwidth" in facts) == (run == 1)
