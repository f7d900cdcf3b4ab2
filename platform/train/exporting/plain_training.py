"""Trains the model of `model/` on token Parquet with transformers' Trainer and accelerate, or with DeepSpeed.

    ./launch.sh                 # all steps
    ./launch.sh --steps 20      # some

Written by an export, of which it needs nothing but the files beside it: settings.json and training_arguments.json or
ds_config.json. `steps.json` is written at the end: loss and seconds of each optimizer step.
"""

import argparse
import bisect
import functools
import itertools
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).resolve().parent


class Sequences:
    """Sequences of `length` + 1 tokens, packed from the documents of Parquet files in the order of their names."""

    def __init__(self, folder: Path, length: int, number: int) -> None:
        self._length, self._number = length, number
        self._files = [folder] if folder.is_file() else sorted(folder.glob("*.parquet"))
        sizes = [_num_tokens(path) for path in self._files]
        self._starts = list(itertools.accumulate(sizes, initial=0))

    def __len__(self) -> int:
        return 2**40  # epochs follow each other

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        first = index % self._number * self._length
        remaining, parts = self._length + 1, list[torch.Tensor]()
        while remaining:
            file = bisect.bisect_right(self._starts, first) - 1
            place = first - self._starts[file]
            parts.append(_tokens(self._files[file])[place : place + remaining])
            first, remaining = first + len(parts[-1]), remaining - len(parts[-1])
        return {"tokens": torch.cat(parts).long()}


def _num_tokens(path: Path) -> int:
    metadata = pq.ParquetFile(path).metadata
    column = next(i for i in range(metadata.num_columns) if _is_tokens(metadata.schema.column(i).path))
    return sum(metadata.row_group(i).column(column).num_values for i in range(metadata.num_row_groups))


def _is_tokens(path: str) -> bool:
    return path.split(".")[0] in ("tokens", "input_ids")


@functools.lru_cache(maxsize=2)
def _tokens(path: Path) -> torch.Tensor:
    table = pq.read_table(path)
    column: Any = table.column(next(name for name in table.column_names if _is_tokens(name))).combine_chunks()
    values = column.flatten() if pa.types.is_list(column.type) or pa.types.is_large_list(column.type) else column
    return torch.from_numpy(values.to_numpy().astype("int32"))


def make_model(settings: dict[str, Any]) -> Any:
    """Returns the model of `model/`, without dropout whatever a folder of weights says, with random weights unless
    there is such a folder.
    """
    torch.manual_seed(settings["seed"])
    model_options: dict[str, Any] = {
        "dtype": getattr(torch, settings["dtype"]),
        "attn_implementation": settings["attention"],
    }
    config = AutoConfig.from_pretrained(HERE / "model")
    if settings["weights"]:
        return AutoModelForCausalLM.from_pretrained(settings["weights"], config=config, **model_options).train()
    return AutoModelForCausalLM.from_config(config, **model_options).train()


def make_optimizer(parameters: Any, settings: dict[str, Any]) -> torch.optim.Optimizer:
    """Returns AdamW, or transformers' Adafactor; every parameter decays."""
    options = dict(settings["optimizer"])
    if options.pop("name") == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(list(parameters), **options)
    return torch.optim.AdamW(list(parameters), fused=True, **options)


def learning_rate_share(settings: dict[str, Any], step: int) -> float:
    """Returns the share of the highest learning rate at that step; steps count from 0."""
    schedule, per_step = settings["lr_schedule"], settings["global_batch"] * settings["seq_len"]
    tokens = min((step + 1) * per_step, schedule["tokens"])
    warmup, final = schedule["warmup_tokens"], schedule["final_share"]
    if tokens < warmup:
        return tokens / warmup
    if schedule["kind"] == "cosine":
        progress = (tokens - warmup) / max(1, schedule["tokens"] - warmup)
        return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2
    remaining_tokens = schedule["tokens"] - tokens
    if schedule["kind"] == "wsd" and remaining_tokens < schedule["decay_tokens"]:
        return final + (1 - final) * remaining_tokens / schedule["decay_tokens"]
    return 1.0


def next_token_loss(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the mean cross-entropy over all positions, in fp32."""
    logits = model(input_ids=tokens[:, :-1]).logits
    return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def with_accelerate(settings: dict[str, Any], steps: int) -> tuple[list[float], list[float]]:
    """Trains by transformers' Trainer under accelerate's configuration; returns the losses and seconds of the steps."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    losses, ends_s = list[float](), list[float]()

    class Clock(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            ends_s.append(time.perf_counter())

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs and "loss" in logs:  # the loss of a step is read after its end
                losses.append(float(logs["loss"]))
                ends_s.append(time.perf_counter())

    class Plain(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            return next_token_loss(model, inputs["tokens"])

        def create_optimizer(self, model: Any = None) -> Any:
            trained: Any = model or self.model
            self.optimizer = make_optimizer(trained.parameters(), settings)
            return self.optimizer

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            share = functools.partial(learning_rate_share, settings)
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, share)
            return self.lr_scheduler

    arguments = json.loads((HERE / "training_arguments.json").read_text())
    trainer: Any = Plain(
        model=make_model(settings),
        args=TrainingArguments(**arguments, max_steps=steps, output_dir=str(HERE / "output")),
        train_dataset=Sequences(_data(settings), settings["seq_len"], settings["sequences"]),  # type: ignore[arg-type]
        callbacks=[Clock()],
    )
    trainer.model_accepts_loss_kwargs = False  # each micro-batch's mean loss is divided by their number
    trainer.train()
    return losses, [end - begin for begin, end in itertools.pairwise(ends_s)]


def with_deepspeed(settings: dict[str, Any], steps: int) -> tuple[list[float], list[float]]:
    """Trains by `deepspeed.initialize`; returns the losses and seconds of the steps."""
    import deepspeed

    on_cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_cuda else torch.device("cpu")
    if not on_cuda:  # gloo needs no shared-memory collectives, which DeepSpeed would compile
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="nccl" if on_cuda else "gloo")
    config = json.loads((HERE / "ds_config.json").read_text())
    model = make_model(settings)
    if settings["gradient_checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = None if "optimizer" in config else make_optimizer(model.parameters(), settings)
    initialize: Any = deepspeed.initialize
    engine, *_ = initialize(model=model, model_parameters=list(model.parameters()), optimizer=optimizer, config=config)
    batches = _batches(settings, dist.get_rank(), dist.get_world_size())
    losses, seconds, rate = list[float](), list[float](), settings["optimizer"]["lr"]
    for step in range(steps):
        began_s = time.perf_counter()
        for group in engine.optimizer.param_groups:
            group["lr"] = rate * learning_rate_share(settings, step)
        total = torch.zeros((), device=device)
        for tokens in itertools.islice(batches, settings["grad_accum"]):
            loss = next_token_loss(engine, tokens.to(device, non_blocking=True))
            engine.backward(loss)
            engine.step()
            total += loss.detach().float() / settings["grad_accum"]
        dist.all_reduce(total)
        losses.append(total.item() / dist.get_world_size())
        seconds.append(time.perf_counter() - began_s)
        if dist.get_rank() == 0:
            print(f"step {step + 1}, loss {losses[-1]:.4f}, {seconds[-1]:.3f} s", flush=True)
    return losses, seconds


def _batches(settings: dict[str, Any], rank: int, ranks: int) -> Iterator[torch.Tensor]:
    """Yields the micro-batches of one rank."""
    data, size = Sequences(_data(settings), settings["seq_len"], settings["sequences"]), settings["micro_batch"]
    for number in itertools.count():
        first = (number * ranks + rank) * size
        yield torch.stack([data[first + i]["tokens"] for i in range(size)])


def _data(settings: dict[str, Any]) -> Path:
    return HERE / settings["data"]  # joining an absolute path returns it unchanged


def main() -> None:
    """Trains, and writes losses and seconds to `steps.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, help="optimizer steps (default: those of the whole training)")
    settings = json.loads((HERE / "settings.json").read_text())
    steps = parser.parse_args().steps or settings["steps"]
    torch.set_float32_matmul_precision(settings["matmul_precision"])
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    trained = with_deepspeed if settings["with"] == "deepspeed" else with_accelerate
    losses, seconds = trained(settings, steps)
    if not dist.is_initialized() or dist.get_rank() == 0:
        (HERE / "steps.json").write_text(json.dumps({"losses": losses, "seconds": seconds}) + "\n")
    if dist.is_initialized():
        dist.destroy_process_group()  # ZeRO stage 3 aborts at a plain exit


if __name__ == "__main__":
    main()
