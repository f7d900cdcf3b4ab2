"""Optuna over Ray Tune, each trial a Ray Train `TorchTrainer`: what a user of Ray writes."""

import os
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.tune
from ray.train.torch import TorchConfig, TorchTrainer
from ray.tune.search.optuna import OptunaSearch

from benchmarks.beside_peers import trial
from benchmarks.beside_peers.record import Record, outcome_of


def _worker(config: dict[str, Any]) -> None:
    space = trial.space_of(config["space"], config["changes"], config["gpus"])
    record, rank = Record(Path(config["out"]), config["began_unix_s"]), ray.train.get_context().get_world_rank()
    speed = trial.tokens_per_s(space, config["choice"], rank)
    if rank == 0:
        record.trial(outcome="ok", choice=config["choice"], tokens_per_s=speed)
    ray.train.report({"tokens_per_s": speed})


def main(name: str, changes: tuple[str, ...], gpus: int, seed: int, limit_s: float, out: Path) -> None:
    """Searches until the limit; trials run one after another."""
    import torch

    began_unix_s = time.time()
    space = trial.space_of(name, changes, gpus)
    axes = trial.values(space)
    on_gpu = torch.cuda.is_available()
    storage = str(out.parent / f"{out.stem}-ray")
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    # The controller of a trainer and the trial each take a CPU beside the workers.
    cpus = max(os.cpu_count() or 1, gpus + 3)
    ray.init(address="local", num_cpus=cpus, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": path}})

    def objective(choice: dict[str, Any]) -> dict[str, float]:
        if trial.candidate_of(space, choice) is None:
            return {"tokens_per_s": 0.0}
        trainer = TorchTrainer(
            _worker,
            train_loop_config={
                "space": name,
                "changes": changes,
                "gpus": gpus,
                "choice": choice,
                "out": str(out),
                "began_unix_s": began_unix_s,
            },
            torch_config=TorchConfig(backend="nccl" if on_gpu else "gloo"),
            scaling_config=ray.train.ScalingConfig(num_workers=gpus, use_gpu=on_gpu),
            run_config=ray.train.RunConfig(storage_path=storage),
        )
        try:
            metrics = trainer.fit().metrics or {}
        except Exception as error:  # an out-of-memory error is a bad choice, not the end of the search
            Record(out, began_unix_s).trial(outcome=outcome_of(error), choice=choice, tokens_per_s=None)
            return {"tokens_per_s": 0.0}
        return {"tokens_per_s": float(metrics.get("tokens_per_s", 0.0))}

    tuner = ray.tune.Tuner(
        objective,
        param_space={axis: ray.tune.choice(values) for axis, values in axes.items()},
        tune_config=ray.tune.TuneConfig(
            metric="tokens_per_s",
            mode="max",
            num_samples=-1,
            max_concurrent_trials=1,
            time_budget_s=limit_s,
            search_alg=OptunaSearch(metric="tokens_per_s", mode="max", seed=seed),
        ),
        run_config=ray.tune.RunConfig(storage_path=storage, verbose=0),
    )
    tuner.fit()
    ray.shutdown()
