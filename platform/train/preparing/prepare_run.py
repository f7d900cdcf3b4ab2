"""A run of `platform.prepare`: plan, workers, index. A killed run resumes from its finished shards."""

import dataclasses
import hashlib
import multiprocessing
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np

from platform.common.errors import ClusterError, InputError
from platform.common.output import print_line
from platform.common.places import InputPath
from platform.study.atomic_write import replacing
from platform.train.preparing import inputs
from platform.train.preparing.chats import ChatEncoder, ChatSettings
from platform.train.preparing.folder_state import finished, locked, write_plan
from platform.train.preparing.inputs import InputFile, Shard
from platform.train.preparing.prepare_progress import PrepareProgress
from platform.train.preparing.raw_ids import RawType
from platform.train.preparing.shard import ShardSettings, Shared, begin, make
from platform.train.preparing.skipping import note_of, num_passed_over, summed
from platform.train.preparing.tokenizer import BYTES, Tokenizer, load, with_template
from platform.train.token_files import file_sha256
from trainers.data.index import (
    FORMAT,
    NAME,
    TOKENIZER,
    IndexedFile,
    TokenIndex,
    indexed,
    write_index,
)
from trainers.spec.codec import to_json

DEFAULT_KEY = "text"
"""Default key or column that holds the text."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PrepareRequest:
    inputs: tuple[InputPath, ...]
    out: Path
    """Absolute path of the output folder."""
    tokenizer: str | None
    """Name of the tokenizer; None for bytes of text, and for inputs with token ids."""
    with_end: bool
    """Whether the tokenizer's end-of-sequence token ends every document."""
    text_key: str
    separator: bytes | None
    """Bytes between the documents of a text file; None if each file is one document."""
    shard_bytes: int
    num_workers: int
    raw: RawType | None = None
    """The type of raw token files; None if there are none."""
    skip_bad: int = 0
    """Number of unreadable documents that may be skipped."""
    chat: ChatSettings | None = None
    """Settings that convert chats to documents; None if lines hold text."""
    chat_template: Path | None = None
    """File with the template of chats; None for the tokenizer's own."""


def prepare(request: PrepareRequest) -> TokenIndex:
    """Creates the token folder of `request` and returns its index.

    Raises:
        InputError: the request or its inputs have a mistake, or the folder holds something else.
        ClusterError: a worker process was killed.
    """
    selection = inputs.find(request.inputs, request.out, request.text_key, request.raw)
    files = selection.files
    for sentence in (*selection.sentences(), *_without_effect(request, files)):
        print_line(sentence)
    tokenizer, id_type = _tokenizer(request, files)
    with locked(request.out):
        write_plan(request.out, _plan(request, files, tokenizer))
        if (request.out / NAME).is_file():
            return finished(request.out)
        for part in request.out.glob(".*.part"):
            part.unlink(missing_ok=True)
        shards = inputs.shards(files, request.shard_bytes, request.separator)
        settings = ShardSettings(
            out=request.out,
            id_type=id_type,
            tokenizer=tokenizer,
            text_key=request.text_key,
            separator=request.separator,
            raw=request.raw,
            skip_bad=request.skip_bad,
            chat=request.chat,
            last=shards[-1].name if shards else "",
        )
        hashes = _make(shards, settings, request.num_workers)
        notes = [note_of(request.out / shard.name) for shard in shards]
        counts, sentences = summed(notes)
        for sentence in sentences:
            print_line(sentence)
        index = dataclasses.replace(
            _index(request.out, shards, tokenizer, hashes),
            skipped=counts,
            sequence_tokens=request.chat.pack if request.chat else 0,
        )
        if request.chat is not None and request.chat.pack:
            share, pad_id = 1 - index.padding / max(1, index.tokens), tokenizer.pad_id if tokenizer else 0
            print_line(
                f"Packed {index.documents:,} chats into {index.tokens // request.chat.pack:,} sequences of"
                f" {request.chat.pack:,} tokens: {share:.1%} are chats, the rest is token {pad_id}, which has no loss."
            )
        if index.tokens == index.padding:
            raise InputError(f"every document of the input is empty: there is nothing to train on in {request.out}")
        if tokenizer is not None:
            tokenizer.save(request.out / TOKENIZER)
        with replacing(request.out / NAME) as path:
            write_index(path, index)
        for note in notes:
            note.unlink(missing_ok=True)
        if request.separator is not None and index.documents <= sum(file.kind == "text" for file in files):
            print_line(f"--separator {request.separator.decode()!r} divides no file: each is one document")
        return index


def _without_effect(request: PrepareRequest, files: Sequence[InputFile]) -> Iterator[str]:
    """Yields a sentence on each option that no input uses."""
    kinds = {file.kind for file in files}
    if request.text_key != DEFAULT_KEY and not kinds & {"json lines", "parquet text", "arrow text", "csv text"}:
        yield f"--text-key {request.text_key} has no effect: no input has keys or columns of text"
    if request.raw is not None and "raw ids" not in kinds:
        yield "--raw-ids has no effect: no input is a .bin without its .idx"
    if request.separator is not None and "text" not in kinds:
        yield "--separator has no effect: no input is a text file"


def _tokenizer(request: PrepareRequest, files: Sequence[InputFile]) -> tuple[Tokenizer | None, str]:
    """Returns the tokenizer (None for inputs with token ids) and the type of the token ids."""
    ids = [file for file in files if file.kind in inputs.IDS]
    if not ids:
        tokenizer = load(request.tokenizer or BYTES, with_end=request.with_end)
        if request.chat is not None:
            tokenizer = _of_chats(request, files, tokenizer)
        elif tokenizer.source and request.with_end and tokenizer.end_of_document is None:
            print_line(f"The tokenizer in {tokenizer.source} has no end-of-sequence token: no token ends a document.")
        return tokenizer, tokenizer.id_type
    if request.chat is not None:
        raise InputError(f"--chat reads JSON lines, {ids[0].path} holds token ids: leave it out")
    if len(ids) < len(files):
        text = next(file for file in files if file not in ids)
        raise InputError(f"{ids[0].path} holds token ids and {text.path} text: prepare them one after the other")
    if request.tokenizer is not None:
        raise InputError(f"{ids[0].path} holds token ids, which no tokenizer reads: leave out --tokenizer")
    return None, np.result_type(*{file.id_type for file in ids}).name


def _of_chats(request: PrepareRequest, files: Sequence[InputFile], tokenizer: Tokenizer) -> Tokenizer:
    """Returns the tokenizer with a chat template, and prints how an assistant's turns end."""
    if others := [file for file in files if file.kind != "json lines"]:
        raise InputError(f"--chat reads JSON lines, {others[0].path} is {others[0].kind}: prepare them apart")
    tokenizer = with_template(tokenizer, request.chat_template)
    if turn_end := ChatEncoder(tokenizer).turn_end:
        print_line(f"An assistant's turn ends with {turn_end}, which is trained on.")
    else:
        print_line("No special token ends an assistant's turn in this chat template: the model does not learn to stop.")
    return tokenizer


def _plan(request: PrepareRequest, files: Sequence[InputFile], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Returns the values that determine the folder's bytes."""
    described: Any = to_json(tuple(files))
    for file in described:
        if not file["compression"]:
            del file["compression"]
    optional: dict[str, Any] = {} if request.raw is None else {"raw_ids": to_json(request.raw)}
    if request.chat is not None and tokenizer is not None:
        template = hashlib.sha256(tokenizer.chat_template.encode()).hexdigest()
        optional["chat"] = {**to_json(request.chat), "template_sha256": template, "pad_id": tokenizer.pad_id}
    return optional | {
        "format": FORMAT,
        "inputs": described,
        "tokenizer": None if tokenizer is None else tokenizer.name,
        "tokenizer_sha256": None if tokenizer is None else tokenizer.digest,
        "end_of_document": None if tokenizer is None else tokenizer.end_of_document,
        "text_key": request.text_key,
        "separator": None if request.separator is None else request.separator.decode(),
        "shard_bytes": request.shard_bytes,
    }


def _make(shards: Sequence[Shard], settings: ShardSettings, num_workers: int) -> dict[str, str]:
    """Writes the missing files; returns their hashes by name."""
    missing = [shard for shard in shards if not (settings.out / shard.name).is_file()]
    hashes: dict[str, str] = {}
    if not missing:
        return hashes
    context = multiprocessing.get_context("spawn")
    notes = [note_of(settings.out / shard.name) for shard in shards if shard not in missing]
    shared = Shared(
        input_bytes=context.Value("q", 0),
        tokens=context.Value("q", 0),
        stop=context.Event(),
        skipped=context.Value("q", num_passed_over(notes)),
    )
    total_bytes = sum(shard.size_bytes for shard in missing)
    pool = ProcessPoolExecutor(min(num_workers, len(missing)), context, begin, (settings, shared))
    try:
        # A worker must ignore Ctrl-C from its start, because this process handles it.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            names = {pool.submit(make, shard): shard.name for shard in missing}
            pending = set(names)
        finally:
            signal.signal(signal.SIGINT, before)
        with PrepareProgress(
            total_bytes=total_bytes, num_shards=len(shards), num_done=len(shards) - len(missing)
        ) as progress:
            while pending:
                finished, pending = wait(pending, timeout=progress.interval_s, return_when=FIRST_EXCEPTION)
                _raise_first(finished)
                hashes |= {names[future]: future.result() for future in finished}
                if pending and not multiprocessing.active_children():
                    raise MemoryError  # the pool's own thread had no memory to report the loss
                progress.show(shared.input_bytes.value, shared.tokens.value, len(shards) - len(pending))
    except (BrokenProcessPool, MemoryError) as error:
        event = "ran out of memory" if isinstance(error, MemoryError) else "was killed, perhaps because memory ran out"
        raise ClusterError(
            f"a worker process {event}: the same command resumes the run, --workers starts fewer"
        ) from error
    finally:
        shared.stop.set()
        pool.shutdown(cancel_futures=True)
    return hashes


def _raise_first(finished: set[Future[str]]) -> None:
    failures = [error for future in finished if (error := future.exception()) is not None]
    if failures:
        raise failures[0]


def _index(folder: Path, shards: Sequence[Shard], tokenizer: Tokenizer | None, hashes: Mapping[str, str]) -> TokenIndex:
    """Returns the index of the files. Files of an earlier run are read again, because their hashes are unknown."""
    files: list[IndexedFile] = []
    for shard in shards:
        path = folder / shard.name
        files.append(indexed(path, hashes.get(shard.name) or file_sha256(path)))
    highest_id = max((file.highest_id for file in files), default=0)
    return TokenIndex(
        format=FORMAT,
        tokenizer="ids" if tokenizer is None else tokenizer.name,
        vocab_size=highest_id + 1 if tokenizer is None else tokenizer.vocab_size,
        end_of_document=None if tokenizer is None else tokenizer.end_of_document,
        documents=sum(file.documents for file in files),
        tokens=sum(file.tokens for file in files),
        files=tuple(files),
    )
