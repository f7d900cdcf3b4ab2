r"""Turns text, JSON lines, Parquet or a Megatron pair into token Parquet for `--data`.

    python -m platform.prepare books/ --out tokens                                   a byte a token, a file a document
    python -m platform.prepare corpus.txt --separator '\n\n' --out tokens            each paragraph a document
    python -m platform.prepare part-*.jsonl --tokenizer gpt2/ --out tokens           a tokenizer from a folder
    python -m platform.prepare c4/*.json.gz --skip-bad 100 --out tokens              compressed, with bad lines
    python -m platform.prepare s3://bucket/c4/ --out tokens                          from S3, gs:// or hf://datasets/
    python -m platform.prepare web:0.7 code:0.3 --out mixed                          a mixture of prepared folders
    python -m platform.prepare chats.jsonl --tokenizer chat/ --chat --pack 2048 --out tokens    chats, packed
    python -m platform.prepare set_text_document.bin --out tokens                    token ids as they are

The input is streamed and may be larger than memory. The same command resumes a run that was ended.
Exit codes: 0, 2 bad input, 3 a worker process was killed, 130 interrupted.
"""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from platform.common.command import exit_code_of_resumable
from platform.common.errors import InputError
from platform.common.json_form import print_json
from platform.common.options import CommandParser, argument, json_field, option
from platform.common.places import input_path
from platform.study.folder import real_path
from platform.train.preparing.chats import ChatSettings, OverLong
from platform.train.preparing.mixing import mix, parts_of
from platform.train.preparing.prepare_run import DEFAULT_KEY, PrepareRequest, prepare
from platform.train.preparing.raw_ids import RawType
from trainers.spec.codec import to_json


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PrepareOptions:
    inputs: tuple[str, ...] = argument(
        nargs="+",
        metavar="INPUT",
        about=".txt, .jsonl or .csv (also .gz, .zst), .parquet, .arrow or .bin files, folders of them, here or at an"
        " address such as s3://bucket/folder; or FOLDER:WEIGHT, prepared ones to mix",
    )
    out: Path = option(metavar="FOLDER", about="the folder to write")
    tokenizer: str | None = option(None, metavar="FOLDER", about='a folder with a tokenizer, or "bytes" (the default)')
    no_end_token: bool = option(False, about="leave out the tokenizer's end-of-sequence token after a document")
    text_key: str = option(
        DEFAULT_KEY,
        metavar="NAME",
        about="key of JSON lines or column of Parquet that holds the text (default: %(default)s)",
    )
    separator: str | None = option(
        None,
        metavar="TEXT",
        about=r"text between the documents of a text file, \n and \t being read; without it a file is a"
        " document",
    )
    chat: bool = option(
        False,
        about="read JSON lines as chats (messages, prompt and completion, or instruction and output) through the"
        " tokenizer's chat template; an assistant's tokens are marked to be trained on",
    )
    chat_template: Path | None = option(
        None, metavar="FILE", about="a chat template in place of the tokenizer's own; implies --chat"
    )
    pack: int | None = option(
        None, least=2, metavar="N", about="pack chats into sequences of N tokens, the recipe's seq_len, and cut none"
    )
    over_long: OverLong | None = option(
        None, about="leave out or cut chats longer than --pack; their number is printed (default: drop)"
    )
    raw_ids: str | None = option(
        None,
        metavar="TYPE[:END]",
        about="integers of a .bin without an .idx, as in uint16, or uint16:50256 with the id that ends a document",
    )
    skip_bad: int = option(
        0, least=0, metavar="N", about="skip up to N documents that cannot be read, and print why (default: none)"
    )
    seed: int = option(0, least=0, metavar="N", about="seed of a mixture's order (default: %(default)s)")
    workers: int | None = option(None, least=1, metavar="N", about="worker processes (default: one for each processor)")
    shard_mib: int = option(64, least=1, metavar="N", about="MiB of input in one output file (default: %(default)s)")
    json: bool = json_field()


PARSER = CommandParser(PrepareOptions, prog="python -m platform.prepare", description=__doc__)


def main(argv: Sequence[str] | None = None) -> int:
    return exit_code_of_resumable(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    options = PARSER.read(argv)
    request = _request(options)
    parts = parts_of(request.inputs)
    index = prepare(request) if parts is None else mix(parts, request.out, options.seed)
    if options.json:
        print_json(to_json(index), indent=2)
    else:
        trained = "" if index.trained is None else f"{index.trained:,} of them marked to be trained on, "
        print(
            f"{request.out} holds {index.tokens:,} tokens of a vocabulary of {index.vocab_size:,}, {trained}documents:"
            f" {index.documents:,}. To train on it: --data {request.out}"
        )
    return 0


def _request(options: PrepareOptions) -> PrepareRequest:
    separator = None
    if options.separator is not None:
        separator = options.separator.replace(r"\n", "\n").replace(r"\t", "\t").encode()
        if not separator:
            raise InputError("--separator must not be empty: leave it out where a file is a document")
    is_chat = options.chat or options.chat_template is not None
    for name in ("pack", "over_long"):
        if getattr(options, name) is not None and not (is_chat if name == "pack" else options.pack):
            needed = "--chat" if name == "pack" else "--pack"
            raise InputError(f"--{name.replace('_', '-')} goes with {needed}, which is not there: leave it out")
    return PrepareRequest(
        inputs=tuple(map(input_path, options.inputs)),
        out=real_path(options.out),
        tokenizer=options.tokenizer,
        with_end=not options.no_end_token,
        text_key=options.text_key,
        separator=separator,
        raw=None if options.raw_ids is None else RawType.read(options.raw_ids),
        skip_bad=options.skip_bad,
        chat=ChatSettings(pack=options.pack or 0, over_long=options.over_long or "drop") if is_chat else None,
        chat_template=options.chat_template,
        shard_bytes=options.shard_mib * 2**20,
        num_workers=options.workers or len(os.sched_getaffinity(0)),
    )
