"""Why a program ended, from its log: the decisive line, and the exceptions with their places in the code."""

import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_LONGEST = 300
_HEAD = re.compile(
    r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)(?::| +\d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\]) ?"
)
_GUIDELLM_HEAD = re.compile(
    r"^\d\d-\d\d-\d\d \d\d:\d\d:\d\d\|(?P<level>[A-Z]+) *\|[^ ]* - "
)
_TELLING = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Failure|Interrupt)(?::|$)"
    r"|^[\w./-]+: error: |^(?:error|fatal|Error): "
    r"|^(?:Fatal Python error|terminate called|Segmentation fault|Bus error)"
    r"|\b(?:Out of memory|No space left on device|[Aa]ddress already in use)\b|^Killed\b"
)
# Lines that only report the failure of another process, whose own message is above.
_HEARSAY = re.compile(
    r"CancelledError|KeyboardInterrupt|BrokenPipeError|ConnectionResetError|Context was terminated"
)
_FRAME = re.compile(r'^ +File "(?P<file>[^"]+)", line \d+, in (?P<function>\S+)$')


@dataclass(frozen=True)
class LogForm:
    """The particulars of a program's log.

    Attributes:
        speaker: the process's name at the beginning of a line, in the group `who`.
        telling: lines that report a failure, in addition to those common to all programs.
        hearsay: lines that report another process's failure, in addition to those common to all programs.
        depths: by a part of a process's name, how close it is to the cause; larger is closer.
    """

    speaker: re.Pattern[str] | None = None
    telling: re.Pattern[str] | None = None
    hearsay: re.Pattern[str] | None = None
    depths: Mapping[str, int] = field(default_factory=dict)


PLAIN = LogForm()


def last_words(
    log: Path,
    offset: int = 0,
    *,
    secondary: bool = True,
    form: LogForm = PLAIN,
    only_line: bool = False,
) -> str:
    """Return ': ' and the line of a log, read from byte `offset`, that says why the program failed; "" if none does.

    Lines that report another process's failure count only if there are no others, and never without `secondary`; of a
    program's processes, the innermost one's lines are preferred. `form`: that of the program that wrote the log;
    `only_line`: the only line of a log counts, too, as of a program that ended by itself.
    """
    lines = _lines(log, offset)
    telling = [line for line in _telling(lines, form) if secondary or line[0]]
    if not telling:
        return _only_line(lines, form) if only_line else ""
    # The last of the best lines: the program may have continued after earlier ones.
    return (
        ": "
        + max(enumerate(telling), key=lambda item: (*item[1][:2], item[0]))[1][2][
            :_LONGEST
        ]
    )


def _only_line(lines: Iterable[str], form: LogForm) -> str:
    written = [line for line in lines if line.strip()]
    spoken = [text.strip() for _, text in _spoken(written, form)]
    alone = (
        len(written) == 1
        and bool(spoken)
        and not spoken[0].startswith(("DEBUG", "INFO", "WARNING"))
    )
    return f": {spoken[0][:_LONGEST]}" if alone else ""


def _telling(lines: Iterable[str], form: LogForm) -> Iterable[tuple[bool, int, str]]:
    """Yield (is the process's own failure, depth of the process, text) of every line that reports a failure."""
    for who, text in _spoken(lines, form):
        if not _any(text, _TELLING, form.telling):
            continue
        depth = next((depth for name, depth in form.depths.items() if name in who), 0)
        yield not _any(text, _HEARSAY, form.hearsay), depth, text.strip()


@dataclass(frozen=True)
class Raised:
    """An exception from a traceback: its class, and the innermost frame; `line`: the code of that line."""

    error: str
    file: str
    function: str
    line: str


def raised(log: Path, offset: int = 0, form: LogForm = PLAIN) -> list[Raised]:
    """Return the exceptions of the Python tracebacks in a log, read from byte `offset`; [] if there is no log.

    Interleaved tracebacks of several processes are separated if `form` has a `speaker`.
    """
    exceptions: list[Raised] = []
    frames: dict[str, tuple[str, str, str]] = {}
    for who, text in _spoken(_lines(log, offset), form):
        frame = _FRAME.match(text)
        if frame is not None:
            frames[who] = (frame["file"], frame["function"], "")
        elif who in frames and text.startswith(" "):
            file, function, line = frames[who]
            # Below the line of code, markers such as ^^^ may follow.
            frames[who] = (file, function, line or text.strip())
        elif who in frames:
            exceptions.append(Raised(text.partition(":")[0].strip(), *frames.pop(who)))
    return exceptions


def _lines(log: Path, offset: int) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(offset)
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def _spoken(lines: Iterable[str], form: LogForm) -> Iterator[tuple[str, str]]:
    """Yield process and text, without its prefix, of every line that is not of a level below ERROR."""
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
    """Return in words how a process ended, from its return code as in subprocess (negative: a signal)."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = (
        "; the kernel does that when memory runs out, see dmesg"
        if -code == signal.SIGKILL
        else ""
    )
    return f"killed by {name}{hint}"
