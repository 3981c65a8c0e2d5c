"""How a program ended, from its log: in one line, and where in its code."""

import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_LONGEST = 300
_HEAD = re.compile(r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)(?::| +\d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\]) ?")
_GUIDELLM_HEAD = re.compile(r"^\d\d-\d\d-\d\d \d\d:\d\d:\d\d\|(?P<level>[A-Z]+) *\|[^ ]* - ")
_TELLING = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Failure|Interrupt)(?::|$)"
    r"|^[\w./-]+: error: |^(?:error|fatal|Error): "
    r"|^(?:Fatal Python error|terminate called|Segmentation fault|Bus error)"
    r"|\b(?:Out of memory|No space left on device|[Aa]ddress already in use)\b|^Killed\b"
)
# What says only that another process, whose own words stand above, has failed.
_HEARSAY = re.compile(r"CancelledError|KeyboardInterrupt|BrokenPipeError|ConnectionResetError|Context was terminated")
_FRAME = re.compile(r'^ +File "(?P<file>[^"]+)", line \d+, in (?P<function>\S+)$')


@dataclass(frozen=True)
class LogForm:
    """The particulars of a program's log.

    Attributes:
        speaker: what names a line's process at its beginning, in the group `who`.
        telling: lines that tell of a failure beside those of any program.
        hearsay: lines that report another process's failure beside those of any program.
        depths: how much nearer to the cause a process is, by a part of its name.
    """

    speaker: re.Pattern[str] | None = None
    telling: re.Pattern[str] | None = None
    hearsay: re.Pattern[str] | None = None
    depths: Mapping[str, int] = field(default_factory=dict)


PLAIN = LogForm()


def last_words(log: Path, offset: int = 0, *, secondary: bool = True, form: LogForm = PLAIN) -> str:
    """Return ': ' and the line of a log, read from byte `offset`, that tells why the program failed; or nothing.

    Lines that report another process's failure count only when there is nothing better, or not at all without
    `secondary`; of a program's processes the innermost is believed. `form`: of the program that wrote it.
    """
    telling = [found for found in _telling(_lines(log, offset), form) if secondary or found[0]]
    if not telling:
        return ""
    # The last of the best: earlier ones may have been survived.
    return ": " + max(enumerate(telling), key=lambda item: (*item[1][:2], item[0]))[1][2][:_LONGEST]


def _telling(lines: Iterable[str], form: LogForm) -> Iterable[tuple[bool, int, str]]:
    """Yield (is no wrapper, depth of the process, text) of every line that tells of a failure."""
    for who, text in _spoken(lines, form):
        if not _any(text, _TELLING, form.telling):
            continue
        depth = next((depth for name, depth in form.depths.items() if name in who), 0)
        yield not _any(text, _HEARSAY, form.hearsay), depth, text.strip()


@dataclass(frozen=True)
class Raised:
    """An exception as a traceback has it: its class, and the innermost frame, `line` being that line of code."""

    error: str
    file: str
    function: str
    line: str


def raised(log: Path, offset: int = 0, form: LogForm = PLAIN) -> list[Raised]:
    """Return the exceptions of the Python tracebacks in a log, read from byte `offset`; none of one that is not there.

    Processes that write at once are told apart, where `form` tells who speaks.
    """
    found: list[Raised] = []
    frames: dict[str, tuple[str, str, str]] = {}
    for who, text in _spoken(_lines(log, offset), form):
        frame = _FRAME.match(text)
        if frame is not None:
            frames[who] = (frame["file"], frame["function"], "")
        elif who in frames and text.startswith(" "):
            file, function, line = frames[who]
            # Below the code stand marks of its place.
            frames[who] = (file, function, line or text.strip())
        elif who in frames:
            found.append(Raised(text.partition(":")[0].strip(), *frames.pop(who)))
    return found


def _lines(log: Path, offset: int) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(offset)
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def _spoken(lines: Iterable[str], form: LogForm) -> Iterator[tuple[str, str]]:
    """Yield process and text, without what stands before it, of every line that is not below an error."""
    for line in lines:
        speaker = form.speaker.match(line) if form.speaker else None
        text = line[speaker.end() :] if speaker else line
        head = _HEAD.match(text) or _GUIDELLM_HEAD.match(text)
        if head is not None:
            if head["level"] in ("DEBUG", "INFO", "WARNING"):
                continue
            text = text[head.end() :]
        yield speaker["who"] if speaker else "", text


def _any(text: str, *patterns: re.Pattern[str] | None) -> bool:
    return any(pattern is not None and pattern.search(text) for pattern in patterns)


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
