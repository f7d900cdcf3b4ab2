"""The state of a training, as a sentence or as JSON."""

from typing import TypedDict

from platform.common.text import duration, figure
from platform.train.training_folder import TrainingFolder, steps_of
from trainers.records.training import Begun, Saved, TrainingPlan, Validated


class TrainingForm(TypedDict):
    """The state of a training."""

    folder: str
    """The training's folder."""
    complete: bool
    """Whether all tokens are trained on."""
    tokens: int
    """Tokens trained on in all recorded steps."""
    trained_tokens: int | None
    """Tokens trained on that have a loss, if the data mark tokens; null if all have one."""
    tokens_saved: int
    """Tokens trained on at the newest checkpoint."""
    steps: int
    """Optimizer steps."""
    train_loss: float | None
    """Loss of the last step; null before the first."""
    val_loss: float | None
    """Last held-out loss; null before the first."""
    train_s: float
    """Seconds of training."""
    attempts: int
    """Number of times that the training was begun or resumed."""
    checkpoint_stall_s: float | None
    """Longest time for which a checkpoint stopped the training; null before the first."""
    checkpoint: str
    """The newest checkpoint; empty if there is none."""


def summary(folder: TrainingFolder, plan: TrainingPlan) -> TrainingForm:
    """Returns the state of the training so far: tokens, steps, losses and paths, as JSON values."""
    records = folder.read_records()
    steps = steps_of(records)
    validated = [record for record in records if isinstance(record, Validated)]
    saved = [record for record in records if isinstance(record, Saved)]
    saved_tokens = folder.tokens_saved()
    return {
        "folder": str(folder.path),
        "complete": plan.phase_at(saved_tokens) is None,
        "tokens": steps[-1].tokens if steps else 0,
        "trained_tokens": sum(step.trained_tokens or 0 for step in steps)
        if plan.recipe.trained_tokens != "all"
        else None,
        "tokens_saved": saved_tokens,
        "steps": steps[-1].last_step if steps else 0,
        "train_loss": steps[-1].losses[-1] if steps else None,
        "val_loss": validated[-1].loss if validated else None,
        "train_s": steps[-1].train_s if steps else 0.0,
        "attempts": sum(isinstance(record, Begun) for record in records),
        "checkpoint_stall_s": max((checkpoint.stall_s for checkpoint in saved), default=None),
        "checkpoint": str(folder.newest_checkpoint() or ""),
    }


def closing_sentence(folder: TrainingFolder, result: TrainingForm) -> str:
    if not result["steps"]:
        return f"No step is complete yet: the same command resumes the training in {folder.path}."
    losses = f"loss {figure(result['train_loss'])}"
    if result["val_loss"] is not None:
        losses += f", held out {figure(result['val_loss'])}"
    if result["complete"]:
        marked = "" if result["trained_tokens"] is None else f", {result['trained_tokens']:,} of them with a loss,"
        return (
            f"Trained on {result['tokens']:,} tokens{marked} in {duration(result['train_s'])} of training: {losses}."
            f" The last checkpoint is {result['checkpoint']}."
        )
    return (
        f"The training is at {result['tokens_saved']:,} tokens ({losses}): the same command resumes it from"
        f" {result['checkpoint']}"
        if result["checkpoint"]
        else f"The training ended before its first checkpoint ({losses}): the same command begins it again."
    )
