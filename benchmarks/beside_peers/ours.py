"""This project's guided search, run by its command; its journal states when each measurement was made."""

import datetime
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.beside_peers import trial
from benchmarks.beside_peers.record import Record
from trainers.records import journal, journal_lines
from trainers.records.measurement import Measurement, Outcome


def main(name: str, changes: tuple[str, ...], gpus: int, seed: int, limit_s: float, out: Path) -> None:
    """Searches until the limit, then writes the journal's measurements as trials of this peer."""
    began_unix_s = time.time()
    studies = out.parent.absolute() / f"{out.stem}-studies"
    study = f"ours-{began_unix_s:.0f}"  # an interrupted run's study is another one
    command = [sys.executable, "-m", "platform.search", name, "--studies", str(studies), "--name", study]
    command += ["--repeats", "0", "--seed", str(seed), "--gpus", str(gpus), "--address", "local"]
    command += [part for change in changes for part in ("--set", change)]
    log = out.with_suffix(".log").open("w")
    with subprocess.Popen([*command, "--time-budget-s", f"{limit_s:g}"], stderr=log, stdout=log) as process:
        try:
            process.wait(limit_s + 30)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGINT)
            process.wait(60)
    record = Record(out, began_unix_s)
    for line in (studies / study / "journal.jsonl").read_text().splitlines():
        entry = journal_lines.from_line(line)
        if isinstance(entry, journal.Measured) and entry.measurement.outcome is not Outcome.SKIPPED:
            _write(record, entry.measurement, _unix_s(entry.at))


def _write(record: Record, measured: Measurement, at_unix_s: float) -> None:
    choice = {axis: getattr(measured.layout, axis) for axis in trial.AXES}
    ok = measured.outcome is Outcome.OK
    record.trial(
        outcome="ok" if ok else "oom" if measured.outcome is Outcome.OOM else "failed",
        choice={**choice, "micro_batch": measured.batch.micro_batch},
        tokens_per_s=measured.tokens_per_s if ok else None,
        at_unix_s=at_unix_s,
    )


def _unix_s(iso_time: str) -> float:
    return datetime.datetime.fromisoformat(iso_time).timestamp()
