"""A training without Ray, each of whose ranks torchrun starts.

    torchrun --nproc-per-node N -m trainers.training.torchrun FOLDER

FOLDER is a training's folder made by `platform.train`; each of the two commands can continue the other's training. If a
rank dies torchrun ends the others, and the same command continues from the newest checkpoint. Exit codes: 0 trained, 1
failed, 2 bad input.
"""

import argparse
import atexit
import dataclasses
import fcntl
import os
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from trainers.host import node
from trainers.host.failures import RungFailure
from trainers.records import checkpoints
from trainers.records.plain_files import last_attempt, open_plain, read_json, refuse_others
from trainers.records.training import (
    FORMAT,
    Begun,
    NotSaved,
    SetAside,
    Steps,
    TrainingJob,
    TrainingPhase,
    TrainingPlan,
    Validated,
)
from trainers.records.training_files import ATTEMPT, CHECKPOINTS, LOCK, OWN_FILES, PLAN, RECORDS, STOP
from trainers.records.training_lines import Reader
from trainers.records.trust import admit
from trainers.spec.cluster import Cluster
from trainers.spec.codec import from_json, shortened
from trainers.spec.errors import InputError
from trainers.spec.support import refusal
from trainers.training.worker import TrainingWorker

_COLLECTIVE_TIMEOUT_S = 900
_LINE_S = 5.0
"""Seconds between two lines of progress."""


def main(argv: Sequence[str] | None = None) -> int:
    """Trains as one rank; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainers.training.torchrun", description=(__doc__ or "")[:60])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--checkpoint-s", type=float, default=600.0, metavar="S", help="seconds between checkpoints")
    parser.add_argument(
        "--report-s", type=float, default=2.0, metavar="S", help="seconds between records, 0: every step"
    )
    parser.add_argument("--steps", type=int, metavar="N", help="end after so many steps, without a checkpoint")
    parser.add_argument("--trust", action="store_true", help="use a folder of another user")
    options = parser.parse_args(argv)
    if options.steps is not None and options.steps < 1:
        parser.error(f"--steps must be at least 1, got {options.steps}")
    rank, folder = int(os.environ.get("RANK", "-1")), options.folder.absolute()
    try:
        admit(folder, (*OWN_FILES, CHECKPOINTS), trusted=options.trust)
        plan = _plan(folder)
        phase = _phase(folder, plan)
    except ValueError as error:
        return _refused(str(error), rank)
    if phase is None:
        return _ended(f"{folder} is trained to its end.", rank)
    world_size = int(os.environ.get("WORLD_SIZE", "0"))
    if world_size != phase.layout.world_size:
        num_ranks = phase.layout.world_size
        return _refused(
            f"the layout takes {num_ranks} ranks, got {world_size}: start torchrun with so many in all", rank
        )
    on_cuda = torch.cuda.is_available()
    if on_cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_cuda else "gloo", timeout=timedelta(seconds=_COLLECTIVE_TIMEOUT_S))
    try:
        return _train(folder, plan, phase, on_cuda=on_cuda, options=options)
    finally:
        dist.destroy_process_group()


def _plan(folder: Path) -> TrainingPlan:
    """Returns the plan of the training in `folder`.

    Raises:
        ValueError: it has no plan that this version reads.
    """
    path = folder / PLAN
    try:
        refuse_others(*(folder / name for name in OWN_FILES))
        last_attempt(folder / ATTEMPT)
        data = read_json(path)
    except InputError as error:
        raise InputError(f"{error}: give the folder of a training") from error
    try:
        if (number := data.get("format")) == FORMAT:
            return from_json(TrainingPlan, data["plan"])
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} is no plan of a training ({error}): give the folder of a training") from error
    raise ValueError(f"{path} has format {shortened(number)}, this version reads {FORMAT}")


def _phase(folder: Path, plan: TrainingPlan) -> TrainingPhase | None:
    newest = checkpoints.newest(folder / CHECKPOINTS)
    return plan.phase_at(checkpoints.read_manifest(newest).tokens if newest else 0)


def _train(
    folder: Path, plan: TrainingPlan, phase: TrainingPhase, *, on_cuda: bool, options: argparse.Namespace
) -> int:
    """Trains the phases that take as many ranks as there are; returns the exit code, the same on every rank."""
    rank = dist.get_rank()
    lock = open_plain(folder / LOCK, os.O_RDWR | os.O_CREAT) if rank == 0 else None
    try:
        if not _agreed(lock is None or _locks(lock)):
            return _refused(f"another process trains in {folder}: wait for it to end", rank)
        if rank == 0:
            threading.Thread(target=_follow, args=(folder, plan.tokens), daemon=True).start()
        cluster = _cluster(on_cuda)
        current: TrainingPhase | None = phase
        while current is not None and current.layout.world_size == dist.get_world_size():
            if reason := refusal(plan.recipe, current.layout, cluster):
                return _refused(reason, rank)
            job = TrainingJob(
                plan=plan,
                folder=str(folder),
                attempt=_next_attempt(folder),
                layout=current.layout,
                cluster=cluster,
                cpus_per_worker=1.0,
                checkpoint_s=options.checkpoint_s,
                report_s=options.report_s,
                max_steps=options.steps,
            )
            worker = TrainingWorker(job, time.perf_counter())
            try:
                worker.run()
            except Exception as error:
                try:
                    worker.fail(error)
                except RungFailure as failure:
                    print(f"rank {rank}: {failure.reason}", file=sys.stderr, flush=True)
                    os._exit(1)  # other ranks may wait for this one; torchrun ends them
            dist.barrier()
            if options.steps is not None:
                return _ended(f"Ended after step {_trained(folder)[0]}, without a checkpoint.", rank)
            current = _phase(folder, plan)
        if current is not None:
            num_ranks = current.layout.world_size
            return _ended(f"The next phase takes {num_ranks} ranks: start torchrun with so many in all.", rank)
        tokens = _trained(folder)[1]
        return _ended(f"Trained on {tokens:,} tokens; the last checkpoint is in {folder / CHECKPOINTS}.", rank)
    finally:
        if lock is not None:
            os.close(lock)


def _trained(folder: Path) -> tuple[int, int]:
    """Returns the last step that was recorded, and the tokens trained on after it; zeros before the first."""
    steps = [record for record in Reader(folder / RECORDS).read() if isinstance(record, Steps)]
    return (steps[-1].last_step, steps[-1].tokens) if steps else (0, 0)


def _cluster(on_cuda: bool) -> Cluster:
    """Returns the devices of torchrun's ranks."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    nodes = max(1, dist.get_world_size() // local)
    if not on_cuda:
        cpu = Cluster(device_kind="cpu", device="CPU", device_memory_gib=1.0, num_nodes=nodes, devices_per_node=local)
        return dataclasses.replace(cpu, device_memory_gib=node.facts(gpu=False)["memory_gib"] / local)
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Cluster(
        device_kind="cuda",
        device=properties.name,
        device_memory_gib=properties.total_memory / 2**30,
        capability=(properties.major, properties.minor),
        num_nodes=nodes,
        devices_per_node=local,
    )


def _locks(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _agreed(own_answer: bool) -> bool:
    answer = [own_answer]
    dist.broadcast_object_list(answer)
    return answer[0]


def _next_attempt(folder: Path) -> int:
    """Begins a new attempt; returns its number, the same on every rank."""
    number = [0]
    if dist.get_rank() == 0:
        path = folder / ATTEMPT
        number = [last_attempt(path) + 1]
        part = path.with_name(f"{ATTEMPT}.part")
        part.write_text(str(number[0]))
        part.replace(path)
        (folder / STOP).unlink(missing_ok=True)
    dist.broadcast_object_list(number)
    return number[0]


def _follow(folder: Path, tokens: int) -> None:
    """Prints the training's records, with a line of progress at intervals."""
    reader, last_s = Reader(folder / RECORDS), -_LINE_S
    reader.read()  # skips records of earlier attempts
    while True:
        time.sleep(0.2)
        for record in reader.read():
            match record:
                case Begun():
                    print(f"Trains from step {record.step} on with {record.layout}.", flush=True)
                case Steps() if time.monotonic() - last_s >= _LINE_S or record.tokens >= tokens:
                    last_s = time.monotonic()
                    share, speed = min(1.0, record.tokens / tokens), record.tokens_per_s
                    loss = record.losses[-1]
                    print(f"{share:.1%}, step {record.last_step}, loss {loss:.4f}, {speed:,.0f} tokens/s", flush=True)
                case Validated():
                    print(f"Held-out loss after step {record.step}: {record.loss:.4f}", flush=True)
                case NotSaved():
                    print(f"A checkpoint after step {record.step} cannot be written: {record.reason}", flush=True)
                case SetAside():
                    print(f"The checkpoint {record.name} is not used: {record.reason}", flush=True)
                case _:
                    pass


def _refused(sentence: str, rank: int) -> int:
    if rank <= 0:
        print(f"error: {sentence}", file=sys.stderr, flush=True)
    return 2


def _ended(sentence: str, rank: int) -> int:
    if rank <= 0:
        print(sentence, flush=True)
    return 0


def leave(code: int) -> NoReturn:
    """Ends the process after its exit handlers, without the interpreter's own end.

    Threads of gloo stay beside DDP although its group is destroyed, and an interpreter that ends beside them may abort
    (`terminate called without an active exception`): torchrun would take a complete training for a failed one.
    """
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
