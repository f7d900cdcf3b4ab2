"""A trial's job made from the study: the micro-batch of a numerics gate's reference."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import search_spaces
from platform.search.loop.jobs import TrialSettings, gate_micro_batch_of, make_job, predicted_gib
from platform.study.history import History
from search_spaces.candidate import Candidate
from search_spaces.command import space_of_command
from tests.samples import header, measurement
from trainers.records.job import GateSize, Job, Timing, gate_batch
from trainers.records.journal import Measured, Peak
from trainers.records.measurement import Outcome
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout
from trainers.spec.workload import flags_of

H200 = Cluster(device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8, devices_per_node=1, capability=(9, 0))
SETTINGS = TrialSettings(
    cluster=H200, cpus_per_worker=1.0, recorder="none", commit="0", cap_gib=None, timing=Timing(), rules=None
)


def test_the_largest_size_is_sought_near_that_of_the_most_similar_layout(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    words = ("python", "train.py", "{micro_batch=max}", "{grad_accum}", "{ckpt=true,false}", "{compile=true,false}")
    space = space_of_command(words, folder=tmp_path, tokens_per_step=1024, seq_len=1)
    (first, *others), _ = space.candidates(1)

    def likely(*sizes: int | None, **figures: Any) -> int | None:
        rows = [
            measurement(on=other.layout, recipe=first.recipe, micro_batch=size, tokens_per_s=None, **figures)
            for other, size in zip(others, sizes, strict=False)
            if size
        ]
        lines = [Measured(at="2026-11-22T00:00:00+00:00", measurement=row) for row in rows]
        job = make_job(
            first, first.batch_points(), None, history=History(lines), settings=SETTINGS, stop_at_s=None
        )  # fmt: skip
        return job.likely_largest

    alike = [len(flags_of(first.layout.flags).items() & flags_of(other.layout.flags).items()) for other in others]
    assert alike == [1, 1, 0]
    assert (likely(), likely(None, None, 64), likely(8, None, 64)) == (None, 64, 8)
    assert likely(8, outcome=Outcome.OOM) is likely(8, untried_micro_batch=32) is None


def reference(space: str) -> Candidate:
    """Returns the plainest layout: eager execution, the plain loss, full sharding."""
    layout = Layout(engine="fsdp", zero_stage=3, attention="eager")
    return Candidate(recipe=search_spaces.load(space).recipe, layout=layout, micro_batches=(1,))


def test_the_gate_s_reference_takes_what_surely_fits() -> None:
    small = gate_micro_batch_of(reference("gpt2"), History([]), SETTINGS)
    assert small > 1
    ((_, peak_gib),) = predicted_gib(dataclasses.replace(reference("gpt2"), micro_batches=(small,)), H200, None)
    assert peak_gib <= H200.device_memory_gib / 2
    capped = gate_micro_batch_of(reference("gpt2"), History([]), dataclasses.replace(SETTINGS, cap_gib=8.0))
    assert 1 <= capped < small
    assert gate_micro_batch_of(reference("bloom7b"), History([]), SETTINGS) == 1, "its states alone take three quarters"


@pytest.mark.parametrize(("outcome", "expected"), [(Outcome.SLOW, 64), (Outcome.THRASH, 1)])
def test_what_ran_surely_fits_and_what_nothing_is_known_of_may_not(outcome: Outcome, expected: int) -> None:
    candidate = reference("gpt2")
    unknown = dataclasses.replace(SETTINGS, cluster=dataclasses.replace(H200, device="a device of next year"))
    ran = measurement(on=candidate.layout, recipe=candidate.recipe, micro_batch=64, outcome=outcome)
    assert gate_micro_batch_of(candidate, History([]), unknown) == 1
    assert (
        gate_micro_batch_of(candidate, History([Measured(at="2026-11-22T00:00:00+00:00", measurement=ran)]), unknown)
        == expected
    )


def test_what_was_refused_bounds_it() -> None:
    candidate = reference("gpt2")
    crowded = measurement(on=candidate.layout, recipe=candidate.recipe, micro_batch=8, outcome=Outcome.THRASH)
    history = History([Measured(at="2026-11-22T00:00:00+00:00", measurement=crowded)])
    assert gate_micro_batch_of(candidate, history, SETTINGS) == 4


def test_what_is_predicted_not_to_fit_is_tried_until_something_ran_out_of_memory() -> None:
    candidate = reference("gpt2")
    settings = dataclasses.replace(SETTINGS, tries_misfit=True)

    def tries(outcome: Outcome, with_settings: TrialSettings = settings) -> bool:
        ran = measurement(on=candidate.layout, recipe=candidate.recipe, micro_batch=8, outcome=outcome)
        history = History([Measured(at="2026-11-22T00:00:00+00:00", measurement=ran)])
        job = make_job(
            candidate, candidate.batch_points(), None, history=history, settings=with_settings, stop_at_s=None
        )
        return job.tries_misfit

    assert tries(Outcome.OK) and not tries(Outcome.OOM) and not tries(Outcome.OK, SETTINGS)


@pytest.mark.parametrize(("slow_tflops", "expected"), [(690.0, 1000.0), (595.0, 850.0)])
def test_what_a_trial_has_to_beat_is_what_its_nodes_would_have_shown(slow_tflops: float, expected: float) -> None:
    candidate, at, peaks = reference("gpt2"), "2026-11-22T00:00:00+00:00", {"a": slow_tflops, "b": 700.0}
    lines = [
        dataclasses.replace(header("one", cluster=H200), at=at),
        *(Peak(at=at, device="d", precision="bf16", tflops=peak, nodes=(node,)) for node, peak in peaks.items()),
        *(
            Measured(
                at=at,
                measurement=measurement(on=candidate.layout, recipe=candidate.recipe, micro_batch=micro_batch,
                                        tokens_per_s=speed, addresses=("b",)),
            )
            for micro_batch, speed in ((1, 900.0), (2, 1000.0))
        ),
    ]  # fmt: skip
    jobs = [
        make_job(
            candidate, candidate.batch_points(), None, history=History(lines), settings=SETTINGS, stop_at_s=None,
            nodes={f"id-{address}": address},
        )
        for address in ("a", "b")
    ]  # fmt: skip
    assert [job.incumbent_tokens_per_s for job in jobs] == pytest.approx([expected, 1000.0])
    assert [job.incumbent_derived for job in jobs] == [expected < 1000, False]


@pytest.mark.parametrize(
    ("gate_micro_batch", "global_batch", "expected"),
    [
        (1, 512, (1, 32)),
        (5, 512, (4, 8)),
        (16, 512, (16, 2)),
        (64, 512, (16, 2)),  # training adds up gradients of eight micro-steps: so does the gate
        (64, 64, (32, 1)),
    ],
)
def test_the_gate_s_sequences_are_cut_evenly(
    gate_micro_batch: int, global_batch: int, expected: tuple[int, int]
) -> None:
    candidate = reference("gpt2")
    recipe = dataclasses.replace(candidate.recipe, global_batch=global_batch)
    fields: dict[str, Any] = {"trial_id": "t1", "recorder": "none", "cluster": H200, "cpus_per_worker": 1.0}
    job = Job(recipe=recipe, layout=candidate.layout, rungs=(), gate=GateSize(), **fields)
    batch = gate_batch(dataclasses.replace(job, gate_micro_batch=gate_micro_batch))
    assert (batch.micro_batch, batch.grad_accum) == expected
