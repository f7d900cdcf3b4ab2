"""Converts text to token ids: one id for each byte, or by a tokenizer from a local folder."""

import dataclasses
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from platform.common.errors import InputError, one_line
from platform.study.folder import real_path, user_path
from trainers.records.plain_files import MOST_WHOLE_BYTES, open_plain, read_plain

BYTES = "bytes"

Encode = Callable[[Sequence[str]], list[npt.NDArray[Any]]]
"""A function from texts to the token ids of each."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Tokenizer:
    """A tokenizer in a form that can be sent to another process."""

    name: str
    """`BYTES`, or the name of the tokenizer's folder."""
    vocab_size: int
    """Token ids lie in [0, vocab_size)."""
    end_of_document: int | None = None
    """Token id appended to each document; None for none."""
    definition: str = ""
    """The tokenizer as JSON of the library tokenizers; "" for `BYTES`."""
    source: str = ""
    """Path of the tokenizer's folder; "" for `BYTES`."""
    chat_template: str = ""
    """The chat template; "" if the input holds no chats."""
    pad_id: int = 0
    """Token id that fills up sequences; it is neither attended to nor predicted."""

    @property
    def id_type(self) -> str:
        """The smallest of three NumPy types that holds every token id."""
        return "uint8" if self.vocab_size <= 2**8 else "uint16" if self.vocab_size <= 2**16 else "int32"

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.definition.encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Writes the tokenizer's files for AutoTokenizer; none for `BYTES`."""
        if self.source:
            loaded = loaded_tokenizer(self.source)
            if self.chat_template:
                loaded.chat_template = self.chat_template
            loaded.save_pretrained(str(folder))

    def encoder(self) -> Encode:
        """Returns the function that encodes texts in the calling process."""
        if not self.definition:
            return lambda texts: [np.frombuffer(text.encode(), np.uint8) for text in texts]
        import tokenizers

        tokenizer = tokenizers.Tokenizer.from_str(self.definition)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        end = () if self.end_of_document is None else (self.end_of_document,)

        def encode(texts: Sequence[str]) -> list[npt.NDArray[Any]]:
            encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            return [np.array([*encoding.ids, *end], self.id_type) for encoding in encodings]

        return encode


def load(name: str, *, with_end: bool) -> Tokenizer:
    """Returns the tokenizer that `--tokenizer` names: `BYTES`, or a folder that transformers' AutoTokenizer reads.

    `with_end` appends the tokenizer's end-of-sequence token, if it has one, to each document.

    Raises:
        InputError: the folder does not exist or holds no usable tokenizer.
    """
    if name == BYTES:
        return Tokenizer(name=BYTES, vocab_size=256)
    folder = real_path(name)
    if not folder.is_dir():
        raise InputError(f"--tokenizer must be {BYTES} or a folder that holds a tokenizer, got {name}: no such folder")
    for path in sorted((*folder.glob("*.json"), *folder.glob("*.model"), *folder.glob("*.jinja"))):
        os.close(open_plain(path, links=True, most_bytes=MOST_WHOLE_BYTES))  # the library reads files of any size
    try:
        loaded = loaded_tokenizer(str(folder))
    except Exception as error:  # each tokenizer class has errors of its own
        raise InputError(f"cannot read a tokenizer in {folder}: {one_line(error)}") from error
    if not loaded.is_fast:
        raise InputError(
            f"the tokenizer in {folder}, {type(loaded).__name__}, is not a fast one: save it with a tokenizer.json"
        )
    return Tokenizer(
        name=folder.name,
        vocab_size=max(loaded.get_vocab().values()) + 1,
        end_of_document=loaded.eos_token_id if with_end else None,
        definition=loaded.backend_tokenizer.to_str(),
        source=str(folder),
    )


def with_template(tokenizer: Tokenizer, template: Path | None) -> Tokenizer:
    """Returns the tokenizer with a chat template: its own, or that of a file.

    Raises:
        InputError: there is no template, or the file cannot be read.
    """
    if not tokenizer.source:
        raise InputError(
            "--chat needs --tokenizer FOLDER: a chat template writes turns by a tokenizer's special tokens"
        )
    loaded = loaded_tokenizer(tokenizer.source)
    if template is not None:
        try:
            text = read_plain(user_path(template), links=True).decode()
        except (InputError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read the chat template {template}: {one_line(error)}") from error
    else:
        try:
            text = loaded.get_chat_template()
        except ValueError as error:
            raise InputError(
                f"the tokenizer in {tokenizer.source} has no chat template, as tokenizers of base models: give"
                " --chat-template FILE"
            ) from error
    pad_id = next((i for i in (loaded.pad_token_id, loaded.eos_token_id) if i is not None), 0)
    return dataclasses.replace(tokenizer, chat_template=text, pad_id=pad_id, end_of_document=None)


def loaded_tokenizer(folder: str) -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"  # read at import; prevents look-ups on the network
    import transformers

    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
