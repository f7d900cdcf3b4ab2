"""The end of a command, read from its exit code and its output."""

import pytest

from trainers.commands.ending import LONGEST, cause, node_of_cause, outcome_of
from trainers.records.measurement import Outcome

LAUNCHER = """
E1129 12:00:00.000000 8 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1) local_rank: 0
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
  exitcode  : 1 (pid: 9)
"""
LACKS = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB",
    "[rank1]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
    "RuntimeError: CUDA error: out of memory",
    "RuntimeError: CUDA driver error: out of memory",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
    " to allocate 1073741824 bytes. Error code 12 (Cannot allocate memory)",
    "MemoryError",
    "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array with shape (1000000000,)",
    "OSError: [Errno 12] Cannot allocate memory",
    "Cuda failure 2 'out of memory'",
    "terminate called after throwing an instance of 'std::bad_alloc'",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "RuntimeError: MPS backend out of memory (MPS allocated: 1.0 GiB). Tried to allocate 2.0 GiB",
    "RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed. ",
    "  exitcode  : -9 (pid: 9)",
    "Root Cause: Signal 9 (SIGKILL) received by PID 9",
)
LACK_NOT = (
    "Tip: if you run out of memory, lower --per_device_train_batch_size",
    "offload: keeps CUDA out of memory errors away",
    "gradient checkpointing is off; training may need too much, and not enough memory is left for a cache",
    "out of memory handling: on",
    "the data are memory-mapped",
    "exitcode  : -11 (pid: 9)",
)


@pytest.mark.parametrize("line", LACKS)
def test_a_lack_of_memory_counts_wherever_it_stands(line: str) -> None:
    text = f'step 1\n{line}\nTraceback (most recent call last):\n  File "a.py"\nRuntimeError: peer closed{LAUNCHER}'
    outcome, why = outcome_of(1, text)
    assert outcome is Outcome.OOM and len(why) <= LONGEST + 20
    assert outcome_of(1, f"[node 1, 10.0.0.2]\n{text}") == (Outcome.OOM, f"{why} (on node 1, 10.0.0.2)")


def test_an_error_is_told_and_not_the_code_that_raised_it() -> None:
    text = '    raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")\n'
    text += "[rank1]: RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    assert outcome_of(1, text) == (Outcome.OOM, "[rank1]: RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize("line", LACK_NOT)
def test_what_only_speaks_of_memory_is_no_lack_of_it(line: str) -> None:
    text = f'{line}\nTraceback (most recent call last):\n  File "a.py"\nValueError: no such flag{LAUNCHER}'
    assert outcome_of(1, text) == (Outcome.FAILED, "ValueError: no such flag")


@pytest.mark.parametrize(
    ("code", "outcome"), [(137, Outcome.OOM), (-9, Outcome.OOM), (139, Outcome.FAILED), (2, Outcome.FAILED)]
)
def test_a_code_of_a_kill_is_a_lack_of_memory(code: int, outcome: Outcome) -> None:
    assert outcome_of(code, "step 1\nstep 2\n")[0] is outcome
    assert outcome_of(code, "")[0] is outcome


def test_a_cause_is_the_last_line_where_nothing_is_an_error() -> None:
    assert cause("step 1\nusage: train.py [-h]\ntrain.py: error: no such flag\n") == "train.py: error: no such flag"
    assert cause("") == "it printed nothing"


MEMORY = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.mark.parametrize(
    ("codes", "failed", "texts", "number"),
    [
        ([1, None], [0], ["RuntimeError: Connection closed by peer", MEMORY], 1),
        ([1, 1], [0, 1], ["RuntimeError: Connection closed by peer", MEMORY], 1),
        ([None, 1], [1], ["step 3", "ValueError: x"], 1),
        ([1, 0], [0], ["ValueError: x", MEMORY], 0),
        ([0, 0], [], ["", ""], 0),
    ],
)
def test_the_node_that_ran_out_of_memory_is_named_before_its_launcher_has_ended(
    codes: list[int | None], failed: list[int], texts: list[str], number: int
) -> None:
    assert node_of_cause(codes, failed, texts) == number
