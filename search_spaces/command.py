"""The space of a user's own command, whose holes are the axes."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from search_spaces.space import Space
from trainers.spec.codec import shortened
from trainers.spec.recipe import Recipe
from trainers.spec.workload import Workload, digest_of, flags_of, flags_text, holes_in, with_holes

MICRO_BATCH, GRAD_ACCUM = "micro_batch", "grad_accum"
FILLED = {
    "gpus": "the devices of a node",
    "world_size": "the devices of a trial",
    GRAD_ACCUM: "what makes up --tokens-per-step",
    "out": "an empty folder",
    "nodes": "the number of nodes",
    "node_rank": "the number of a node",
    "head": "the address of the first node",
    "port": "a free port of the first node",
}
"""Holes that are filled as described here and have no values."""
LARGEST = "max"
"""Value of `MICRO_BATCH` for the largest that fits."""
OF_NODES = ("nodes", "node_rank", "head")
"""Holes that a command on several nodes must have."""
_MOST_HASHED = 10 * 2**20
"""Largest size in bytes of a file whose content counts as part of the command; a larger file is data."""
FIRST_STEP_S = 900.0
"""Seconds that a command may take until its first step: imports, data and compilation."""
_MOST_LAYOUTS = 100_000
_LIKE_A_HOLE = re.compile(r"(?<!\{)\{\s*[A-Za-z_][\w.-]*\s*=[^{}\"]*\}")
"""Single braces around a name and values, which only a hole has."""


def holes_of(command: Sequence[str], environment: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """Returns the values by hole of a command and of its environment's `NAME=VALUE`s, in order; none for the holes of
    `FILLED`.

    Raises:
        ValueError: a hole has no values, values twice, or values that it must not have, or there is no hole for the
            micro-batch.
    """
    values: dict[str, tuple[str, ...]] = {}
    named: list[str] = []
    for number, word in enumerate((*command, *environment)):
        odd = next((match[0] for match in _LIKE_A_HOLE.finditer(word) if not any(holes_in(match[0]))), None)
        if odd is not None:
            raise ValueError(f"{odd} is no hole: a name has letters, digits and _, and = follows it, as in"
                             f" {{stage=1,2}}; {{{odd}}} are the braces themselves")  # fmt: skip
        for match in holes_in(word):
            name, listed = match[1], match[2]
            named.append(name)
            if listed is not None:
                if name in values:
                    raise ValueError(f"hole {{{name}}} has its values twice: give them once, and write {{{name}}} where"
                                     " they are repeated")  # fmt: skip
                values[name] = _values(name, listed, alone=match[0] == word or number >= len(command))
    for name in named:
        if name not in values and name not in FILLED:
            raise ValueError(f"hole {{{name}}} has no values: write {{{name}=a,b}}, or {{{{{name}}}}} for the braces"
                             " themselves")  # fmt: skip
    if MICRO_BATCH not in values:
        taken_apart = any(word.partition("=")[0].endswith(MICRO_BATCH) for word in command)
        quote = ("; the shell expanded the braces" if taken_apart else "") + ": quote each hole"
        raise ValueError("the command has no hole for the sequences of a device's micro-step, as in"
                         f" --batch_size '{{micro_batch=1,2,4,8}}'{quote}")  # fmt: skip
    if GRAD_ACCUM not in named and (len(values[MICRO_BATCH]) > 1 or values[MICRO_BATCH] == (LARGEST,)):
        raise ValueError("with several values of {micro_batch} all points train on equal tokens a step only where the"
                         " accumulation follows: write it as {grad_accum}, as in --gradient_accumulation_steps"
                         " {grad_accum}")  # fmt: skip
    return {name: values.get(name, ()) for name in dict.fromkeys(named)}


def _values(name: str, listed: str, *, alone: bool) -> tuple[str, ...]:
    if name in FILLED:
        raise ValueError(f"hole {{{name}}} is {FILLED[name]} and takes no values, got {shortened(listed)}")
    values = tuple(listed.split(","))
    if name == MICRO_BATCH and values != (LARGEST,):
        micro_batches_of(values)
    if len(set(values)) < len(values):
        raise ValueError(f"hole {{{name}}} has a value twice: {listed}")
    if "" in values and not alone:
        raise ValueError(f"an empty value of {{{name}}} leaves its word out, which must then be the hole alone, as in"
                         f" {{{name}=--flag,}}")  # fmt: skip
    return values


def space_of_command(
    command: Sequence[str],
    *,
    folder: Path,
    tokens_per_step: int,
    seq_len: int,
    step_line: str = "",
    environment: Sequence[str] = (),
    without: Sequence[str] = (),
) -> Space:
    """Returns the space of a command that runs in `folder` with the `NAME=VALUE`s of `environment`, at sequences of
    `seq_len` tokens, without the combinations of `without` (see `combinations_of`).

    Raises:
        ValueError: as for `holes_of`; `step_line` is no pattern, or `seq_len` does not divide the tokens.
    """
    holes = holes_of(command, environment)
    if tokens_per_step % seq_len:
        raise ValueError(f"--tokens-per-step {tokens_per_step} is no multiple of the {seq_len} tokens of a sequence:"
                         " a step holds whole sequences")  # fmt: skip
    try:
        re.compile(step_line)
    except re.error as error:
        raise ValueError(f"--step-line {step_line!r} is no regular expression: {error}") from error
    finds_largest = holes[MICRO_BATCH] == (LARGEST,)
    axes = {name: values for name, values in holes.items() if values and name != MICRO_BATCH}
    words = tuple(with_holes(word, _without_values) for word in command)
    files = tuple(named_files(words, folder))
    workload = Workload(
        name=files[0].name if files else Path(words[0]).name,
        command=words,
        digest=digest_of(words, files),
        folder=str(folder),
        step_line=step_line,
        environment=tuple(with_holes(pair, _without_values) for pair in environment),
    )
    return Space(
        name=name_of(Path(workload.name), "command"),
        summary=f"the command {' '.join(words)}",
        recipe=recipe_of(workload, seq_len, tokens_per_step),
        axes={"engine": ("command",), "flags": tuple(combinations_of(axes, without))},
        micro_batches=(1,) if finds_largest else micro_batches_of(holes[MICRO_BATCH]),
        finds_largest=finds_largest,
        refine=False,
        chosen=() if finds_largest else (MICRO_BATCH,),
        first_step_s=FIRST_STEP_S,
    )


def _without_values(hole: re.Match[str]) -> str:
    return f"{{{hole[1]}}}"


def micro_batches_of(values: Sequence[str]) -> tuple[int, ...]:
    """Returns the listed micro-batches, ascending.

    Raises:
        ValueError: a value is no whole number of at least 1.
    """
    if wrong := [value for value in values if not value.isascii() or not value.isdecimal() or int(value) < 1]:
        raise ValueError(f"micro-batches are whole numbers of at least 1, got {shortened(wrong[0])}")
    return tuple(sorted(set(map(int, values))))


def combinations_of(axes: Mapping[str, Sequence[str]], without: Sequence[str] = ()) -> Iterator[str]:
    """Yields every combination of the axes' values as text for `Layout.flags`, except excluded ones. A text of
    `without` such as "fsdp=full_shard 'ckpt=true,false'" excludes combinations that have one of the listed values for
    each named axis.

    Raises:
        ValueError: there are too many combinations, or none.
    """
    excluded = [{name: values.split(",") for name, values in flags_of(text).items()} for text in without]
    number = 0
    for combination in itertools.product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        if any(all(values.get(name) in listed for name, listed in each.items()) for each in excluded):
            continue
        if number == _MOST_LAYOUTS:
            raise ValueError(f"the axes have more than {_MOST_LAYOUTS:,} combinations: list fewer values")
        number += 1
        yield flags_text(values)
    if not number:
        raise ValueError("every combination of the axes' values is excluded")


def named_files(words: Sequence[str], folder: Path) -> Iterator[Path]:
    """Yields the text files that a command's words name: as a path, behind `=`, or as a module after `-m`."""
    paths: set[Path] = set()
    for before, word in zip(("", *words), words, strict=False):
        names = [word, word.partition("=")[2]]
        if before == "-m":
            module = word.replace(".", "/")
            names = [f"{module}.py", f"{module}/__main__.py"]
        for path in (folder / name for name in names if name):
            if _is_text(path) and path not in paths:
                paths.add(path)
                yield path


def _is_text(path: Path) -> bool:
    try:
        if not path.is_file() or path.stat().st_size > _MOST_HASHED:
            return False
        with path.open("rb") as file:
            return b"\0" not in file.read(4096)
    except OSError:  # the word is too long for a name, or the file may not be read
        return False


def name_of(path: Path, default: str) -> str:
    """Returns a name for a space from its training's file, with characters allowed in a folder's name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", path.stem).strip("-._") or default


def recipe_of(workload: Workload, seq_len: int, tokens_per_step: int) -> Recipe:
    """Returns the recipe of a user's own training, whose model is unknown."""
    return Recipe(
        model=None,  # pyright: ignore[reportArgumentType]
        workload=workload,
        seq_len=seq_len,
        global_batch=tokens_per_step // seq_len,
    )
