"""The space of a user's own function that builds a training step; its axes come from `--set`."""

from collections.abc import Sequence
from pathlib import Path

from search_spaces.command import FIRST_STEP_S, MICRO_BATCH, combinations_of, micro_batches_of, name_of, recipe_of
from search_spaces.space import Space
from trainers.spec.codec import shortened
from trainers.spec.workload import Workload, digest_of, file_of


def axes_of_texts(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Returns the values by axis of texts such as "width=256,512".

    Raises:
        ValueError: no "=", an invalid name, an axis given twice, or a repeated or empty value.
    """
    axes: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, listed = text.partition("=")
        values = tuple(value.strip() for value in listed.split(","))
        if not equals or not name.isidentifier():
            raise ValueError(f"--set needs NAME=VALUE,VALUE, got {text!r}")
        if name in axes:
            raise ValueError(f"--set {name} is given twice: list its values in one, as in {name}=a,b")
        if "" in values or len(set(values)) < len(values):
            raise ValueError(f"axis {name} has an empty value, or one twice: {shortened(listed)}")
        axes[name] = values
    return axes


def space_of_function(
    build: str,
    sets: Sequence[str],
    *,
    folder: Path,
    tokens_per_step: int,
    seq_len: int = 1,
    environment: Sequence[str] = (),
    without: Sequence[str] = (),
) -> Space:
    """Returns the space of the function `build` (`FILE.py:NAME` or `MODULE:NAME`), which runs in `folder`, at sequences
    of `seq_len` tokens. It has the product of the axes in `sets`, at each listed micro-batch, or at doubling ones until
    memory or the step's size ends them. For `environment` and `without` see `search_spaces.command.space_of_command`.

    Raises:
        ValueError: as for `axes_of_texts` and `file_of`; or `seq_len` does not divide the tokens.
    """
    axes = axes_of_texts(sets)
    if tokens_per_step % seq_len:
        raise ValueError(f"--tokens-per-step {tokens_per_step} is no multiple of the {seq_len} tokens of a sequence:"
                         " a step holds whole sequences")  # fmt: skip
    path = file_of(build, str(folder))
    workload = Workload(
        name=f"{path.stem}:{build.rpartition(':')[2]}",
        command=(),
        build=build,
        digest=digest_of((build,), (path,)),
        folder=str(folder),
        environment=tuple(environment),
    )
    listed = axes.pop(MICRO_BATCH, None)
    return Space(
        name=name_of(path, "function"),
        summary=f"the function {build}",
        recipe=recipe_of(workload, seq_len, tokens_per_step),
        axes={"engine": ("function",), "flags": tuple(combinations_of(axes, without))},
        micro_batches=(1,) if listed is None else micro_batches_of(listed),
        doubling=listed is None,
        refine=listed is None,
        chosen=() if listed is None else (MICRO_BATCH,),
        first_step_s=FIRST_STEP_S,
    )
