"""Sends a campaign's first level to GuideLLM's mock server, with the command line that a run would have.

    python benchmarks/rehearse_load.py CAMPAIGN.yaml SERVER_ENVIRONMENT

Both are the environment's own programs, with as many worker processes as on a host with 16 processors. Fails unless requests
were answered, and prints how many. The prefixes are not primed: the mock server has no cache.
"""

import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from kveval.configuration.loading import load_config  # noqa: E402
from kveval.engines.local.deployer import ensure_model  # noqa: E402
from kveval.load import guidellm as load  # noqa: E402
from kveval.load.reports.reading import read_report  # noqa: E402

_CPUS = 16
_LIMIT_S = 240.0


def free_port() -> int:
    """Return a port of this host that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_for(url: str, server: "subprocess.Popen[bytes]") -> None:
    """Wait until a server answers. Raises SystemExit if it ends before, or does not answer in time."""
    limit = time.monotonic() + _LIMIT_S
    while time.monotonic() < limit and server.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=1).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise SystemExit("the mock server does not answer")


def main(campaign: Path, environment: Path) -> None:
    """Run the mock server and the load, and read the report as a run would."""
    config = load_config(campaign, ROOT / "config")
    specification = config.specification(config.cells[0])
    workload = specification.workload.model_copy(update={"prime": False})
    level = load.Level(workload.levels[0], 0, 1)
    guidellm = (environment / "bin" / "guidellm").absolute()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        tokenizer = ensure_model(specification, scratch)
        assert tokenizer is not None, "the campaign must have random weights"
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        target = load.LoadTarget(url, specification.model.served_name, tokenizer)
        mock = [guidellm, "mock-server", "--host", "127.0.0.1", "--port", str(port)]
        mock += ["--model", target.model]
        mock += ["--ttft-ms", "20", "--itl-ms", "2"]
        env = load.environment(_CPUS, workload)
        server = subprocess.Popen(mock, env=env)
        try:
            wait_for(url, server)
            report = scratch / "level.json"
            load.write_data(workload, level, report)
            argv = load.command(str(guidellm), workload, level, target, report)
            subprocess.run(argv, env=env, check=True, timeout=_LIMIT_S)
        finally:
            server.terminate()
            server.wait(20)
        (read,) = read_report(report).levels
        answered = len(read.requests)
        print(f"{answered} requests, {load.worker_processes(_CPUS, workload)} workers")
        if not answered:
            raise SystemExit("no request was answered")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
