"""The index of a folder of token files; `platform.prepare` writes it when all files are complete."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from trainers.records.plain_files import read_json
from trainers.spec.codec import from_json, to_json

NAME = "index.json"
PLAN_NAME = "plan.json"
"""Name of the file that states the sources of a folder. A folder with this file but no index is unfinished."""
TOKENIZER = "tokenizer"
"""Name of the folder with the tokenizer that made the ids, if `platform.prepare` had one."""
FORMAT = 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class IndexedFile:
    """A Parquet file of the folder."""

    name: str
    documents: int
    tokens: int
    lowest_id: int
    highest_id: int
    size_bytes: int = 0
    """Size of the file; 0 in indexes of older versions."""
    sha256: str = ""
    """Hash of the file as written; empty in indexes of older versions."""
    trained: int | None = None
    """Number of tokens marked to be trained on; None without marks."""
    padding: int = 0
    """Number of unmarked tokens that fill up sequences."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TokenIndex:
    """Contents of a folder of token files."""

    format: int
    tokenizer: str
    """"bytes"; "ids" if the input held token ids; otherwise the name of the tokenizer's folder."""
    vocab_size: int
    """Token ids lie in [0, vocab_size)."""
    end_of_document: int | None
    """Token id that ends every document; None if there is none, or if the input held token ids."""
    documents: int
    tokens: int
    files: tuple[IndexedFile, ...]
    skipped: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    """Number of input documents that were unreadable and left out, by reason."""
    mixture: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    """Share of tokens by folder, for a mixture."""
    sequence_tokens: int = 0
    """Length of the sequences for which documents were packed, so that none is cut; 0 without packing."""

    @property
    def trained(self) -> int | None:
        """Number of tokens marked to be trained on; None if a file has no marks."""
        marked = [file.trained for file in self.files if file.trained is not None]
        return sum(marked) if marked and len(marked) == len(self.files) else None

    @property
    def padding(self) -> int:
        return sum(file.padding for file in self.files)


def indexed(path: Path, sha256: str) -> IndexedFile:
    """Returns the index entry of the token file at `path`, from its footer.

    Raises:
        ValueError: the file is not a file of token ids.
    """
    from trainers.data.footer import read_footer  # imports pyarrow, which reading an index does not need

    footer = read_footer(path)
    return IndexedFile(
        name=path.name,
        documents=footer.num_rows,
        tokens=footer.num_tokens,
        lowest_id=footer.lowest_id,
        highest_id=footer.highest_id,
        size_bytes=path.stat().st_size,
        sha256=sha256,
        trained=footer.trained,
        padding=footer.padding,
    )


def write_index(path: Path, index: TokenIndex) -> None:
    path.write_text(json.dumps(to_json(index), indent=1) + "\n")


def read_index(folder: Path) -> TokenIndex | None:
    """Returns the index of `folder`; None if it has none.

    Raises:
        ValueError: the folder is unfinished, or the index has another format.
    """
    path = folder / NAME
    if not path.is_file():
        if (folder / PLAN_NAME).is_file():
            raise ValueError(
                f"{folder} is unfinished: run the python -m platform.prepare command that began it again to resume it"
            )
        return None
    try:
        index = from_json(TokenIndex, read_json(path, links=True))
    except ValueError as error:
        raise ValueError(f"{path} is no index of token files ({error}): prepare the folder anew") from error
    if index.format != FORMAT:
        raise ValueError(f"{path} has format {index.format}, this version reads format {FORMAT}: prepare it anew")
    return index
