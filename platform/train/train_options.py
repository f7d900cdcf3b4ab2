"""The options of `platform.train`, as one value."""

import argparse
import contextlib
import dataclasses
from pathlib import Path

from platform.common.options import address_field, argument, config_field, json_field, option
from platform.common.quantities import duration, positive, whole_number
from platform.study.folder import absolute_path, studies_field, trust_field
from platform.train.data_path import data_field
from trainers.records.training import ScheduleKind
from trainers.spec.recipe_axes import DataOrder

_count, _whole_count = whole_number(1), whole_number(0)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PhaseOption:
    """A phase given by `--phase`."""

    tokens: int
    """Length of the phase in tokens."""
    global_batch: int
    layout: Path | None = None
    """File with the phase's layout; None for the training's layout."""


def _share(text: str) -> float:
    with contextlib.suppress(ValueError):
        value = float(text)
        if 0 <= value <= 1:
            return value
    raise argparse.ArgumentTypeError(f"must lie in [0, 1], got {text!r}")


def _phase(text: str) -> PhaseOption:
    tokens, _, batch_text = text.partition(":")
    batch, _, layout = batch_text.partition(":")
    return PhaseOption(tokens=_count(tokens), global_batch=_count(batch), layout=Path(layout) if layout else None)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainOptions:
    target: str = argument(metavar="STUDY|FILE", about="a study whose winner is trained, or a layout.json")
    config: Path | None = config_field()
    tokens: int = option(read=_count, metavar="N", about="tokens to train on, as in 2e9 or 2B")
    data: str | None = data_field()
    data_order: DataOrder | None = option(None, about="order of an epoch's sequences (default: the recipe's)")
    out: Path | None = option(
        None, metavar="FOLDER", about="the training's folder (default: `training` beside the layout)"
    )
    recipe: str | None = option(
        None, metavar="ID", about="recipe to train, of a study with several (default: the first with a winner)"
    )
    learning_rate: float | None = option(
        None, read=positive, metavar="R", about="learning rate after the warm-up (default: the recipe's)"
    )
    lr_schedule: ScheduleKind = option(
        "cosine",
        about="learning rate after the warm-up: constant, half a cosine, or wsd (stable, then a linear decay) (default:"
        " %(default)s)",
    )
    warmup_tokens: int | None = option(
        None, read=_whole_count, metavar="N", about="tokens of the linear warm-up (default: 1 %% of --tokens)"
    )
    decay_tokens: int | None = option(
        None, read=_count, metavar="N", about="tokens of wsd's decay at the end (default: 20 %% of --tokens)"
    )
    final_share: float | None = option(
        None,
        read=_share,
        metavar="F",
        about="learning rate at the end, as a share of the highest (default: 0.1 for cosine, 0 for wsd)",
    )
    val_tokens: int | None = option(
        None,
        read=_whole_count,
        metavar="N",
        about="tokens at the end of the data that are held out, 0 for none (default: 5 %%, at most a million)",
    )
    val_data: str | None = option(None, metavar="PATH", about="held-out data, in place of the end of --data")
    val_every: int | None = option(
        None,
        read=_count,
        metavar="N",
        about="tokens between two held-out losses (default: so many that a training has 20)",
    )
    phases: tuple[PhaseOption, ...] = option(
        (),
        names=("--phase",),
        read=_phase,
        repeated=True,
        metavar="TOKENS:GLOBAL_BATCH[:FILE]",
        about="a phase before the rest, with its own global batch, and layout if FILE is given; may be repeated",
    )
    """Phases before the last one, which has the recipe's global batch."""
    start_from: str | None = option(None, metavar="FOLDER", about="begin with the weights of a transformers folder")
    verify_data: bool = option(
        False, about="read all token files and compare their hashes (default: compare sizes, times and 16 blocks)"
    )
    seed: int | None = option(
        None,
        read=_whole_count,
        metavar="N",
        about="seed of the weights and of the data's order (default: the recipe's)",
    )
    checkpoint_s: float = option(
        600.0, read=duration, metavar="S", about="seconds (or 10m) between checkpoints (default: %(default)g)"
    )
    checkpoint_steps: int | None = option(
        None, read=_count, metavar="N", about="optimizer steps between checkpoints, in place of seconds"
    )
    keep: int = option(2, read=_count, metavar="N", about="checkpoints to keep (default: %(default)s)")
    grace: float | None = option(
        None,
        read=duration,
        metavar="T",
        about="seconds (or 10m) from interrupt to kill: begin no checkpoint that takes longer (default: no limit)",
    )
    studies: Path = studies_field(read=str, then=absolute_path)
    address: str | None = address_field()
    trust: bool = trust_field()
    json: bool = json_field()
