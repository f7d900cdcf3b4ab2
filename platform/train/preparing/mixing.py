"""Mixes token folders: documents of each in turn, by weights that count tokens, in an order fixed by a seed.

The mixture consists of rounds of `_ROUND_TOKENS` tokens times the number of folders. In each round, in an order drawn
by the seed, every folder adds whole documents until it has reached its share; excess tokens count for later rounds. The
mixture ends when a folder has no further document.
"""

import dataclasses
import hashlib
import re
import shutil
from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np

from platform.common.errors import InputError, one_line
from platform.common.output import print_line
from platform.common.places import InputPath, RemotePath
from platform.study.atomic_write import replacing
from platform.study.folder import real_path, user_path
from platform.train.preparing.folder_state import finished, locked, write_plan
from platform.train.preparing.shard import HashedFile, Writer
from platform.train.token_files import file_sha256
from trainers.data.footer import Tokens, blocks, read_footer
from trainers.data.index import FORMAT, NAME, TOKENIZER, IndexedFile, TokenIndex, indexed, read_index, write_index

_ROUND_TOKENS = 2**13
_FILE_TOKENS = 2**25
"""Approximate number of tokens in an output file."""
_WEIGHTED = re.compile(r"(.+):(\d+\.?\d*|\.\d+)")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A token folder of a mixture."""

    folder: Path
    weight: float
    """The folder's share of the tokens; all shares add up to 1."""
    index: TokenIndex


def parts_of(inputs: Sequence[InputPath]) -> list[Part] | None:
    """Returns the parts of a mixture such as `a:0.7 b:0.3`; None if no input has a weight.

    Raises:
        InputError: only some inputs have a weight, one is not a token folder, or their tokenizers differ.
    """
    matches = [
        None if isinstance(path, RemotePath) or user_path(path).exists() else _WEIGHTED.fullmatch(str(path))
        for path in inputs
    ]
    if not any(matches):
        return None
    parts: list[Part] = []
    for path, match in zip(inputs, matches, strict=True):
        if match is None:
            raise InputError(f"a mixture has a weight behind each of its folders, as in a:0.7 b:0.3, got {path}")
        folder = real_path(Path(match[1]))
        index = read_index(folder) if folder.is_dir() else None
        if index is None or not float(match[2]):
            raise InputError(f"{path} needs a folder that platform.prepare made, and a weight above 0")
        parts.append(Part(folder=folder, weight=float(match[2]), index=index))
    first = parts[0].index
    for part in parts:
        if part.index.sequence_tokens:
            raise InputError(f"{part.folder} was packed for sequences of one length, which a mixture is not: prepare it"
                             " without --pack")  # fmt: skip
        for name in ("tokenizer", "vocab_size", "end_of_document"):
            if getattr(part.index, name) != getattr(first, name):
                raise InputError(
                    f"{part.folder} has another {name.replace('_', ' ')} than {parts[0].folder}: no mixture"
                )
    if len({part.folder for part in parts}) < len(parts):
        raise InputError("a mixture has each folder once: give it its whole weight")
    total = sum(part.weight for part in parts)
    return [dataclasses.replace(part, weight=part.weight / total) for part in parts]


def mixed(words: Sequence[str]) -> Path | None:
    """Returns the folder of the mixture of `words`, such as `a:0.7 b:0.3`; None if no word has a weight.

    The folder lies beside the first of the mixed folders and is named by a hash of their contents. It is written with
    seed 0 if it is missing.

    Raises:
        InputError: as in `parts_of`, or the folder cannot be written.
    """
    parts = parts_of([Path(word) for word in words])
    if parts is None:
        return None
    held = [(part.folder.name, part.weight, [file.sha256 for file in part.index.files]) for part in parts]
    name = hashlib.sha256(repr(held).encode()).hexdigest()[:10]
    out = parts[0].folder.with_name(f"mixed-{name}")
    if (out / NAME).is_file():  # its plan names folders that may have moved since; its own name says what they held
        return out
    print_line(f"Mixes {' '.join(words)} into {out}")
    try:
        mix(parts, out, seed=0)
    except OSError as error:
        raise InputError(
            f"{out} cannot be written ({one_line(error)}): python -m platform.prepare {' '.join(words)} --out FOLDER"
            " mixes into another place, for --data FOLDER"
        ) from error
    return out


def mix(parts: Sequence[Part], out: Path, seed: int) -> TokenIndex:
    """Writes the mixture into the folder `out` and returns its index.

    Raises:
        InputError: the folder holds something else, or a file cannot be read.
    """
    weights = {str(part.folder): part.weight for part in parts}
    contents = {str(part.folder): [file.sha256 for file in part.index.files] for part in parts}
    with locked(out):
        write_plan(out, {"format": FORMAT, "mixture": weights, "contents": contents, "seed": seed})
        if (out / NAME).is_file():
            return finished(out)
        for old in (*out.glob("tokens-*.parquet"), *out.glob(".*.part")):
            old.unlink()
        counts = dict.fromkeys(range(len(parts)), 0)
        files = _write(parts, out, _drawn(parts, seed, counts))
        tokenizer = parts[0].folder / TOKENIZER
        if tokenizer.is_dir():
            shutil.copytree(tokenizer, out / TOKENIZER, dirs_exist_ok=True)
        for number, part in enumerate(parts):
            share = 100 * counts[number] / max(1, sum(counts.values()))
            print_line(f"{counts[number]:,} of {part.index.tokens:,} tokens of {part.folder}, {share:.2f} %")
        index = dataclasses.replace(
            parts[0].index,
            documents=sum(file.documents for file in files),
            tokens=sum(file.tokens for file in files),
            files=tuple(files),
            skipped={},
            mixture=weights,
        )
        with replacing(out / NAME) as path:
            write_index(path, index)
    return index


def _drawn(parts: Sequence[Part], seed: int, counts: dict[int, int]) -> Generator[Tokens]:
    """Yields the documents of the mixture, and counts each part's tokens in `counts`."""
    sources = [_documents(part) for part in parts]
    due = [0.0] * len(parts)
    bits = np.random.PCG64(seed)
    while True:
        for number in np.argsort(bits.random_raw(len(parts)), kind="stable").tolist():
            due[number] += parts[number].weight * _ROUND_TOKENS * len(parts)
            while due[number] > 0:
                document = next(sources[number], None)
                if document is None:
                    return
                due[number] -= len(document.ids)
                counts[number] += len(document.ids)
                yield document


def _documents(part: Part) -> Generator[Tokens]:
    for file in part.index.files:
        path = part.folder / file.name
        try:
            footer = read_footer(path)
            for tokens in blocks(path, footer, 0, with_marks=footer.trained is not None):
                borders = tokens.document_starts[1:]
                of_marks = [None] * (len(borders) + 1) if tokens.marks is None else np.split(tokens.marks, borders)
                for ids, marks in zip(np.split(tokens.ids, borders), of_marks, strict=True):
                    yield Tokens(ids=ids, document_starts=np.zeros(1, np.int64), marks=marks)
        except ValueError as error:
            raise InputError(str(error)) from error


def _write(parts: Sequence[Part], out: Path, documents: Generator[Tokens]) -> list[IndexedFile]:
    id_type = np.result_type(*{_type_of(part) for part in parts}).name
    with_marks = any(part.index.trained is not None for part in parts)
    files: list[IndexedFile] = []
    document = next(documents, None)
    while document is not None:
        name = f"tokens-{len(files):06d}.parquet"
        num_tokens = 0
        with (
            replacing(out / name) as path,
            HashedFile(path) as file,
            Writer(file, id_type, with_marks=with_marks) as writer,
        ):
            while document is not None and num_tokens < _FILE_TOKENS:
                writer.add(document)
                num_tokens += len(document.ids)
                document = next(documents, None)
        files.append(indexed(out / name, file_sha256(out / name)))
    return files


def _type_of(part: Part) -> str:
    return "uint8" if part.index.vocab_size <= 2**8 else "uint16" if part.index.vocab_size <= 2**16 else "int32"
