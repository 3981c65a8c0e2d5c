"""Runs programs of Python without starting it anew each time: forks of one process that has loaded the library.

Starting Python with pandas and the library takes ten times as long as most jobs of a small campaign. `Forks` is that
process; `python` in its folder `bin` has a script run by it as a process of its own, with the caller's arguments,
folder, environment and output, and ends with its exit status.
"""

import atexit
import contextlib
import importlib
import json
import os
import re
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

SAME_NUMBERS = {
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    "OPENBLAS_CORETYPE": "Haswell",
    "OPENBLAS_NUM_THREADS": "1",
    "ARROW_USER_SIMD_LEVEL": "AVX2",
    "TZ": "UTC",
    "LC_ALL": "C.UTF-8",
    "COLUMNS": "120",
}
"""Environment in which numbers and texts do not depend on the processor and its user: instructions that all have."""

_CLIENT = """#!{python} -ISE
import json, os, socket, sys
if len(sys.argv) < 2 or not sys.argv[1].endswith(".py"):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
server.connect({address!r})
asked = dict(argv=sys.argv[1:], cwd=os.getcwd(), env=dict(os.environ))
data = json.dumps(asked).encode()
socket.send_fds(server, [len(data).to_bytes(8, "big")], [0, 1, 2])
server.sendall(data)
code = server.recv(1)
sys.exit(code[0] if code else 1)
"""
_IMPORT = re.compile(r"^from (kveval[\w.]*) import", flags=re.MULTILINE)


def load(scripts: Iterable[Path]) -> None:
    """Import what scripts import of the library, and with it the libraries that it uses."""
    names = {name for path in scripts for name in _IMPORT.findall(path.read_text())}
    for name in sorted(names):
        importlib.import_module(name)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Path]:
    """Serve forks of this process until the end of the context; yield a folder with `python`."""
    folder.mkdir(parents=True)
    address = str(folder / "socket")
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(address)
    server.listen(64)
    client = folder / "bin" / "python"
    client.parent.mkdir()
    client.write_text(_CLIENT.format(python=sys.executable, address=address))
    client.chmod(0o755)
    child = in_fork(lambda: _serve(server))
    server.close()
    try:
        yield client.parent
    finally:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)


def in_fork(work: Callable[[], object], *, at_exit: bool = False) -> int:
    """Run `work` in a process of its own; return its id. Its exit status is 1 if it raised, else that of `work`.

    `at_exit`: whether what was registered with `atexit`, by this process too, is called as well.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if child := os.fork():
        return child
    code = 1
    try:
        code = int(work() or 0)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001  (as Python itself ends)
        traceback.print_exc()
    finally:
        if at_exit:
            atexit._run_exitfuncs()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _serve(server: socket.socket) -> None:
    while True:
        connection, _ = server.accept()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        in_fork(lambda connection=connection: _answer(server, connection))
        connection.close()


def _answer(server: socket.socket, connection: socket.socket) -> None:
    """Run what a client asks for, and send it the exit status."""
    server.close()
    size, streams, _, _ = socket.recv_fds(connection, 8, 3)
    data = b""
    while len(data) < int.from_bytes(size, "big"):
        data += connection.recv(1 << 16)
    request = json.loads(data)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    script = in_fork(lambda: _run(connection, **request), at_exit=True)
    _, status = os.waitpid(script, 0)
    connection.sendall(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))


def _run(
    connection: socket.socket, argv: list[str], cwd: str, env: dict[str, str]
) -> None:
    connection.close()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = argv
    sys.path[0] = str(Path(argv[0]).absolute().parent)
    runpy.run_path(argv[0], run_name="__main__")
