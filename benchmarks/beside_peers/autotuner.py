"""DeepSpeed's Autotuner over ZeRO stages and micro-batches of a plain DeepSpeed script, which `_train` below is.

It tunes only those two axes, so the kernels stay what its script has: SDPA, uncompiled, whole logits.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

from benchmarks.beside_peers import trial
from benchmarks.beside_peers.record import Record


def main(name: str, changes: tuple[str, ...], seed: int, limit_s: float, out: Path) -> None:
    """Runs the Autotuner until the limit; its experiments are this peer's trials."""
    began_unix_s = time.time()
    folder = out.parent.absolute() / f"{out.stem}-autotuner"
    folder.mkdir(parents=True, exist_ok=True)
    recipe = trial.space_of(name, changes).recipe
    config: dict[str, Any] = {
        "train_batch_size": recipe.global_batch,
        "train_micro_batch_size_per_gpu": "auto",
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": recipe.learning_rate}},
        "gradient_clipping": 1.0,
        "autotuning": {
            "enabled": True,
            "metric": "throughput",
            "fast": True,
            "results_dir": str(folder / "results"),
            "exps_dir": str(folder / "experiments"),
            "arg_mappings": {"train_micro_batch_size_per_gpu": "--micro-batch"},
        },
    }
    (folder / "ds.json").write_text(json.dumps(config))
    script = [str(Path(__file__).absolute()), "--space", name, "--deepspeed_config", str(folder / "ds.json")]
    script += [part for change in changes for part in ("--set", change)]
    launcher = Path(sys.executable).parent / "deepspeed"
    start = [str(launcher)] if launcher.exists() else [sys.executable, "-m", "deepspeed.launcher.runner"]
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*start, "--num_gpus", "1", "--autotuning", "tune", *script],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
    record = Record(out, began_unix_s)
    for path in sorted((folder / "results").rglob("metrics.json"), key=lambda path: path.stat().st_mtime):
        samples_per_s = json.loads(path.read_text() or "{}").get("throughput")
        record.trial(
            outcome="ok" if samples_per_s else "failed",
            choice=path.parent.name,
            tokens_per_s=samples_per_s * recipe.seq_len if samples_per_s else None,
            at_unix_s=path.stat().st_mtime,
        )


def _train() -> None:
    """Trains a transformers GPT-2 under `deepspeed.initialize`, as the user's script."""
    import deepspeed
    import torch
    import transformers

    parser = argparse.ArgumentParser()
    parser.add_argument("--space")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--local_rank", type=int, default=0)
    parser.add_argument("--micro-batch", type=int, default=1)
    options = deepspeed.add_config_arguments(parser).parse_args()
    recipe = trial.space_of(options.space, tuple(options.set)).recipe
    sizes = recipe.model
    config = transformers.GPT2Config(
        n_layer=sizes.num_layers,
        n_embd=sizes.hidden_size,
        n_head=sizes.num_heads,
        vocab_size=sizes.vocab_size,
        n_positions=sizes.max_positions,
    )
    model = transformers.GPT2LMHeadModel(config)
    engine, *_ = cast(Any, deepspeed).initialize(args=options, model=model, model_parameters=model.parameters())
    size = engine.train_micro_batch_size_per_gpu()
    tokens = torch.randint(sizes.vocab_size, (size, recipe.seq_len), device=engine.device)
    for _ in range(20 * engine.gradient_accumulation_steps()):
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()


if __name__ == "__main__":
    _train()
