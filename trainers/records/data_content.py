"""The content of a training's token files when it began, to recognise other files at the same path."""

import dataclasses
from collections.abc import Iterator
from pathlib import PurePath

NUM_BLOCKS = 16
"""Number of blocks of all files, at seeded random positions, that are compared if not everything is read."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ContentFile:
    name: str
    size_bytes: int
    modified_ns: int
    sha256: str = ""
    """Hash of the whole file; empty if unknown."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DataContent:
    """The content of a Parquet file or of a folder of them."""

    tokens: int
    vocab_size: int
    """Token ids lie in [0, vocab_size)."""
    end_of_document: int | None
    """Token id that ends every document, from the folder's index; None if there is none or no index."""
    files: tuple[ContentFile, ...]
    block_sha256: tuple[str, ...]
    """Hashes of `NUM_BLOCKS` blocks."""

    @property
    def is_hashed(self) -> bool:
        return all(file.sha256 for file in self.files)

    @property
    def key(self) -> tuple[object, ...]:
        """The values that are equal wherever the same files lie, and whenever they were written."""
        sizes = [file.size_bytes for file in self.files]
        return self.tokens, self.vocab_size, self.end_of_document, sizes, self.block_sha256

    def differences(self, now: "DataContent") -> Iterator[str]:
        """Yields a clause on each difference of the files `now`; other times of the same bytes do not count."""
        for words, before, after in (
            ("tokens", self.tokens, now.tokens),
            ("ids in the vocabulary", self.vocab_size, now.vocab_size),
            ("files", len(self.files), len(now.files)),
        ):
            if before != after:
                yield f"{after:,} {words} in place of {before:,}"
        if self.end_of_document != now.end_of_document:
            yield f"{now.end_of_document} ends a document in place of {self.end_of_document}"
        for old, new in zip(self.files, now.files, strict=False):
            if PurePath(old.name).name != PurePath(new.name).name and len(self.files) > 1:
                yield f"{new.name} in place of {old.name}"
                return
            if old.size_bytes != new.size_bytes:
                yield f"{new.name} has {new.size_bytes:,} bytes in place of {old.size_bytes:,}"
                return
            if old.sha256 and new.sha256 and old.sha256 != new.sha256:
                yield f"{new.name} holds other bytes"
                return
        if differing := sum(map(str.__ne__, self.block_sha256, now.block_sha256)):
            yield f"{differing} of {len(self.block_sha256)} blocks that were compared hold other bytes"

    def is_same(self, other: "DataContent") -> bool:
        """Returns whether both have the same tokens in the same order, in any location, as far as is known."""
        hashes = ((old.sha256, new.sha256) for old, new in zip(self.files, other.files, strict=False))
        return self.key == other.key and all(old == new or not (old and new) for old, new in hashes)

    def has_times_of(self, now: "DataContent") -> bool:
        return [file.modified_ns for file in self.files] == [file.modified_ns for file in now.files]
