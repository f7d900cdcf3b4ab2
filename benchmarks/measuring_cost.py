"""Measures what measuring costs: a rung's timed window beside the bare loop, on one device. Run

python -m benchmarks.measuring_cost [--space gpt2] [--micro-batch 16] [--set attention=sdpa] [--pairs 12]

Both train the same engine in the same process, in turn. A window of the trial has an event after every micro-step and
every optimizer step, the watchdog's beats, and a thread that samples NVML; the bare loop has one event before and one
after. What a trial does between windows (agreeing with the other ranks, telling the driver) is in neither.

Its figures: docs/lab/measuring.csv#measuring-cost.
"""

import argparse
import os
import time
from typing import Any, cast

import torch
import torch.distributed as dist

import search_spaces
from benchmarks.pairs import alternate
from trainers import data
from trainers.engines.create import create_engine
from trainers.engines.stepper import Engine
from trainers.host.watchdog import Watchdog
from trainers.marks.step import Unmarked
from trainers.measuring import conditions
from trainers.measuring.device import CpuClock, CpuMeter, CudaClock, CudaMeter
from trainers.measuring.host_load import HostSampler
from trainers.measuring.run_context import RunContext
from trainers.measuring.rung import Rung
from trainers.measuring.sampling import CpuSampler, NvmlSampler
from trainers.records.job import Job
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster


def main() -> None:
    """Times a few layouts and prints a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--space", default="gpt2")
    parser.add_argument("--set", action="append", default=[], metavar="AXIS=VALUE")
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--window-s", type=float, default=1.0)
    options = parser.parse_args()
    on_cuda = torch.cuda.is_available()
    os.environ.update(LOCAL_RANK="0", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("nccl" if on_cuda else "gloo", store=cast(Any, dist).HashStore(), rank=0, world_size=1)
    device = torch.device("cuda", 0) if on_cuda else torch.device("cpu")
    name = torch.cuda.get_device_name() if on_cuda else "CPU"
    print(f"{name}, torch {torch.__version__}; a trial's window, then the bare loop, a step each")
    candidates, _ = search_spaces.load(options.space).with_changes(options.set).candidates(1)
    for engine_name in ("ddp", "fsdp", "deepspeed"):
        candidate = next((possible for possible in candidates if possible.layout.engine == engine_name), None)
        if candidate is not None:
            batch = BatchPoint(micro_batch=options.micro_batch, grad_accum=3)
            job = Job(
                trial_id="benchmark",
                recorder="",
                recipe=candidate.recipe,
                layout=candidate.layout,
                rungs=(batch,),
                cluster=Cluster(device_kind="cuda" if on_cuda else "cpu", device=name, device_memory_gib=1.0),
                cpus_per_worker=1,
            )
            print(f"{candidate.layout.label:40} {_compare(job, device, options.pairs, options.window_s)}", flush=True)
    dist.destroy_process_group()


def _compare(job: Job, device: torch.device, pairs: int, window_s: float) -> Any:
    engine = create_engine(job.recipe, job.layout, device)
    batch, on_cuda = job.rungs[0], device.type == "cuda"
    accum = batch.grad_accum
    # What goes to the driver is between windows.
    context = RunContext(
        job=job,
        device=device,
        rank=0,
        meter=CudaMeter() if on_cuda else CpuMeter(1.0),
        sampler=NvmlSampler() if on_cuda else CpuSampler(),
        host=HostSampler(),
        clock=CudaClock if on_cuda else CpuClock,
        watchdog=Watchdog(floor_s=600, on_hang=lambda activity, waited_s: None),
        gather=lambda value: [value],
        enter=lambda phase: None,
        promise=lambda work_s: None,
        conditions=lambda: conditions.conditions_of(job.recipe, job.layout, job.cluster, "unknown"),
        matmul_peak_tflops=None,
    )
    source = data.source(job.recipe)
    rung = cast(Any, Rung(context, engine, source, batch))
    warm = rung._run(3, accum)
    steps = max(1, round(window_s / (warm.total_s / 3)))
    tokens = [rung._tokens(0, k) for k in range(accum)]

    def measured() -> float:
        return rung._run(steps, accum, sampled=[]).total_s / steps

    def bare() -> float:
        if on_cuda:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            _steps(engine, tokens, steps)
            end.record()
            end.synchronize()
            return start.elapsed_time(end) / 1e3 / steps
        began_s = time.perf_counter()
        _steps(engine, tokens, steps)
        return (time.perf_counter() - began_s) / steps

    for _ in range(2):
        measured()
        bare()
    pairs_s = alternate(measured, bare, pairs)
    engine.close()
    return pairs_s


def _steps(engine: Engine, tokens: list[torch.Tensor], steps: int) -> None:
    for _ in range(steps):
        engine.step(tokens, Unmarked())


if __name__ == "__main__":
    main()
