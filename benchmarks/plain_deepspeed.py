"""Runs a point of `gpt2_zero` through this project's engine beside a plain DeepSpeed loop as a user writes it. Run

python -m benchmarks.plain_deepspeed [--pairs 10] [--stages 0,1,2,3] [--precisions fp16,fp32]

on one GPU. Both train the same transformers model on the same tokens, each in a process of its own that the other
waits for, window by window in turn. The plain loop is `deepspeed.initialize` on the model with AdamW, the stage and the
precision, all else DeepSpeed's defaults, and `engine(input_ids, labels=...)`, `backward`, `step`.
"""

import argparse
import multiprocessing
import os
from multiprocessing.connection import Connection
from typing import Any, cast

import search_spaces
from benchmarks.pairs import alternate
from search_spaces.candidate import Candidate
from trainers.engines.create import create_engine

STEPS = 20
"""Optimizer steps of a window."""


def main() -> None:
    """Prints a line for each stage and precision."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--stages", default="0,1,2,3")
    parser.add_argument("--precisions", default="fp16,fp32")
    options = parser.parse_args()
    candidates, _ = search_spaces.load("gpt2_zero").candidates(1)
    stages, precisions = options.stages.split(","), options.precisions.split(",")
    print("a step through the project's engine, then through the plain loop")
    for candidate in candidates:
        if str(candidate.layout.zero_stage) in stages and candidate.recipe.compute_precision in precisions:
            with _Side(_ours, candidate) as ours, _Side(_plain, candidate) as plain:
                for _ in range(2):
                    ours.window()
                    plain.window()
                print(f"{candidate.name:30} {alternate(ours.window, plain.window, options.pairs)}", flush=True)


class _Side:
    """A process that trains a window on request."""

    def __init__(self, work: Any, candidate: Candidate) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, self._theirs = context.Pipe()
        self._process = context.Process(target=work, args=(candidate, self._theirs))

    def __enter__(self) -> "_Side":
        self._process.start()
        self._theirs.close()  # else a child that dies leaves us waiting for it
        self._pipe.recv()
        return self

    def window(self) -> float:
        """Returns the seconds of an optimizer step."""
        self._pipe.send(STEPS)
        return float(self._pipe.recv())

    def __exit__(self, *_: object) -> None:
        self._pipe.send(0)
        self._process.join()


def _serve(pipe: Connection, step: Any) -> None:
    """Answers each number of steps with the mean seconds of one, by CUDA events."""
    import torch

    for _ in range(5):
        step()
    torch.cuda.synchronize()
    pipe.send("ready")
    while steps := pipe.recv():
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(steps):
            step()
        end.record()
        end.synchronize()
        pipe.send(start.elapsed_time(end) / 1e3 / steps)
    torch.distributed.destroy_process_group()
    os._exit(0)  # stage 3 aborts at a plain exit


def _tokens(candidate: Candidate) -> Any:
    import torch

    from trainers import data

    source = data.source(candidate.recipe)
    return torch.from_numpy(source.sequences(0, range(candidate.micro_batches[0]))).cuda()


def _join_group() -> None:
    import torch

    os.environ.update(LOCAL_RANK="0", RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
    torch.cuda.set_device(0)
    torch.distributed.init_process_group("nccl", store=cast(Any, torch.distributed).HashStore(), rank=0, world_size=1)


def _ours(candidate: Candidate, pipe: Connection) -> None:
    import torch

    from trainers.marks.step import Unmarked

    _join_group()
    tokens = _tokens(candidate)
    engine = create_engine(candidate.recipe, candidate.layout, torch.device("cuda", 0))

    def step() -> None:
        engine.step([tokens], Unmarked())

    _serve(pipe, step)


def _plain(candidate: Candidate, pipe: Connection) -> None:
    _join_group()
    import deepspeed
    import transformers

    recipe, stage = candidate.recipe, candidate.layout.zero_stage
    config = transformers.GPT2Config(use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = cast(Any, transformers.GPT2LMHeadModel(config)).cuda()
    engine, *_ = cast(Any, deepspeed).initialize(
        model=model,
        model_parameters=list(model.parameters()),
        config={
            "train_micro_batch_size_per_gpu": candidate.micro_batches[0],
            "gradient_accumulation_steps": 1,
            "gradient_clipping": recipe.grad_clip,
            "optimizer": {"type": "AdamW", "params": {"lr": recipe.learning_rate, "torch_adam": True}},
            "zero_optimization": {"stage": stage},
            "fp16": {"enabled": recipe.compute_precision == "fp16"},
        },
    )
    tokens = _tokens(candidate)[:, :-1].contiguous()

    def step() -> None:
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()

    _serve(pipe, step)


if __name__ == "__main__":
    main()
