"""Studies whose budget is too short for all of it: each further session of that budget goes on."""

import pytest

from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.study.study import Study
from search_spaces.candidate import Candidate
from tests.samples import layout
from tests.search.loop.backend import RECIPE, Backend, Make, history_of, result
from trainers.records.job import GateSize, Job
from trainers.records.journal import End, Resume
from trainers.records.measurement import Measurement
from trainers.spec.batch import BatchPoint

CANDIDATES = tuple(
    Candidate(recipe=RECIPE, layout=layout(dp_shard=2, attention="sdpa", bucket_mib=n), micro_batches=(4,))
    for n in range(1, 4)
)
RULES = ConfirmationRules(repeats=1, gate=GateSize(steps=20, sequences=32))


@pytest.mark.parametrize("fastest", [1, 2, 3])
@pytest.mark.parametrize("time_s", [300.0, 420.0, 600.0])
def test_each_session_runs_something_until_nothing_is_missing(
    fastest: int, time_s: float, make: Make, backend: Backend, study: Study
) -> None:
    """Plays trials of 155 s, five whole steps among them; a session starts within 50 s."""
    backend.start_s, backend.rung_s, backend.gate_s = 25.0, 130.0, 10.0

    def play(job: Job, batch: BatchPoint) -> Measurement:
        speed = 4000.0 + 40.0 * (job.layout.bucket_mib == fastest)
        steps: dict[str, object] = {"step_times_s": (26.0,) * 5, "windows_s": (26.0,) * 3, "warmup_steps": 2}
        return result(job, batch, speed, steps_per_window=1, **steps)

    backend.play = play
    for _ in range(20):
        begun = len(backend.jobs)
        loop = make(CANDIDATES, rules=RULES, time_s=time_s)
        backend.run(loop)
        if loop.tried_all and not loop.left_out:
            assert {measurement.layout for measurement in history_of(study).measurements} == {
                candidate.layout for candidate in CANDIDATES
            }
            return
        assert len(backend.jobs) > begun, f"{loop.spending.time_left_s():.0f} s are left: {loop.ended_reason}"
        study.record(End(exit_code=0, wall_s=time_s, gpu_s=2 * time_s, left_out=loop.left_out))
        study.record(Resume())
    raise AssertionError("20 sessions do not suffice")
