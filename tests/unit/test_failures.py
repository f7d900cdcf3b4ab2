"""What ended a trial is told apart by cause."""

import pickle

from trainers.failures import RungFailure, asked_bytes, classify, one_line, size
from trainers.measurement import Outcome

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


def test_a_divergence_is_no_failure():
    nan = RungFailure("diverged", "the loss was nan", phase="forward_backward", rank=0)
    assert classify({0: nan, 1: COLLATERAL}, dead={}).outcome is Outcome.DIVERGED


def test_the_words_out_of_memory_alone_are_no_oom():
    verdict = classify({0: RuntimeError("CUDA out of memory, or so says this text")}, dead={})
    assert verdict.outcome is Outcome.FAILED


def test_without_any_exception_the_controllers_word_is_kept():
    assert classify({}, dead={}, otherwise="placement timed out").reason == "placement timed out"


def test_a_rung_failure_survives_pickling():
    copy = pickle.loads(pickle.dumps(OOM))
    assert copy.__dict__ == OOM.__dict__
    assert str(copy) == str(OOM)


def test_asked_sizes_are_read_from_both_allocators():
    assert asked_bytes(RuntimeError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has")) == int(1.5 * 2**30)
    text = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error code 12"
    assert asked_bytes(RuntimeError(text)) == 4096
    assert asked_bytes(RuntimeError("shape mismatch")) is None


def test_sizes_and_errors_read_well():
    assert [size(1.5), size(0.0156), size(None)] == ["1.50 GiB", "16 MiB", "an unknown size"]
    assert one_line(ValueError("\n  first\nsecond")) == "ValueError: first"
