"""DeepSpeed's Autotuner over ZeRO stages and micro-batches of a plain DeepSpeed script, which `_train` below is.

It tunes only those two axes, so the kernels stay what its script has: SDPA, uncompiled, whole logits.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

from benchmarks.beside_peers import trial
from benchmarks.beside_peers.record import Record


def main(name: str, changes: tuple[str, ...], gpus: int, seed: int, limit_s: float, out: Path) -> None:
    """Runs the Autotuner until the limit; its experiments are this peer's trials."""
    began_unix_s = time.time()
    folder = out.parent.absolute() / f"{out.stem}-autotuner"
    folder.mkdir(parents=True, exist_ok=True)
    recipe = trial.space_of(name, changes, gpus).recipe
    config: dict[str, Any] = {
        "train_batch_size": recipe.global_batch,
        "train_micro_batch_size_per_gpu": "auto",
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": recipe.learning_rate}},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": [0, 1, 2, 3]},  # without it only stage 0 is tuned
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
    launcher = _commands(folder / "bin")
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
    environment["PATH"] = os.pathsep.join([str(launcher.parent), os.environ.get("PATH", os.defpath)])
    environment |= {**_mlflow_run(folder), "PYTHONWARNINGS": "ignore"}
    # DeepSpeed 0.19 reads a capability such as 9.0a as two numbers, and fails.
    if "TORCH_CUDA_ARCH_LIST" in environment:
        environment["TORCH_CUDA_ARCH_LIST"] = re.sub(r"(?<=\d)[a-z]", "", environment["TORCH_CUDA_ARCH_LIST"])
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [str(launcher), "--num_gpus", str(gpus), "--autotuning", "tune", *script],
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


def _commands(folder: Path) -> Path:
    """Writes the commands by which the Autotuner starts its experiments and ends them, which need not be on the path;
    returns the first.

    It ends them by `pdsh -f N -w HOSTS COMMAND`, here on this host alone.
    """
    folder.mkdir(exist_ok=True)
    runner = f'exec "{sys.executable}" -m deepspeed.launcher.runner "$@"'
    for name, line in {"deepspeed": runner, "pdsh": 'shift 4; "$@" || true'}.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    return folder / "deepspeed"


def _mlflow_run(folder: Path) -> dict[str, str]:
    """Returns the environment of a new MLflow run, to which the Autotuner logs wherever MLflow is installed."""
    import mlflow

    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = mlflow.MlflowClient(uri)
    run = client.create_run(client.create_experiment("autotuner", str(folder / "artifacts")))
    return {"MLFLOW_TRACKING_URI": uri, "MLFLOW_RUN_ID": run.info.run_id}


def _train() -> None:
    """Trains a transformers model under `deepspeed.initialize`, as the user's script."""
    import deepspeed
    import torch
    import transformers

    parser = argparse.ArgumentParser()
    parser.add_argument("--space")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--local_rank", type=int, default=0)
    parser.add_argument("--micro-batch", type=int, default=1)
    options = deepspeed.add_config_arguments(parser).parse_args()
    recipe = trial.space_of(options.space, tuple(options.set), 1).recipe
    sizes = recipe.model
    settings: dict[str, Any] = json.loads(sizes.config) if sizes.config else sizes.to_config()
    settings |= {"model_type": sizes.architecture, "use_cache": False}
    config = transformers.AutoConfig.for_model(**settings)
    model: Any = transformers.AutoModelForCausalLM.from_config(config)
    engine, *_ = cast(Any, deepspeed).initialize(args=options, model=model, model_parameters=model.parameters())
    size = engine.train_micro_batch_size_per_gpu()
    tokens = torch.randint(sizes.vocab_size, (size, recipe.seq_len), device=engine.device)
    for _ in range(20 * engine.gradient_accumulation_steps()):
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()


if __name__ == "__main__":
    # An experiment whose standard error has the word "error" in any line, as warnings have, counts as failed.
    standard_error = os.dup(2)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123  # no path of ours
        os.dup2(nowhere.fileno(), 2)
    try:
        _train()
    except BaseException:
        os.dup2(standard_error, 2)
        raise
