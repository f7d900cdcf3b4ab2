"""Optuna's default sampler (TPE) with each trial in a separate process: what a user writes without Ray."""

import multiprocessing
import queue
import time
from pathlib import Path
from typing import Any

import optuna

from benchmarks.beside_peers import trial
from benchmarks.beside_peers.record import Record, outcome_of


def _in_process(name: str, changes: tuple[str, ...], choice: dict[str, Any], answers: Any) -> None:
    try:
        answers.put((trial.tokens_per_s(trial.space_of(name, changes), choice), "ok"))
    except Exception as error:
        answers.put((None, outcome_of(error)))


def main(name: str, changes: tuple[str, ...], seed: int, limit_s: float, out: Path) -> None:
    """Searches until the limit, killing the trial that runs then."""
    began_unix_s = time.time()
    record, until = Record(out, began_unix_s), time.monotonic() + limit_s
    space = trial.space_of(name, changes)
    axes = trial.values(space)
    context = multiprocessing.get_context("spawn")
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(optuna_trial: optuna.Trial) -> float:
        choice = {axis: optuna_trial.suggest_categorical(axis, each) for axis, each in axes.items()}
        if trial.candidate_of(space, choice) is None:
            raise optuna.TrialPruned  # costs nothing: no process starts
        answers = context.Queue()
        process = context.Process(target=_in_process, args=(name, changes, choice, answers))
        process.start()
        try:
            speed, outcome = answers.get(timeout=max(0.1, until - time.monotonic()))
        except queue.Empty:
            process.kill()
            study.stop()
            raise optuna.TrialPruned from None
        process.join()
        record.trial(outcome=outcome, choice=choice, tokens_per_s=speed)
        return speed or 0.0

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, timeout=limit_s)
