"""Classification, by cause, of what ended a trial."""

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from trainers.host.failures import RungFailure, classify, one_line, requested_bytes, size
from trainers.records.measurement import Outcome
from trainers.spec.batch import BatchPoint
from trainers.trial.worker import TrialWorker

OOM = RungFailure("oom", "rank 1 asked for 2.00 GiB", phase="optimizer", rank=1, asked_gib=2.0, allocated_gib=70.0)
COLLATERAL = RungFailure("failed", "RuntimeError: connection closed by peer", phase="forward_backward", rank=0)


def test_an_oom_on_any_rank_wins_over_its_peers_failures():
    verdict = classify({0: COLLATERAL, 1: OOM}, dead={2: "exited"})
    assert verdict.outcome is Outcome.OOM
    assert (verdict.rank, verdict.phase, verdict.asked_gib, verdict.allocated_gib) == (1, "optimizer", 2.0, 70.0)


def test_a_dead_process_explains_its_peers_broken_connection():
    verdict = classify({0: COLLATERAL}, dead={1: "worker exit SIGKILL"})
    assert verdict.outcome is Outcome.FAILED
    assert verdict.rank == 1
    assert verdict.reason == "the process of rank 1 died: worker exit SIGKILL"
    assert verdict.silent, "the peer's word is what the death looks like from there, and no cause"


@pytest.mark.parametrize("outcome", ["oom", "diverged", "hung"])
def test_a_death_is_not_silent_where_a_rank_names_the_cause(outcome: str):
    failure = RungFailure(outcome, "so", phase="optimizer", rank=0)
    verdict = classify({0: failure}, dead={1: "worker exit SIGKILL"})
    assert (verdict.outcome, verdict.reason, verdict.silent) == (Outcome(outcome), "so", False)


def test_a_failure_of_a_rank_whose_peers_live_is_its_own():
    verdict = classify({0: COLLATERAL, 1: ValueError("no such layout")}, dead={})
    assert not verdict.silent and verdict.rank == 1 and "no such layout" in verdict.reason


def test_a_broken_connection_alone_is_a_silent_death():
    """Checks that a peer whose node is gone is a silent death.

    It reports nothing, and nobody else reports anything of it: the layout had no part in its end.
    """
    verdict = classify({0: COLLATERAL}, dead={})
    assert verdict.silent and verdict.rank is None
    assert verdict.reason == "rank 0 lost its connection to another: RuntimeError: connection closed by peer"


def test_a_divergence_is_no_failure():
    nan = RungFailure("diverged", "the loss was nan", phase="forward_backward", rank=0)
    assert classify({0: nan, 1: COLLATERAL}, dead={}).outcome is Outcome.DIVERGED


def test_the_words_out_of_memory_alone_are_no_oom():
    verdict = classify({0: RuntimeError("CUDA out of memory, or so says this text")}, dead={})
    assert verdict.outcome is Outcome.FAILED


def test_without_any_exception_the_controllers_word_is_kept():
    verdict = classify({}, dead={}, otherwise="placement timed out")
    assert verdict.reason == "placement timed out" and verdict.silent


def test_a_rung_failure_survives_pickling():
    copy = pickle.loads(pickle.dumps(OOM))
    assert copy.__dict__ == OOM.__dict__
    assert str(copy) == str(OOM)


def test_requested_sizes_are_read_from_both_allocators():
    assert requested_bytes(RuntimeError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has")) == int(
        1.5 * 2**30
    )
    text = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error code 12"
    assert requested_bytes(RuntimeError(text)) == 4096
    assert requested_bytes(RuntimeError("shape mismatch")) is None


def test_sizes_and_errors_read_well():
    assert [size(1.5), size(0.0156), size(None)] == ["1.50 GiB", "16 MiB", "an unknown size"]
    assert one_line(ValueError("\n  first\nsecond")) == "ValueError: first"


@pytest.mark.parametrize(
    ("others_gib", "end"),
    [
        (None, "60.00 GiB reserved"),
        (0.0, "60.00 GiB reserved"),
        (14.8, "; other processes held 14.80 GiB of its device"),
    ],
)
def test_a_rank_out_of_memory_says_what_other_processes_held(others_gib: float | None, end: str) -> None:
    sizes = {"asked_gib": 2.0, "allocated_gib": 58.0, "reserved_gib": 60.0}
    worker: Any = object.__new__(TrialWorker)
    worker.rank, worker.phase, worker.batch = 1, "optimizer", BatchPoint(micro_batch=4, grad_accum=1)
    worker.meter = SimpleNamespace(out_of_memory=lambda _: sizes, release=lambda: None)
    worker.sampler = SimpleNamespace(others_gib=lambda: others_gib)
    worker.watchdog = SimpleNamespace(pause=lambda: None)
    with pytest.raises(RungFailure) as raised:
        worker.fail(RuntimeError("CUDA out of memory"))
    assert raised.value.outcome == Outcome.OOM and raised.value.reason.endswith(end)
