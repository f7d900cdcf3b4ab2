r"""Turns text, JSON lines, Parquet or a Megatron pair into token Parquet for `--data`.

    python -m platform.prepare books/ --out tokens                                   a token a byte, a file a document
    python -m platform.prepare corpus.txt --separator '\n\n' --out tokens            a paragraph a document
    python -m platform.prepare part-*.jsonl --tokenizer gpt2/ --out tokens           a tokenizer from a folder
    python -m platform.prepare set_text_document.bin --out tokens                    token ids as they are

The input is streamed and may be larger than memory. The same command resumes a run that was ended.
Exit codes: 0, 2 bad input, 3 a worker process was killed, 130 interrupted.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from platform.common.command import exit_code_of_resumable
from platform.common.errors import InputError, Parser
from platform.study.folder import real_path
from platform.train.preparing.prepare_run import DEFAULT_KEY, PrepareRequest, prepare
from trainers.spec.codec import to_json


def parser() -> argparse.ArgumentParser:
    """Returns the command's parser."""
    command_parser = Parser(
        prog="python -m platform.prepare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = command_parser.add_argument
    add("inputs", metavar="INPUT", nargs="+", type=Path, help=".txt, .jsonl, .parquet or .bin/.idx files, or folders of"
        " them")  # fmt: skip
    add("--out", metavar="FOLDER", type=Path, required=True, help="the folder to make")
    add("--tokenizer", metavar="FOLDER", help='a folder with a tokenizer, or "bytes" (the default)')
    add("--no-end-token", action="store_true", help="leave out the tokenizer's end-of-sequence token after a document")
    add("--text-key", metavar="NAME", default=DEFAULT_KEY, help="key of JSON lines or column of Parquet that holds the"
        " text (default: %(default)s)")  # fmt: skip
    add("--separator", metavar="TEXT", help=r"what stands between the documents of a text file, \n and \t being read;"
        " without it a file is a document")  # fmt: skip
    add("--workers", metavar="N", type=int, help="processes that work at once (default: one for each processor)")
    add("--shard-mib", metavar="N", type=int, default=64, help="MiB of input in one output file (default: %(default)s)")
    add("--json", action="store_true", help="print the result as JSON, alone on standard output")
    return command_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return exit_code_of_resumable(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    options = parser().parse_args(argv)
    request = _request(options)
    index = prepare(request)
    if options.json:
        print(json.dumps(to_json(index), indent=2))
    else:
        print(
            f"{request.out} holds {index.tokens:,} tokens of a vocabulary of {index.vocab_size:,}, documents:"
            f" {index.documents:,}. To train on it: --data {request.out}"
        )
    return 0


def _request(options: argparse.Namespace) -> PrepareRequest:
    for name in ("workers", "shard_mib"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    separator = None
    if options.separator is not None:
        separator = options.separator.replace(r"\n", "\n").replace(r"\t", "\t").encode()
        if not separator:
            raise InputError("--separator must not be empty: leave it out where a file is a document")
    return PrepareRequest(
        inputs=tuple(options.inputs),
        out=real_path(options.out),
        tokenizer=options.tokenizer,
        with_end=not options.no_end_token,
        text_key=options.text_key,
        separator=separator,
        shard_bytes=options.shard_mib * 2**20,
        num_workers=options.workers or len(os.sched_getaffinity(0)),
    )
