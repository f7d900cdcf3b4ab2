"""Optuna's default sampler (TPE) with each trial in separate processes: what a user writes without Ray."""

import multiprocessing
import queue
import tempfile
import time
from pathlib import Path
from typing import Any

import optuna

from benchmarks.beside_peers import trial
from benchmarks.beside_peers.record import Record, outcome_of


def _in_process(
    rank: int, name: str, changes: tuple[str, ...], gpus: int, choice: dict[str, Any], store: Path, answers: Any
) -> None:
    try:
        speed = trial.tokens_per_s(trial.space_of(name, changes, gpus), choice, rank, store)
        if rank == 0:
            answers.put((speed, "ok"))
    except Exception as error:
        answers.put((None, outcome_of(error)))


def main(name: str, changes: tuple[str, ...], gpus: int, seed: int, limit_s: float, out: Path) -> None:
    """Searches until the limit, killing the trial that runs then."""
    began_unix_s = time.time()
    record, until = Record(out, began_unix_s), time.monotonic() + limit_s
    space = trial.space_of(name, changes, gpus)
    axes = trial.values(space)
    context = multiprocessing.get_context("spawn")
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(optuna_trial: optuna.Trial) -> float:
        choice: Any = {axis: optuna_trial.suggest_categorical(axis, values) for axis, values in axes.items()}
        if trial.candidate_of(space, choice) is None:
            raise optuna.TrialPruned  # costs nothing: no process starts
        answers = context.Queue()
        with tempfile.TemporaryDirectory() as folder:
            arguments = (name, changes, gpus, choice, Path(folder) / "store", answers)
            processes = [context.Process(target=_in_process, args=(rank, *arguments)) for rank in range(gpus)]
            for process in processes:
                process.start()
            try:
                speed, outcome = answers.get(timeout=max(0.1, until - time.monotonic()))
            except queue.Empty:
                study.stop()
                raise optuna.TrialPruned from None
            finally:
                # One rank's failure leaves the others in a collective for ever.
                for process in processes:
                    process.join(5 if gpus == 1 else 0.5)
                    process.kill()
                    process.join()
        record.trial(outcome=outcome, choice=choice, tokens_per_s=speed)
        return speed or 0.0

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, timeout=limit_s)
