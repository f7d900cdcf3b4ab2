"""The largest micro-batch that fits: which sizes are tried, what ends that, and real processes without memory."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from search_spaces.command import space_of_command
from trainers.commands.largest import largest, short_run
from trainers.commands.run import Run, on_this_node
from trainers.records.job import Job
from trainers.records.measurement import Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster

SIZES = (1, 2, 3, 4, 6, 8, 12, 24)


def _points(sizes: Sequence[int]) -> tuple[BatchPoint, ...]:
    return tuple(BatchPoint(micro_batch=size, grad_accum=48 // size) for size in sizes)


def _run(outcome: Outcome, peak_gib: float | None = None) -> Run:
    return Run(steps=(), began_s=0.0, outcome=outcome, peak_gib=peak_gib)


@pytest.mark.parametrize("sizes", [SIZES, (5,), (1, 2), tuple(range(1, 98))])
def test_every_limit_of_memory_is_answer(sizes: tuple[int, ...]) -> None:
    """Checks the answer, that no size is tried twice, and how many are tried."""
    for fits in (0, *sizes):
        tried: list[int] = []

        def runs(batch: BatchPoint, fits: int = fits, tried: list[int] = tried) -> Run:
            tried.append(batch.micro_batch)
            return _run(Outcome.OK if batch.micro_batch <= fits else Outcome.OOM)

        answer = largest(runs, points := tuple(BatchPoint(micro_batch=size, grad_accum=1) for size in sizes))
        assert answer.fitting == tuple(point for point in points if point.micro_batch <= fits)
        above = [size for size in sizes if size > fits]
        assert (answer.ended and answer.ended.batch.micro_batch) == (above[0] if above else None)
        assert len(set(tried)) == len(tried) <= 2 + 2 * len(sizes).bit_length() and not answer.remark


@pytest.mark.parametrize("bend", [0.0, 0.02, -0.02])
@pytest.mark.parametrize("last", [1, 7, 64, 4096])
def test_memory_of_two_sizes_names_the_largest(last: int, bend: float) -> None:
    """Checks the answer and how many sizes are tried where memory is a line of the micro-batch, and where it bends."""
    points = tuple(BatchPoint(micro_batch=size, grad_accum=1) for size in range(1, last + 1))
    for fits in {1, 2, 3, last // 3 + 1, last - 1, last} & set(range(1, last + 1)):
        tried: list[int] = []

        def runs(batch: BatchPoint, fits: int = fits, tried: list[int] = tried) -> Run:
            tried.append(batch.micro_batch)
            held_gib = 10 + 60 * (batch.micro_batch / fits) ** (1 + bend)
            return _run(Outcome.OK if batch.micro_batch <= fits else Outcome.OOM, held_gib)

        answer = largest(runs, points, capacity_gib=70.5)
        assert answer.fitting[-1].micro_batch == fits and len(set(tried)) == len(tried)
        assert len(tried) <= (5 if not bend and fits <= 100 else 4 + 2 * last.bit_length()), (fits, tried)


@pytest.mark.parametrize("sizes", [SIZES, (5,), (1, 2), tuple(2**n for n in range(8))])
def test_the_likely_size_is_tried_first(sizes: tuple[int, ...]) -> None:
    """Checks that any likely size leads to the right answer, and a right one to no other size but the next."""
    points = tuple(BatchPoint(micro_batch=size, grad_accum=1) for size in sizes)
    for fits in (0, *sizes):
        for likely in (1, *sizes, 10**6):
            tried: list[int] = []

            def runs(batch: BatchPoint, fits: int = fits, tried: list[int] = tried) -> Run:
                tried.append(batch.micro_batch)
                return _run(Outcome.OK if batch.micro_batch <= fits else Outcome.OOM)

            answer = largest(runs, points, likely=likely)
            assert answer.fitting == tuple(point for point in points if point.micro_batch <= fits)
            assert tried[0] == max((size for size in sizes if size <= likely), default=sizes[0])
            assert len(set(tried)) == len(tried) <= 2 + 2 * len(sizes).bit_length()
            if likely == fits == sizes[-1]:
                assert tried == [fits]


def test_slow_starts_end_at_the_predicted_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that a command whose start takes a minute is not measured at the size that happened to be tried last."""
    now_s = [0.0]
    monkeypatch.setattr("trainers.commands.largest.time", SimpleNamespace(monotonic=lambda: now_s[0]))

    def compiled(batch: BatchPoint) -> Run:
        now_s[0] += 61.0
        return _run(Outcome.OK, peak_gib=4.0 + batch.micro_batch)

    answer = largest(compiled, _points(SIZES), capacity_gib=13.0)
    assert [point.micro_batch for point in answer.fitting] == [1, 2, 3, 4, 6, 8] and answer.untried == 24
    assert answer.remark == "after 120 s micro-batches from 12 to 24 were not tried, and may fit"
    everything = largest(compiled, _points(SIZES), capacity_gib=40.0)
    assert everything.fitting == _points(SIZES) and not everything.untried and not everything.remark
    left = iter([True, False])
    hurried = largest(compiled, _points(SIZES), capacity_gib=13.0, limit_s=1e9, has_time=lambda: next(left))
    assert [point.micro_batch for point in hurried.fitting] == [1, 2] and hurried.untried == 24


def test_a_failure_ends_it_and_time_does_with_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {1: Outcome.OK, 2: Outcome.OK, 4: Outcome.FAILED}
    answer = largest(lambda batch: _run(ends[batch.micro_batch]), _points(SIZES))
    assert [point.micro_batch for point in answer.fitting] == [1, 2]
    assert answer.ended is not None and (answer.ended.run.outcome, answer.ended.batch.micro_batch) == (
        Outcome.FAILED,
        4,
    )

    now_s = [100.0]
    monkeypatch.setattr("trainers.commands.largest.time", SimpleNamespace(monotonic=lambda: now_s[0]))

    def slow(batch: BatchPoint) -> Run:
        now_s[0] += 20.0
        return _run(Outcome.OK)

    late = largest(slow, _points(SIZES), limit_s=30.0)
    assert [point.micro_batch for point in late.fitting] == [1, 2]
    assert late.remark.endswith("micro-batches from 3 to 24 were not tried, and may fit") and late.untried == 24

    untimely = largest(lambda batch: _run(Outcome.OK), _points(SIZES), has_time=lambda: False)
    assert [point.micro_batch for point in untimely.fitting] == [1] and untimely.remark

    sizes = iter([True, True, False])
    between = largest(
        lambda batch: _run(Outcome.OK if batch.micro_batch < 4 else Outcome.OOM), _points(SIZES),
        has_time=lambda: next(sizes),
    )  # fmt: skip
    assert between.ended and between.ended.batch.micro_batch == 4
    assert between.remark == "for want of time in the budget micro-batch 3 was not tried, and may fit"


SCRIPT = """
import json, os, sys, time
batch, accum, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with open(os.path.dirname(__file__) + "/tried", "a") as file:
    file.write(json.dumps([batch, accum]) + "\\n")
for number in range(10**6):
    if batch > 6 and number == 1:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    with open(os.environ["LAYOUT_SEARCH_STEPS"], "a") as file:
        file.write(json.dumps({"tokens": batch * accum * 16}) + "\\n")
    time.sleep(0.05)
"""


def test_real_processes_run_out_of_memory(tmp_path: Path) -> None:
    """Checks a script that fails at its second step, as where the optimizer's states come beside activations."""
    (tmp_path / "train.py").write_text(SCRIPT)
    command = (sys.executable, "train.py", "{micro_batch=max}", "{grad_accum}", "{out}")
    space = space_of_command(command, folder=tmp_path, tokens_per_step=16 * 48, seq_len=16)
    ((candidate,), _) = space.candidates(1)
    job = Job(
        trial_id="t1", recorder="", recipe=candidate.recipe, layout=candidate.layout, rungs=candidate.batch_points(),
        cluster=Cluster(device_kind="cpu", device="a processor", device_memory_gib=8.0), cpus_per_worker=0.5,
        hang_floor_s=300.0, first_step_s=300.0,
    )  # fmt: skip
    answer = largest(lambda batch: short_run(job, on_this_node(job), batch), job.rungs, limit_s=3600.0)
    assert answer.fitting[-1].micro_batch == 6 and answer.ended is not None
    assert answer.ended.batch.micro_batch == 8 and "CUDA out of memory" in answer.ended.run.reason
    tried = [json.loads(line) for line in (tmp_path / "tried").read_text().splitlines()]
    assert tried == [[1, 2], [2, 2], [4, 2], [8, 2], [6, 2]]
