"""Reads the token ids of many Parquet files as one sequence, with one block in memory at a time."""

import bisect
import dataclasses
import itertools
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainers.data.footer import Footer, Tokens, blocks, read_footer
from trainers.data.index import read_index


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    path: Path
    num_tokens: int
    lowest_id: int
    highest_id: int
    trained: int | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    first: int
    """Index of its first token among the tokens of all files."""
    tokens: Tokens

    @property
    def end(self) -> int:
        return self.first + len(self.tokens.ids)


class TokenFiles:
    """The token ids of a Parquet file, or of all `*.parquet` files of a folder in order of name.

    A folder with an index (`trainers.data.index`) has the files of its index, and reads a file's footer with the file;
    otherwise all footers are read first. Not thread-safe.

    Raises:
        ValueError: there is nothing to read, a folder is unfinished, a file is not Parquet, has no column of token ids,
            or has no marks although `with_marks` is true.
    """

    def __init__(self, path: Path, *, with_marks: bool = False) -> None:
        self._footers: dict[Path, Footer] = {}
        self._with_marks = with_marks
        self.sequence_tokens = 0
        """Length of the sequences for which documents were packed; 0 if documents follow each other without packing."""
        self._files = [file for file in self._listed(path) if file.num_tokens]
        unmarked = next((file for file in self._files if file.trained is None), None)
        if with_marks and unmarked is not None:
            raise ValueError(
                f"{unmarked.path} marks no tokens to train on, which trained_tokens marked asks for: set it to all, or"
                " give what python -m platform.prepare --chat made"
            )
        self._ends = list(itertools.accumulate(file.num_tokens for file in self._files))
        self._block = _Block(first=0, tokens=Tokens(ids=np.zeros(0, np.int32), document_starts=np.zeros(0, np.int64)))
        self._following: Iterator[_Block] = iter(())
        """The blocks after `_block`, to the end of file `_file_number`."""
        self._file_number = -1

    @property
    def num_tokens(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def paths(self) -> list[Path]:
        return [file.path for file in self._files]

    @property
    def id_range(self) -> tuple[int, int]:
        """The lowest and the highest token id; (0, 0) without tokens."""
        if not self._files:
            return 0, 0
        return min(file.lowest_id for file in self._files), max(file.highest_id for file in self._files)

    @property
    def num_trained(self) -> int | None:
        """Number of marked tokens; None if a file has no marks."""
        marked = [file.trained for file in self._files if file.trained is not None]
        return sum(marked) if len(marked) == len(self._files) and marked else None

    def read(self, first: int, last: int) -> Tokens:
        """Returns tokens `first` to `last - 1`, at least one. Reading forward decodes nothing twice.

        Raises:
            ValueError: a file's content differs from its footer or the index.
        """
        ids: list[npt.NDArray[Any]] = []
        starts: list[npt.NDArray[np.int64]] = []
        marks: list[npt.NDArray[np.bool_]] = []
        token = first
        while token < last:
            block = self._block_with(token)
            begin, end = token - block.first, min(last, block.end) - block.first
            ids.append(block.tokens.ids[begin:end])
            if block.tokens.marks is not None:
                marks.append(block.tokens.marks[begin:end])
            documents = block.tokens.document_starts
            low, high = np.searchsorted(documents, (begin, end))
            starts.append(documents[low:high] + (block.first - first))
            token = block.first + end
        return Tokens(
            ids=np.concatenate(ids),
            document_starts=np.concatenate(starts),
            marks=np.concatenate(marks) if marks else None,
        )

    def _block_with(self, token: int) -> _Block:
        if self._block.first <= token < self._block.end:
            return self._block
        number = bisect.bisect_right(self._ends, token)
        file = self._files[number]
        groups = self._footer(file).group_tokens
        firsts = list(itertools.accumulate(groups, initial=self._ends[number] - file.num_tokens))
        group = bisect.bisect_right(firsts, token) - 1
        if number != self._file_number or not firsts[group] <= self._block.end <= token:
            self._following, self._file_number = self._blocks(file, group, firsts[group]), number
        for block in self._following:
            self._block = block
            if token < block.end:
                return block
        raise AssertionError("a file's blocks make up its footer's tokens")

    def _blocks(self, file: _File, group: int, first: int) -> Generator[_Block]:
        file_first = first if group == 0 else -1
        for tokens in blocks(file.path, self._footer(file), group, with_marks=self._with_marks):
            if first == file_first and len(tokens.ids) and tokens.document_starts[:1].tolist() != [0]:
                # A column of plain integers has no documents, so the file is one document.
                starts = np.concatenate((np.zeros(1, np.int64), tokens.document_starts))
                tokens = dataclasses.replace(tokens, document_starts=starts)
            yield _Block(first=first, tokens=tokens)
            first += len(tokens.ids)

    def _footer(self, file: _File) -> Footer:
        if file.path not in self._footers:
            footer = read_footer(file.path)
            if footer.num_tokens != file.num_tokens:
                raise ValueError(
                    f"{file.path} holds {footer.num_tokens} tokens, the index beside it says {file.num_tokens}:"
                    " prepare the folder anew"
                )
            self._footers[file.path] = footer
        return self._footers[file.path]

    def _listed(self, path: Path) -> list[_File]:
        if not path.exists():
            raise ValueError(f"there is no {path}: data are a Parquet file or a folder of them")
        index = read_index(path) if path.is_dir() else None
        if index is not None:
            self.sequence_tokens = index.sequence_tokens
            return [
                _File(
                    path=path / file.name,
                    num_tokens=file.tokens,
                    lowest_id=file.lowest_id,
                    highest_id=file.highest_id,
                    trained=file.trained,
                )
                for file in index.files
            ]
        paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not paths:
            raise ValueError(f"{path} holds no .parquet file")
        self._footers = {file_path: read_footer(file_path) for file_path in paths}
        return [
            _File(
                path=file_path,
                num_tokens=footer.num_tokens,
                lowest_id=footer.lowest_id,
                highest_id=footer.highest_id,
                trained=footer.trained,
            )
            for file_path, footer in self._footers.items()
        ]
