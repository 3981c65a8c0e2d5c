"""One measurement as one transaction: adopt it if the store has it, else deploy, record, load, collect, seal,
tear down.

However a run ends, everything that it started is ended; its results are in the store completely or not at all.
"""

import contextlib
import json
import shutil
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kveval.engines.attached import AttachedEngine
from kveval.engines.job import Job, MeasurementError
from kveval.engines.local.engine import HostEngine
from kveval.engines.preflight import require_no_secret
from kveval.engines.protocol import Engine
from kveval.host.errors import Failure, code_of
from kveval.host.files import write_json
from kveval.host.processes import Terminated, stop_signals_raise, stop_when_orphaned
from kveval.host.redaction import Redactor
from kveval.measure.attempt import Attempt, utc_now
from kveval.measure.known_defects import recognised
from kveval.measure.progress import Progress
from kveval.store.run_file import Repeat
from kveval.store.store import RUN, Key, Store, key_of, pointer

__all__ = ["Job", "MeasurementError", "measure"]

_REPEATS = 2


def engine_of(job: Job) -> Engine:
    """Return the engine of the job. Raises MeasurementError when the job lacks what the engine needs."""
    if job.specification.engine == "local":
        return HostEngine(job)
    if job.specification.engine == "existing":
        return AttachedEngine(job)
    # Only now: the client of the cluster takes a second to import.
    from kveval.engines.kubernetes.engine import ClusterEngine  # noqa: PLC0415

    return ClusterEngine(job)


def measure(job: Job, output: Path, progress: Progress) -> None:
    """Write the pointer `output` to the job's measurement, adopted from the store or measured now.

    Raises MeasurementError when the specification is not the one the id was made from, and the engine's, generator's or
    recorder's own error when the run fails; the attempt's files are kept under `failed/` then. An attempt that a known
    defect ended is repeated, at most twice; a third one raises MeasurementError known_defect.
    """
    actual = job.specification.measurement_id
    if actual != job.measurement:
        raise MeasurementError(
            f"the specification has the id {actual}, the workflow asked for {job.measurement}: start snakemake again"
        )
    engine = engine_of(job)
    host = engine.hardware()
    alike = host["fingerprints"] if "fingerprints" in host else [host["fingerprint"]]
    keys = [Key(job.measurement, job.run, fingerprint) for fingerprint in alike]
    store = Store(job.store)
    if _adopt_if_stored(store, engine, keys, output, progress):
        return
    with (
        stop_signals_raise(),
        stop_when_orphaned(),
        engine.exclusive_host(progress.say),
    ):
        # Another job may have measured it while this one waited.
        if not _adopt_if_stored(store, engine, keys, output, progress):
            key = keys[0] if keys else Key(job.measurement, job.run, "")
            place, repeats = None, list[Repeat]()
            while place is None:
                place = _attempt(job, engine, key, store, host, progress, repeats)
            write_json(output, pointer(place, key))
            progress.note(state="measured", files=str(place))


def _adopt_if_stored(
    store: Store,
    engine: Engine,
    keys: Sequence[Key],
    output: Path,
    progress: Progress,
) -> bool:
    """Point to the stored measurement of the first key that has one to adopt; nobody deletes it meanwhile."""

    def accept(place: Path) -> bool:
        return engine.may_adopt(place, progress.say)

    with store.no_deletions():
        for key in keys:
            if (place := store.find(key, accept)) is not None:
                write_json(output, pointer(place, key))
                progress.note(state="adopted", files=str(place))
                progress.say(f"adopted the stored measurement {place}")
                return True
    return False


def _attempt(
    job: Job,
    engine: Engine,
    key: Key,
    store: Store,
    host: Mapping[str, Any],
    progress: Progress,
    repeats: list[Repeat],
) -> Path | None:
    """Measure; return the place in the store, None if a known defect ended the attempt, which is then in `repeats`."""
    engine.remove_leftovers(progress.say)
    for directory in store.partial():
        shutil.rmtree(directory, ignore_errors=True)
        progress.say(
            f"removed a folder that a killed run left unfinished: {directory.name}"
        )
    redactor = Redactor.of(job.secrets)
    require_no_secret(job.specification, redactor)
    engine.require_possible(store)
    engine.wait_until_quiet(progress.say)
    # Waiting for the host, and attempts before this one, do not count as time of the run.
    progress.begin = time.monotonic()
    scratch = store.scratch(key).absolute()
    progress.note(state="measuring", files=str(scratch))
    try:
        Attempt(job, scratch, engine, host, progress, redactor, repeats).perform()
        # The key is that of the hardware that served, which may be known only now.
        place = store.commit(
            scratch,
            key_of(json.loads((scratch / RUN).read_text())),
            accept=lambda place: engine.may_adopt(place, lambda message: None),
        )
    except BaseException as error:
        if not isinstance(error, Failure | Terminated):
            with contextlib.suppress(OSError):
                (scratch / "error.log").write_text(traceback.format_exc())
        redactor.folder(scratch)
        # Before the log that shows the defect is moved.
        defect = recognised(error, job.specification, job.known_defects)
        kept = store.keep_failed(scratch, key)
        progress.note(files=str(kept))
        progress.say(f"this attempt's files are kept in {kept}")
        if isinstance(error, Failure):
            message = str(error).replace(str(scratch), str(kept))
            if defect is None:
                raise MeasurementError(message, code=error.code) from error
            entry = job.known_defects[defect]
            attempt, known = (
                f"{kept.parent.name}/{kept.name}",
                f"{entry.title} ({entry.link})",
            )
            repeats.append(
                Repeat(
                    defect, entry.title, entry.link, entry.effect, attempt, utc_now()
                )
            )
            if len(repeats) > _REPEATS:
                attempts = [repeat.attempt for repeat in repeats]
                message += f"; known: {known}, {len(repeats)} attempts in a row, kept in {', '.join(attempts)}"
                raise MeasurementError(
                    message, code="known_defect", defect=defect, attempts=attempts
                ) from error
            progress.say(
                f"a known defect ended this attempt: {known}; measuring again, {len(repeats)} of {_REPEATS}"
            )
            return None
        if isinstance(error, OSError):
            raise MeasurementError(
                f"{error}; see {kept}/error.log", code=code_of(error)
            ) from error
        raise
    progress.say(f"measured: {place}")
    return place
