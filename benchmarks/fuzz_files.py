"""Puts odd files where commands expect theirs, and counts those taken, refused in a sentence, ending in a traceback, or
waited for or wanting more memory than `MOST_BYTES`. Run

python -m benchmarks.fuzz_files [--inputs 4000] [--first 0] [--seed 0] [--only PLACE] [--one N]

A place is a command with one of its files, in a folder where all others are sound; what is put there is empty, null, a
list, nested, cut, changed, of another encoding, a bomb that unpacks to gigabytes, a folder, a pipe, a device, a socket,
a link or a file of gigabytes or a terabyte.
Each input is made from the seed and its number alone: `--one N` runs one again and shows what was printed. A command
runs in this process as `python -m` runs it, up to where it would reach a Ray: it is given an address that nothing
answers at. The exit code is 1 where an input ends in a traceback, takes longer than `MOST_S` seconds, or asks for more
memory than `MOST_BYTES` beside what the process has: the kernel refuses more.

Its figures: docs/lab/networks.csv#slow-networks-quiet.6.
"""

import atexit
import contextlib
import functools
import gzip
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.fuzz import changed_value, command_main, run_all, run_one
from benchmarks.fuzz_sound_files import write_sound

MOST_S = 120.0
MOST_BYTES = 2**31
WANTED = re.compile(
    r"it took longer than|MemoryError|[Cc]annot allocate memory|bad_alloc|(?:malloc|realloc) of size \d+ failed"
)
"""Matches the message of `_late`, which a command may take for a file's, and those of libraries whose memory the kernel
refused.
"""
NO_RAY = ("--address", "127.0.0.1:1")


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line a place, then each traceback's last line; returns the exit code."""
    return run_all(argv, __doc__, PLACES, tried, num_inputs=4000)


@functools.cache
def template() -> Path:
    """Returns a folder with one sound file of each kind that commands read."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-files-"))
    atexit.register(shutil.rmtree, folder)
    write_sound(folder, _TRAINING)
    return folder


def tried(place: str, seed: str, kind: str = "") -> tuple[str, str, str]:
    """Makes one input, of the kind if it is named, and runs it; returns as `run_one` does."""

    def run(rng: random.Random, folder: Path) -> int | None:
        shutil.copytree(template(), folder, dirs_exist_ok=True)
        path, command, argv = PLACES[place]
        name = kind or rng.choice(list(CONTENTS if rng.random() < 0.6 else SPECIAL))
        damage(folder / path, name, rng)
        signal.signal(signal.SIGALRM, _late)
        signal.setitimer(signal.ITIMER_REAL, MOST_S)
        before = Path.cwd()
        os.chdir(folder)
        try:
            print(f"{path}: {name}")
            with at_most(MOST_BYTES):
                return command_main(command, *argv)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.chdir(before)

    end, trace, printed = run_one(run, random.Random(seed))
    if not trace and (wanted := WANTED.search(printed)):
        return "traceback", f"more than {MOST_S:g} s or {MOST_BYTES:,} bytes were asked for: {wanted[0]}", printed
    return end, trace, printed


@contextlib.contextmanager
def at_most(num_bytes: int) -> Generator[None]:
    """Has the kernel refuse this process, and each that it starts, more memory than it has now and that many bytes."""
    has = int(re.findall(r"^VmData:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)[0]) * 1024
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (has + num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _late(*_: object) -> NoReturn:
    raise TimeoutError(f"it took longer than {MOST_S:g} s")


def damage(path: Path, name: str, rng: random.Random) -> None:
    """Replaces the file, or what is not there yet, by the kind of that name."""
    sound = path.read_bytes() if path.is_file() else b"{}"
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if name in CONTENTS:
        path.write_bytes(CONTENTS[name](sound, rng))
    else:
        SPECIAL[name](path)


def _changed(sound: bytes, rng: random.Random) -> bytes:
    """Returns JSON, or lines of it, with odd values; of other files, with odd bytes."""
    from trainers.records.journal_lines import sealed

    lines = sound.splitlines() if sound.count(b"\n}") < 1 else [sound]
    place = rng.randrange(max(1, len(lines)))
    try:
        data: Any = json.loads(lines[place])
        is_sealed = data.pop("crc32", None) is not None
        text = json.dumps(changed_value(rng, data))
        lines[place] = (sealed(text) if is_sealed else text).encode("utf-8", "surrogatepass")
        return b"\n".join(lines) + b"\n"
    except (ValueError, AttributeError, IndexError):
        return _flipped(sound, rng)


def _flipped(sound: bytes, rng: random.Random) -> bytes:
    data = bytearray(sound or b"x")
    for _ in range(rng.randrange(1, 9)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


CONTENTS: Mapping[str, Callable[[bytes, random.Random], bytes]] = {
    "sound": lambda sound, _: sound,
    "empty": lambda *_: b"",
    "a blank line": lambda *_: b"\n",
    "null": lambda *_: b"null\n",
    "a list": lambda *_: b"[1, 2]\n",
    "an empty object": lambda *_: b"{}\n",
    "a text": lambda *_: b'"text"\n',
    "a number": lambda *_: b"3\n",
    "true": lambda *_: b"true\n",
    "not a number": lambda *_: b"NaN\n",
    "nested lists": lambda *_: b"[" * 100_000 + b"\n",
    "nested objects": lambda *_: b'{"a":' * 100_000 + b"\n",
    "closed nested lists": lambda *_: b'{"format":' + b"[" * 50_000 + b"]" * 50_000 + b"}\n",
    "a long number": lambda *_: b'{"format":' + b"9" * 5000 + b"}\n",
    "a large number": lambda *_: b'{"format":1e999,"model_type":1e999,"layout":{"tp":1e999}}\n',
    "Latin-1": lambda *_: '{"name":"ü"}\n'.encode("latin-1"),
    "half of a pair": lambda *_: b'{"name":"\\ud800","layout":{"engine":"\\udfff"}}\n',
    "UTF-16": lambda sound, _: sound.decode("utf-8", "replace").encode("utf-16"),
    "a byte order mark": lambda sound, _: b"\xef\xbb\xbf" + sound,
    "carriage returns": lambda sound, _: sound.replace(b"\n", b"\r\n"),
    "zeros": lambda *_: bytes(4096),
    "any bytes": lambda _, rng: rng.randbytes(500),
    "one long line": lambda *_: b"x" * 2**21,
    "cut": lambda sound, rng: sound[: rng.randrange(max(1, len(sound)))],
    "twice": lambda sound, _: sound + sound,
    "flipped bytes": _flipped,
    "changed values": _changed,
    "values changed otherwise": _changed,
    "values changed again": _changed,
    "aliases of aliases": lambda *_: _aliases(),
    "merges of merges": lambda *_: _aliases(merged=True),
    "a gzip of gigabytes": lambda *_: _bomb(),
    "counts without end": lambda sound, _: re.sub(
        rb"(?<=[:\[, ])\d+", lambda found: b"1e400" if len(found[0]) > 2 else b"1" + b"0" * 30, sound
    ),
    "other numbers of Parquet": lambda sound, rng: _renumbered(sound, rng),
    "escapes": lambda *_: b'{"\x1b]0;owned\x07":"\x1b[2J"}\n',
}
"""The contents that are put there in a regular file, made of the sound one."""


def _aliases(*, merged: bool = False) -> bytes:
    """Returns a YAML file of 40 levels, each of which holds the one below twice."""
    write = "{{<<: [*a{0}, *a{0}]}}" if merged else "[*a{0}, *a{0}]"
    first = "a0: &a0 {x: y}" if merged else "a0: &a0 [x, y]"
    return "\n".join([first, *(f"a{level + 1}: &a{level + 1} {write.format(level)}" for level in range(40))]).encode()


@functools.cache
def _bomb() -> bytes:
    """Returns a gzip file of about 4 MB which holds 4 GiB of zeros."""
    return gzip.compress(bytes(2**26)) * 64


def _renumbered(sound: bytes, rng: random.Random) -> bytes:
    """Returns the file with one to three of its last 600 bytes, where Parquet has its numbers, of the largest value."""
    data = bytearray(sound or b"x")
    for _ in range(rng.randrange(1, 4)):
        place = len(data) - 1 - rng.randrange(min(len(data), 600))
        size = rng.choice((1, 4, 9))
        data[place : place + size] = (b"\xff" * (size - 1) + b"\x01")[: len(data[place : place + size])]
    return bytes(data)


def _socket(path: Path) -> None:
    before = Path.cwd()
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(path.parent)  # a socket's path has at most 107 bytes
        listener.bind(path.name)
    os.chdir(before)


def _sparse(path: Path, num_bytes: int) -> None:
    with path.open("wb") as file:
        file.truncate(num_bytes)


def _unreadable(path: Path) -> None:
    path.write_text("{}")
    path.chmod(0)


SPECIAL: Mapping[str, Callable[[Path], object]] = {
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a link to a pipe": lambda path: (os.mkfifo(path.with_name("pipe")), path.symlink_to("pipe")),
    "a link to zeros": lambda path: path.symlink_to("/dev/zero"),
    "a link to a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a folder": lambda path: path.symlink_to("/"),
    "a link to memory": lambda path: path.symlink_to("/proc/self/mem"),
    "a file of a terabyte": lambda path: _sparse(path, 2**40),
    "a file of three gigabytes": lambda path: _sparse(path, 3 * 2**30),
    "an unreadable file": _unreadable,
    "nothing": lambda path: None,
}
"""The kinds that are put there and are no file, or none to be read."""


_TRAINING = ("layout.json", "--tokens", "1000", "--out", "training", "--studies", "studies", *NO_RAY)
_EXPORT = ("--out", "made", "--studies", "studies")
_SEARCH = ("--dry-run", "--studies", "studies", *NO_RAY)
PLACES: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "plan, config.json": ("model/config.json", "plan", ("model", "--cluster", "2xH100", "--top", "1")),
    "plan, space file": ("space.py", "plan", ("space.py", "--cluster", "2xH100", "--top", "1")),
    "plan, old study": (
        "studies/one/journal.jsonl",
        "plan",
        ("bloom7b", "--cluster", "2xH100", "--top", "1", "--learn-from", "one", "--studies", "studies"),
    ),
    "search, config.json": ("model/config.json", "search", ("model/config.json", *_SEARCH)),
    "search, layout": ("layout.json", "search", ("--layout", "layout.json", *_SEARCH)),
    "search, data": ("tokens/index.json", "search", ("gpt2", "--data", "tokens", "--set", "seq_len=16", *_SEARCH)),
    "search, lock": ("studies/one/lock", "search", ("--resume", "one", "--studies", "studies", *NO_RAY)),
    "search, note": ("studies/one/running.json", "search", ("--resume", "one", "--studies", "studies", *NO_RAY)),
    "search, journal": ("studies/one/journal.jsonl", "search", ("--resume", "one", "--studies", "studies", *NO_RAY)),
    "search, group": (
        "studies/group/scaling.json",
        "search",
        ("--resume", "group-1gpu", "--studies", "studies", *NO_RAY),
    ),
    "report, journal": ("studies/one/journal.jsonl", "report", ("one", "--studies", "studies", "--no-mlflow")),
    "report, page": (
        "studies/one/journal.jsonl",
        "report",
        ("one", "--studies", "studies", "--no-mlflow", "--html", "page.html"),
    ),
    "report, damaged lines": (
        "studies/one/journal.rejected.jsonl",
        "report",
        ("one", "--studies", "studies", "--no-mlflow"),
    ),
    "report, group": ("studies/group/scaling.json", "report", ("group", "--studies", "studies", "--no-mlflow")),
    "report, records": (
        "studies/one/training/training.jsonl",
        "report",
        ("one", "--studies", "studies", "--no-mlflow", "--html", "page.html"),
    ),
    "train, layout": ("layout.json", "train", _TRAINING),
    "train, plan": ("training/training.json", "train", _TRAINING),
    "train, attempt": ("training/.attempt", "train", _TRAINING),
    "train, records": ("training/training.jsonl", "train", _TRAINING),
    "train, lock": ("training/lock", "train", _TRAINING),
    "train, manifest": ("training/checkpoints/step-00000001-1/manifest.json", "train", _TRAINING),
    "train, index": ("tokens/index.json", "train", (*_TRAINING[:-2], "--out", "new", "--data", "tokens", *NO_RAY)),
    "train, weights": (
        "weights/config.json",
        "train",
        (*_TRAINING[:-2], "--out", "new", "--start-from", "weights", *NO_RAY),
    ),
    "train, list of weights": (
        "weights/model.safetensors.index.json",
        "train",
        (*_TRAINING[:-2], "--out", "new", "--start-from", "weights", *NO_RAY),
    ),
    "export, plan": ("training/training.json", "export", ("training", *_EXPORT)),
    "export, manifest": ("training/checkpoints/step-00000001-1/manifest.json", "export", ("training", *_EXPORT)),
    "export, layout": ("layout.json", "export", ("layout.json", "--to", "torchrun", "--tokens", "1000", *_EXPORT)),
    "converge, layout": (
        "layout.json",
        "converge",
        ("layout.json", "learning_rate=1e-3", "--steps", "2", "--out", "compared", "--studies", "studies", *NO_RAY),
    ),
    "converge, rates": (
        "compared/rates.json",
        "converge",
        ("layout.json", "learning_rate=1e-3", "--steps", "2", "--out", "compared", "--studies", "studies", *NO_RAY),
    ),
    "prepare, text": ("text.txt", "prepare", ("text.txt", "--out", "made", "--workers", "1")),
    "prepare, lines": ("text.jsonl", "prepare", ("text.jsonl", "--out", "made", "--workers", "1")),
    "prepare, packed": ("text.jsonl.gz", "prepare", ("text.jsonl.gz", "--out", "made", "--workers", "1")),
    "search, options": ("options.yaml", "search", ("--config", "options.yaml", *_SEARCH)),
    "prepare, pair": ("pair.idx", "prepare", ("pair.bin", "--out", "made", "--workers", "1")),
    "prepare, tokens": ("part.parquet", "prepare", ("part.parquet", "--out", "made", "--workers", "1")),
    "prepare, plan": ("begun/plan.json", "prepare", ("text.jsonl", "--out", "begun", "--workers", "1")),
    "validate, table": ("table.csv", "validate", ("table.csv",)),
    "replay, table": ("table.csv", "replay", ("table.csv",)),
}
"""Each command with one of the files that it reads: the file, the command's module, its arguments."""

if __name__ == "__main__":
    sys.exit(main())
