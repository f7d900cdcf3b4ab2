"""`--whole-steps`: no step of a search is derived from a shorter one."""

from pathlib import Path

import pytest

from tests.whole_searches.session import write_space
from tests.whole_searches.studies import ANSWERED, Run, start
from trainers.records.measurement import TIMED

pytestmark = [pytest.mark.ray, pytest.mark.search, pytest.mark.heavy]


def test_every_timed_step_has_all_its_micro_steps(tmp_path: Path) -> None:
    axes = {"engine": ("ddp",), "attention": ("sdpa",), "pp": (1, 2)}
    space = write_space(tmp_path / "tiny.py", num_layers=2, axes=axes, micro_batches=(1,), global_batch=12)
    argv = (str(space), "--name", "whole", "--whole-steps", "--repeats", "0", "--searcher", "sweep")
    with start(tmp_path, "whole", 1, *argv) as session:
        run = Run(path=tmp_path / "studies" / "whole", sessions=(session.end(),))
    assert run.sessions[0].code in ANSWERED, run.sessions[0].err
    timed = [measurement for measurement in run.measured if measurement.outcome in TIMED]
    assert {measurement.layout.pp for measurement in timed} == {1, 2}
    for measurement in timed:
        assert measurement.batch.grad_accum > {1: 3, 2: 8}[measurement.layout.pp], (
            "fewer would be timed without the option"
        )
        assert measurement.measured_grad_accum == measurement.batch.grad_accum and not measurement.step_time_derived
    assert "~" not in run.sessions[0].out.split("Fastest of")[1].split("tokens/s")[0]
