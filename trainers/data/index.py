"""The index of a folder of token files, which `platform.prepare` writes once all files are there."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from trainers.records.plain_files import read_json
from trainers.spec.codec import from_json, to_json

NAME = "index.json"
PLAN_NAME = "plan.json"
"""Name of the file that states what a folder is made from. Without an index beside it, the folder is unfinished."""
TOKENIZER = "tokenizer"
"""Name of the folder with the tokenizer that made the ids, where `platform.prepare` had one."""
FORMAT = 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class IndexedFile:
    """One Parquet file of the folder."""

    name: str
    documents: int
    tokens: int
    lowest_id: int
    highest_id: int
    size_bytes: int = 0
    """Bytes of the file; 0 where an older version wrote the index."""
    sha256: str = ""
    """Hash of the file as it was written; empty where an older version wrote the index."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TokenIndex:
    """The content of a folder of token files."""

    format: int
    tokenizer: str
    """"bytes", "ids" where the input held token ids, or the name of the tokenizer's folder."""
    vocab_size: int
    """Token ids lie in [0, vocab_size)."""
    end_of_document: int | None
    """The token id that ends every document; None for none, or where the input held token ids."""
    documents: int
    tokens: int
    files: tuple[IndexedFile, ...]
    skipped: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    """Documents of the input that could not be read and were passed over, by reason."""
    mixture: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    """Share of the tokens by folder, of a mixture."""


def write_index(path: Path, index: TokenIndex) -> None:
    """Writes the index to the file `path`."""
    path.write_text(json.dumps(to_json(index), indent=1) + "\n")


def read_index(folder: Path) -> TokenIndex | None:
    """Returns the index of `folder`; None where it has none.

    Raises:
        ValueError: the folder is unfinished, or the index is of another format.
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
