"""What a log says about the end of the program that wrote it, in one line."""

import re
import signal
from collections.abc import Iterable
from pathlib import Path

_LONGEST = 300
# vLLM puts who speaks before every line: "(EngineCore pid=12) ", then, unless it is plain output, "ERROR 11-21 ...] ".
_SPEAKER = re.compile(r"^\((?P<who>[^()]+?) pid=\d+\)\s?")
_HEAD = re.compile(r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)(?::| +\d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\]) ?")
_GUIDELLM_HEAD = re.compile(r"^\d\d-\d\d-\d\d \d\d:\d\d:\d\d\|(?P<level>[A-Z]+) *\|[^ ]* - ")
_TELLING = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Failure|Interrupt)(?::|$)"
    r"|^[\w./-]+: error: |^(?:error|fatal|Error): "
    r"|^(?:Fatal Python error|terminate called|Segmentation fault|Bus error)"
    r"|\b(?:Out of memory|No space left on device|[Aa]ddress already in use)\b|^Killed\b"
    r"|\bproc \S+ died unexpectedly"
)
# What says only that another process, whose own words stand above, has failed.
_WRAPPER = re.compile(
    r"Engine core initialization failed|EngineDeadError|EngineCore (?:encountered an issue|failed to start)"
    r"|initialization failed due to an exception in a background process|See (?:root cause|stack trace)"
    r"|CancelledError|KeyboardInterrupt|BrokenPipeError|ConnectionResetError|Context was terminated"
)
# A process started by another fails first; the deeper one knows the cause.
_DEPTH = {"Worker": 2, "EngineCore": 1}


def last_words(log: Path, offset: int = 0, *, secondary: bool = True) -> str:
    """Return ': ' and the line of a log, read from byte `offset`, that tells why the program failed; or nothing.

    Lines that report another process's failure count only when there is nothing better, or not at all without
    `secondary`; of the server's processes the innermost is believed.
    """
    try:
        with log.open("rb") as file:
            file.seek(offset)
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    telling = [found for found in _telling(lines) if secondary or found[0]]
    if not telling:
        return ""
    # The last of the best: earlier ones may have been survived.
    return ": " + max(enumerate(telling), key=lambda item: (*item[1][:2], item[0]))[1][2][:_LONGEST]


def _telling(lines: Iterable[str]) -> Iterable[tuple[bool, int, str]]:
    """Yield (is no wrapper, depth of the process, text) of every line that tells of a failure."""
    for line in lines:
        speaker = _SPEAKER.match(line)
        text = line[speaker.end() :] if speaker else line
        head = _HEAD.match(text) or _GUIDELLM_HEAD.match(text)
        if head is not None:
            if head["level"] in ("DEBUG", "INFO", "WARNING"):
                continue
            text = text[head.end() :]
        if not _TELLING.search(text):
            continue
        who = speaker["who"] if speaker else ""
        depth = next((depth for name, depth in _DEPTH.items() if name in who), 0)
        yield not _WRAPPER.search(text), depth, text.strip()


def exit_words(code: int) -> str:
    """Say how a process ended, from its return code as subprocess gives it."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = "; the kernel does that when memory runs out, see dmesg" if -code == signal.SIGKILL else ""
    return f"killed by {name}{hint}"
