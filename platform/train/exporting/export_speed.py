"""Measures the speed of an export on this machine and compares it with this project's trainer on the same steps."""

import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from platform.common.errors import ClusterError, InputError
from platform.common.text import figure
from platform.train.exporting.formats import LAUNCH, STEPS, Device, write_torchrun
from platform.train.training_folder import TrainingFolder, steps_of
from trainers.records.plain_files import read_json
from trainers.records.training import TrainingPlan

_WARM_UP = 3
"""Number of first steps that the speed leaves out."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TimedRun:
    """Losses and seconds of the first steps of a training."""

    losses: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def step_s(self) -> float:
        return statistics.median(self.seconds[_WARM_UP:])

    @property
    def spread(self) -> float:
        """Half the interquartile range of the steps' seconds, as a share of their median."""
        low, _, high = statistics.quantiles(self.seconds[_WARM_UP:], n=4)
        return (high - low) / 2 / self.step_s


def check_devices(plan: TrainingPlan, device: Device, steps: int) -> None:
    """Checks the number of devices and of steps, before any device is used.

    Raises:
        InputError: there are too few devices, or too few steps to compute a speed.
    """
    if steps < _WARM_UP + 2:
        raise InputError(f"--run takes at least {_WARM_UP + 2} steps, of which {_WARM_UP} warm up, got {steps}")
    per_step = plan.tokens_per_step(plan.phases[0])
    if (num_steps := -(-plan.phases[0].end_tokens // per_step)) < _WARM_UP + 2:
        raise InputError(
            f"--run takes at least {_WARM_UP + 2} steps, of which {_WARM_UP} warm up, and the training has {num_steps}:"
            f" give --tokens {(_WARM_UP + 2) * per_step} or more"
        )
    world_size, num_gpus = plan.phases[0].layout.world_size, _num_gpus()
    if device == "cuda" and num_gpus < world_size:
        raise InputError(
            f"--run starts {world_size} processes with a GPU each, this machine has {num_gpus}: leave --run out,"
            " or give --device cpu"
        )


def run_plain(out: Path, steps: int, device: Device) -> TimedRun:
    """Runs an export to another program and returns its steps.

    Raises:
        ClusterError: it failed; the text has its last error.
    """
    _run(out, ["--steps", str(steps)], device)
    recorded_steps = read_json(out / STEPS)
    return TimedRun(losses=tuple(recorded_steps["losses"]), seconds=tuple(recorded_steps["seconds"]))


def run_ours(plan: TrainingPlan, steps: int, device: Device) -> TimedRun:
    """Runs this project's trainer under torchrun in a temporary folder and returns its steps.

    Raises:
        ClusterError: it failed; the text has its last error.
    """
    with tempfile.TemporaryDirectory(prefix="layout-export-") as folder:
        write_torchrun(plan, Path(folder))
        return run_torchrun(Path(folder), steps, device)


def run_torchrun(out: Path, steps: int, device: Device) -> TimedRun:
    """Runs an export to torchrun, from the newest checkpoint if there is one, and returns its steps.

    Raises:
        ClusterError: it failed; the text has its last error.
    """
    _run(out, ["--steps", str(steps), "--report-s", "0"], device)
    records = steps_of(TrainingFolder(out).read_records())
    newest = [record for record in records if record.attempt == records[-1].attempt]
    return TimedRun(
        losses=tuple(loss for record in newest for loss in record.losses),
        seconds=tuple(record.steps_s / len(record.losses) for record in newest for _ in record.losses),
    )


def compared(name: str, theirs: TimedRun, ours: TimedRun, *, tokens_per_step: int) -> str:
    slower = theirs.step_s / ours.step_s - 1
    return (
        f"The same layout in {name}: {abs(slower):.1%} {'slower' if slower >= 0 else 'faster'}:"
        f" {_speed(theirs, tokens_per_step)}, in this project {_speed(ours, tokens_per_step)}, over"
        f" {len(theirs.seconds) - _WARM_UP} steps each, one after the other on this machine; loss after"
        f" {len(theirs.losses)} steps {theirs.losses[-1]:.4f} and {ours.losses[len(theirs.losses) - 1]:.4f}."
    )


def beside_search(run: TimedRun, promised_tokens_per_s: float | None, *, tokens_per_step: int) -> str:
    """Returns a sentence that compares the speed under torchrun with the search's measurement."""
    speed = f"Under torchrun, without Ray: {_speed(run, tokens_per_step)}"
    if promised_tokens_per_s is None:
        return f"{speed}; no search measured this layout."
    off = tokens_per_step / run.step_s / promised_tokens_per_s - 1
    return f"{speed}, {abs(off):.1%} {'below' if off < 0 else 'above'} the search's {figure(promised_tokens_per_s)}."


def _speed(run: TimedRun, tokens_per_step: int) -> str:
    return f"{figure(tokens_per_step / run.step_s)} tokens/s (±{run.spread:.1%})"


def _run(out: Path, options: list[str], device: Device) -> None:
    process = subprocess.run(
        [str(out / LAUNCH), *options], env=_environment(device), capture_output=True, text=True, check=False
    )
    if process.returncode:
        lines = [line.strip() for line in process.stderr.splitlines() if line.strip()]
        reason = next((line for line in lines if "Error" in line or line.startswith(("error:", "rank"))), "")
        (out / "failed.log").write_text(process.stdout + process.stderr)
        raise ClusterError(f"{out / LAUNCH} failed ({reason[:300] or 'without a message'}): see {out / 'failed.log'}")


def _environment(device: Device) -> Mapping[str, str]:
    variables = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    if device == "cpu":
        variables |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    return variables


def _num_gpus() -> int:
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return 0
