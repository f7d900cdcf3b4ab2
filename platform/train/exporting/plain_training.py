"""Trains the model of `model/` on token Parquet with transformers' Trainer and accelerate, or with DeepSpeed.

    ./launch.sh                 # to the end, from the newest checkpoint on; the model is then in trained/
    ./launch.sh --steps 20      # to step 20, without a checkpoint at the end

An export wrote this script. It only needs the files beside it: settings.json, and training_arguments.json or
ds_config.json. Checkpoints are written every ten minutes (--checkpoint-s) and when SIGTERM or Ctrl-C ends the program;
the last two are kept. At the end `steps.json` is written: loss and seconds of each optimizer step of this run.
"""

import argparse
import atexit
import bisect
import functools
import itertools
import json
import math
import os
import shutil
import signal
import sys
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
CHECKPOINTS, TRAINED, UNFINISHED = "checkpoints", "trained", "trained.part"
COMPLETE = "complete"
"""Name of a file that marks a checkpoint as completely written by all ranks."""
_KEPT = 2


class Pauses:
    """Decides for all ranks alike after which steps to save a checkpoint, and whether to end there."""

    def __init__(self, every_s: float, device: torch.device) -> None:
        self._every_s, self._device = every_s, device
        self._last_s, self._signalled = time.monotonic(), False
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, self._signal)

    def _signal(self, *_: Any) -> None:
        self._signalled = True

    def after_step(self) -> tuple[bool, bool]:
        """Returns whether to save now, and whether to end then. A collective."""
        is_due = time.monotonic() - self._last_s >= self._every_s
        wishes = torch.tensor([is_due or self._signalled, self._signalled], dtype=torch.int32, device=self._device)
        if dist.is_initialized():
            dist.all_reduce(wishes, op=dist.ReduceOp.MAX)
        saves, ends = (bool(wish) for wish in wishes.tolist())
        if saves:
            self._last_s = time.monotonic()
        return saves, ends


def is_first_rank() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def complete_checkpoints() -> list[Path]:
    """Returns the folders of complete checkpoints, the oldest first."""
    marks = (HERE / CHECKPOINTS).glob(f"checkpoint-*/{COMPLETE}")
    return sorted((mark.parent for mark in marks), key=lambda path: int(path.name.rpartition("-")[2]))


def completed(path: Path) -> None:
    """Marks a checkpoint that all ranks have written as complete, and removes the oldest ones. A collective."""
    if dist.is_initialized():
        dist.barrier()
    if is_first_rank():
        (path / COMPLETE).touch()
        for old in complete_checkpoints()[:-_KEPT]:
            shutil.rmtree(old)


def finish(model: Path) -> None:
    """Copies the export's tokenizer, if any, beside the trained model, and renames the folder to `trained/`."""
    (model / "training_args.bin").unlink(missing_ok=True)
    for path in (HERE / "model").iterdir():
        if path.name != "config.json":
            shutil.copy(path, model)
    model.rename(HERE / TRAINED)


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
    """Returns the model of `model/` without dropout, with a folder's weights if one is set, else random ones."""
    torch.manual_seed(settings["seed"])
    model_options: dict[str, Any] = {
        "dtype": getattr(torch, settings["dtype"]),
        "attn_implementation": settings["attention"],
    }
    config = AutoConfig.from_pretrained(HERE / "model")
    if settings["weights"]:
        return AutoModelForCausalLM.from_pretrained(settings["weights"], config=config, **model_options).train()
    return AutoModelForCausalLM.from_config(config, **model_options).train()


def decay_groups(model: Any, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the parameter groups: with weight decay (all parameters, or only matrices), and without it."""
    decayed, plain = list[Any](), list[Any]()
    for parameter in model.parameters():
        is_matrix = len(getattr(parameter, "ds_shape", parameter.shape)) > 1
        (decayed if is_matrix or settings["decay"] == "all" else plain).append(parameter)
    return [{"params": decayed}, *([{"params": plain, "weight_decay": 0.0}] if plain else [])]


def make_optimizer(model: Any, settings: dict[str, Any]) -> torch.optim.Optimizer:
    options = dict(settings["optimizer"])
    if options.pop("name") == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(decay_groups(model, settings), **options)
    return torch.optim.AdamW(decay_groups(model, settings), fused=True, **options)


def learning_rate_share(settings: dict[str, Any], step: int) -> float:
    """Returns the learning rate of a step (from 0) as a share of the highest one."""
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


def with_accelerate(settings: dict[str, Any], steps: int, every_s: float) -> tuple[list[float], list[float], bool]:
    """Trains by transformers' Trainer under accelerate's configuration.

    Returns losses and seconds of the steps, and whether the training is complete.
    """
    from transformers import Trainer, TrainerCallback, TrainingArguments

    losses, ends_s = list[float](), list[float]()
    pauses: list[Pauses] = []

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            saves, ends = pauses[0].after_step()
            control.should_save = saves and state.global_step < settings["steps"]  # it resumes from that step too
            control.should_training_stop = ends or state.global_step >= steps

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            completed(HERE / CHECKPOINTS / f"checkpoint-{state.global_step}")

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            ends_s.append(time.perf_counter())

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs and "loss" in logs:  # a step's loss is logged after the step has ended
                losses.append(float(logs["loss"]))
                ends_s.append(time.perf_counter())

    class Plain(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            return next_token_loss(model, inputs["tokens"])

        def create_optimizer(self, model: Any = None) -> Any:
            trained: Any = model or self.model
            self.optimizer = make_optimizer(trained, settings)
            return self.optimizer

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            share = functools.partial(learning_rate_share, settings)
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, share)
            return self.lr_scheduler

    arguments = json.loads((HERE / "training_arguments.json").read_text())
    trainer: Any = Plain(
        model=make_model(settings),
        args=TrainingArguments(**arguments, max_steps=settings["steps"], output_dir=str(HERE / CHECKPOINTS)),
        train_dataset=Sequences(_data(settings), settings["seq_len"], settings["sequences"]),  # type: ignore[arg-type]
        callbacks=[Clock()],
    )
    trainer.model_accepts_loss_kwargs = False  # the Trainer divides each mean loss by their number
    pauses.append(Pauses(every_s, trainer.args.device))
    newest = next(iter(complete_checkpoints()[-1:]), None)
    trainer.train(resume_from_checkpoint=None if newest is None else str(newest))
    is_done = trainer.state.global_step >= settings["steps"]
    if is_done:
        if trainer.is_fsdp_enabled:
            trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        trainer.model.config.use_cache = True
        trainer.save_model(str(HERE / UNFINISHED))
    return losses, [end - begin for begin, end in itertools.pairwise(ends_s)], is_done


def with_deepspeed(settings: dict[str, Any], steps: int, every_s: float) -> tuple[list[float], list[float], bool]:
    """Trains by `deepspeed.initialize`; returns losses and seconds of the steps, and whether it is complete."""
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
    optimizer = None if "optimizer" in config else make_optimizer(model, settings)
    initialize: Any = deepspeed.initialize
    engine, *_ = initialize(
        model=model, model_parameters=decay_groups(model, settings), optimizer=optimizer, config=config
    )
    first = 0
    for newest in complete_checkpoints()[-1:]:
        _, state = engine.load_checkpoint(str(newest.parent), tag=newest.name)
        first = state["step"]
    batches = _batches(settings, dist.get_rank(), dist.get_world_size(), first * settings["grad_accum"])
    losses, seconds, rate = list[float](), list[float](), settings["optimizer"]["lr"]
    pauses = Pauses(every_s, device)
    step = first - 1
    for step in range(first, steps):
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
        saves, ends = pauses.after_step()
        if saves or step + 1 == settings["steps"]:
            path = HERE / CHECKPOINTS / f"checkpoint-{step + 1}"
            engine.save_checkpoint(str(path.parent), tag=path.name, client_state={"step": step + 1}, save_latest=False)
            completed(path)
        if ends:
            break
    is_done = step + 1 >= settings["steps"]
    if is_done and is_first_rank():
        _save_whole(engine, HERE / CHECKPOINTS / f"checkpoint-{settings['steps']}")
    dist.barrier()
    return losses, seconds, is_done


def _save_whole(engine: Any, checkpoint: Path) -> None:
    """Writes the sharded model in fp32 as a transformers folder; host memory holds it twice."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    if engine.zero_optimization_stage():
        weights = get_fp32_state_dict_from_zero_checkpoint(str(checkpoint.parent), tag=checkpoint.name)
    else:
        weights = engine.module.state_dict()
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(HERE / "model"), dtype=torch.float32)
    model.load_state_dict(weights)
    model.config.use_cache = True
    model.save_pretrained(HERE / UNFINISHED)


def _batches(settings: dict[str, Any], rank: int, ranks: int, first_number: int) -> Iterator[torch.Tensor]:
    """Yields one rank's micro-batches, beginning with number `first_number`."""
    data, size = Sequences(_data(settings), settings["seq_len"], settings["sequences"]), settings["micro_batch"]
    for number in itertools.count(first_number):
        first = (number * ranks + rank) * size
        yield torch.stack([data[first + i]["tokens"] for i in range(size)])


def _data(settings: dict[str, Any]) -> Path:
    return HERE / settings["data"]  # joining an absolute path returns it unchanged


def main() -> None:
    """Trains, writes losses and seconds to `steps.json`, and the model if the training is complete."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, help="end after this optimizer step (default: the training's last one)")
    parser.add_argument("--checkpoint-s", type=float, default=600.0, help="seconds between checkpoints (600)")
    settings, options = json.loads((HERE / "settings.json").read_text()), parser.parse_args()
    if (HERE / TRAINED).exists():
        print(f"{HERE / TRAINED} holds the trained model: there is nothing left to do.", flush=True)
        return
    steps = min(options.steps or settings["steps"], settings["steps"])
    torch.set_float32_matmul_precision(settings["matmul_precision"])
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    trained = with_deepspeed if settings["with"] == "deepspeed" else with_accelerate
    losses, seconds, is_done = trained(settings, steps, options.checkpoint_s)
    if is_first_rank():
        (HERE / "steps.json").write_text(json.dumps({"losses": losses, "seconds": seconds}) + "\n")
        if is_done:
            finish(HERE / UNFINISHED)
            print(f"Trained: {HERE / TRAINED} holds the model.", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()  # ZeRO stage 3 aborts at a plain exit


def leave() -> None:
    """Ends the process after its exit handlers, without the interpreter's own end.

    Threads of gloo stay beside DDP although its group is destroyed, and an interpreter that ends beside them may abort
    (`terminate called without an active exception`): a complete training would end with an error.
    """
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
    leave()
