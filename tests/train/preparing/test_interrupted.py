"""`platform.prepare` cut short: killed, interrupted, on a full disk; it goes on."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.disks import small_disk
from tests.train.preparing.corpus import contents, texts
from trainers.data import ParquetTokens

pytestmark = pytest.mark.slow

MANY = 6
"""A number of shards below that of a whole run."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a file of more than 8 MiB of JSON lines, of which each MiB becomes a shard."""
    path = tmp_path_factory.mktemp("source") / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(4000)))
    assert path.stat().st_size > 8 * 2**20
    return path


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Returns the files that an undisturbed run writes."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert _start(source, out, workers=2).wait() == 0
    return contents(out)


def _start(source: Path, out: Path, *, workers: int = 1) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "platform.prepare", source, "--out", out, "--shard-mib", "1"]
    return subprocess.Popen(
        [*map(str, command), "--workers", str(workers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # as a shell's job: a signal to it reaches its workers too
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )


def _stopped(source: Path, out: Path, *, workers: int = 1, shards: int = 1) -> "subprocess.Popen[str]":
    """Returns a run that SIGSTOP holds after at least `shards` of its shards, with several to come."""
    end_s = time.monotonic() + 600
    while True:
        run = _start(source, out, workers=workers)
        while len(list(out.glob("*.parquet"))) < shards:
            assert time.monotonic() < end_s
            time.sleep(0.005)
        os.killpg(run.pid, signal.SIGSTOP)
        if len(list(out.glob("*.parquet"))) < MANY:
            return run
        # A busy machine let this process look too late: the run may be at its end.
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
        shutil.rmtree(out)


def test_a_killed_run_goes_on(source: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = _stopped(source, out, shards=2)
    workers = psutil.Process(first.pid).children(recursive=True)
    first.kill()
    first.wait()
    for worker in workers:
        worker.resume()
    _, alive = psutil.wait_procs(workers, timeout=600)
    assert not alive, "workers end with their driver"
    complete = {path: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
    num_shards = sum(name.endswith(".parquet") for name in undisturbed)
    assert 2 <= len(complete) <= MANY < num_shards, "a worker that goes on may end the shard that it writes"
    with pytest.raises(ValueError, match=r"is unfinished: run the python -m platform\.prepare command"):
        ParquetTokens(out, vocab_size=256, seq_len=4, global_batch=1)
    second = _start(source, out, workers=2)
    _, stderr = second.communicate()
    assert second.returncode == 0
    assert f"{len(complete)} of {num_shards} files are there from an earlier run." in stderr
    assert {path: path.stat().st_mtime_ns for path in complete} == complete
    assert contents(out) == undisturbed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_in_a_sentence(source: Path, tmp_path: Path, number: signal.Signals) -> None:
    run = _stopped(source, tmp_path / "out", workers=2)
    os.killpg(run.pid, number)
    os.killpg(run.pid, signal.SIGCONT)
    _, stderr = run.communicate(timeout=600)
    assert run.returncode == 130
    assert stderr.splitlines()[-1] == "Interrupted: the same command resumes."
    assert "Traceback" not in stderr


def test_a_killed_worker_is_told(source: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    run = _stopped(source, tmp_path / "out")
    for process in psutil.Process(run.pid).children():
        if "spawn_main" in " ".join(process.cmdline()):
            process.kill()
    os.killpg(run.pid, signal.SIGCONT)
    _, stderr = run.communicate(timeout=600)
    assert run.returncode == 3
    assert "a worker process was killed" in stderr and "Traceback" not in stderr
    assert _start(source, tmp_path / "out").wait() == 0
    assert contents(tmp_path / "out") == undisturbed


def test_a_full_disk_is_told(source: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        run = _start(source, disk / "out")
        _, stderr = run.communicate(timeout=600)
        assert run.returncode == 2
        assert "cannot be written" in stderr and "No space left on device" in stderr
        assert "Traceback" not in stderr
        complete = sorted((disk / "out").glob("*.parquet"))
        assert complete
        assert all(path.read_bytes() == undisturbed[path.name] for path in complete)


def test_two_runs_do_not_write_to_one_folder(source: Path, tmp_path: Path) -> None:
    first = _stopped(source, tmp_path / "out")
    second = _start(source, tmp_path / "out")
    _, stderr = second.communicate(timeout=600)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert second.returncode == 2
    assert "another run of this command writes to" in stderr
