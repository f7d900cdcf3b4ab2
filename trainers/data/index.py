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
    trained: int | None = None
    """Tokens that are marked to be trained on; None where none has a mark."""
    padding: int = 0
    """Tokens that fill up sequences, none of which is marked."""


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
    sequence_tokens: int = 0
    """Length of the sequences for which documents were packed, so that none is cut; 0 where they just follow."""

    @property
    def trained(self) -> int | None:
        """Tokens that are marked to be trained on; None where none has a mark."""
        marked = [file.trained for file in self.files if file.trained is not None]
        return sum(marked) if marked and len(marked) == len(self.files) else None

    @property
    def padding(self) -> int:
        """Tokens that fill up sequences."""
        return sum(file.padding for file in self.files)


def indexed(path: Path, sha256: str) -> IndexedFile:
    """Returns what an index says of the token file at `path`, by its footer.

    Raises:
        ValueError: it is none.
    """
    from trainers.data.footer import read_footer  # imports pyarrow, which reading an index does without

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
