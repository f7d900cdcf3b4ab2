"""Runs whole commands on odd inputs and counts those taken, refused in a sentence, or ending in a traceback. Run

python -m benchmarks.fuzz [--inputs 2000] [--first 0] [--seed 0] [--only KIND] [--one N]

Kinds are options of each command, values of --set, space files, config.json, layout files, journals and measured
tables. Each input is made from the seed and its number alone: `--one N` runs one again and shows its traceback,
`--first N` goes on where another run ended. A command runs in this process as `python -m` runs it, up to where it
would start Ray or train. The exit code is 1 where an input ends in a traceback, or in an exit code other than 0 to 4.

Its figures: docs/lab/faults.csv#odd-inputs-25.
"""

import argparse
import contextlib
import csv
import importlib
import io
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from platform.common.errors import ClusterError, InputError
from search_spaces.changes import axes

ROOT = Path(__file__).parents[1]
JOURNAL = ROOT / "tests" / "study" / "data" / "journal.jsonl"
TABLES = sorted((ROOT / "tests" / "cost_model" / "tables").glob("*.csv"))
ODD_TEXTS = (
    "", " ", "0", "-1", "1", "2", "3", "64", "1e3", "1e400", "nan", "inf", "-0", "9" * 30, "9" * 5000, "1.5", "2k",
    "10m",
    "100B", "1_0", "\u0663", "\u00b2", "None", "true", "[]", "{}", "a=b", "=", ",", "1,,2", "1..", "..4", "4..1", "x8",
    "8x", "8xH100", "8h100", "2 nodes x 8 x H100", "~nouser/x", "../..", "/dev/null", "/proc/self/mem", "x" * 5000,
    "a\nb", "\ud800", "%s", "$(id)", "--json", "ddp", "fsdp", "bf16", "gpt2", "tiny", "4", "8", "16", "128",
    "0.1", "1e-4", "none", "full", "true", "false",
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 3, 10**19, 10**400, 1.5, -0.0, float("nan"), float("inf"), "", "x", "gelu", "9" * 5000,
    [], [1], {}, {"a": 1}, [[]], "\u0000", 2, 4, 8, 16, 128, 0.5,
)  # fmt: skip
ODD_HOME = "~nouser/made"
"""A path that cannot be written to, whoever runs this."""
CONFIG: Mapping[str, Any] = {
    "model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": 128, "vocab_size": 256, "n_positions": 64,
    "initializer_range": 0.02, "tie_word_embeddings": True,
}  # fmt: skip
SPACE = """
from search_spaces.space import Space
from trainers.spec.recipe import Recipe
from trainers.spec.model import ModelSpec

def space():
    model = ModelSpec(name="tiny", architecture="gpt2", num_layers={num_layers}, hidden_size={hidden_size},
                      num_heads=2, vocab_size={vocab_size}, max_positions=1024)
    return Space(name={name}, summary="s", recipe=Recipe(model=model, seq_len={seq_len}, global_batch={global_batch}),
                 axes={axes}, micro_batches={micro_batches})
"""
FIELDS: Mapping[str, Any] = {
    "num_layers": 1, "hidden_size": 32, "vocab_size": 256, "name": "mine", "seq_len": 16, "global_batch": 4,
    "axes": {"engine": ("ddp",)}, "micro_batches": (1, 2),
}  # fmt: skip
PLAN = ("--cluster", "2xH100", "--top", "2")


def run_all(
    argv: Sequence[str] | None,
    description: str | None,
    kinds: Iterable[str],
    run: Callable[[str, str], tuple[str, str, str]],
    *,
    num_inputs: int,
) -> int:
    """Runs a fuzzer: `run` takes a kind and a seed, and returns as `run_one` does. Prints each traceback's last line,
    then a line a kind; returns the exit code.
    """
    kinds = tuple(kinds)
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=num_inputs)
    parser.add_argument("--first", type=int, default=0, metavar="N", help="begin at this input")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=kinds, help="this kind alone")
    parser.add_argument("--one", type=int, metavar="N", help="this input alone, with what it printed")
    options = parser.parse_args(argv)
    numbers = range(options.first, options.first + options.inputs) if options.one is None else (options.one,)
    ends: Counter[tuple[str, str]] = Counter()
    num_faults, began_s = 0, time.monotonic()
    for number in numbers:
        kind = options.only or kinds[number % len(kinds)]
        end, trace, printed = run(kind, f"{options.seed}/{number}")
        if options.one is not None:
            print(printed)
        ends[kind, end] += 1
        if trace:
            num_faults += 1
            print(
                f"input {number} ({kind}): {trace if options.one is not None else trace.splitlines()[-1]}", flush=True
            )
    for kind in kinds:
        counts = {end: ends[kind, end] for end in ("taken", "refused", "traceback") if ends[kind, end]}
        if counts:
            print(f"{kind}: {', '.join(f'{count} {end}' for end, count in counts.items())}")
    print(f"{ends.total()} inputs, {num_faults} tracebacks or hangs, {time.monotonic() - began_s:.0f} s")
    return 1 if num_faults else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line a kind, then each traceback's last line; returns the exit code."""
    return run_all(argv, __doc__, KINDS, lambda kind, seed: run_one(KINDS[kind], random.Random(seed)), num_inputs=2000)


def run_one(run: Callable[[random.Random, Path], int | None], rng: random.Random) -> tuple[str, str, str]:
    """Makes one input and runs it; returns "taken", "refused" or "traceback", the traceback, and what was printed."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    code: int | str | None = 2
    trace = ""
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = run(rng, folder)
    except (InputError, ClusterError) as error:
        print(error, file=out)
    except SystemExit as exit_error:
        code = exit_error.code
    except BaseException:
        trace = traceback.format_exc()
    finally:
        shutil.rmtree(folder)
    if code not in (None, 0, 1, 2, 3, 4):
        trace = f"exit code {code!r}"
    out.seek(0)
    return "traceback" if trace else "refused" if code == 2 else "taken", trace, out.read()


def command_main(command: str, *argv: str) -> int:
    """Runs the command in this process and returns its exit code."""
    folder = ROOT / "platform" / command
    return importlib.import_module(f"platform.{command}{'.__main__' * folder.is_dir()}").main(argv)


def _options(command: str) -> Sequence[str]:
    """Returns the names of the command's options."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        command_main(command, "--help")
    words = (word.strip("[],|()") for word in text.getvalue().split())
    return sorted({word for word in words if word.startswith("--") and len(word) > 2})


def _command_options(rng: random.Random, folder: Path) -> int | None:
    """Runs a random command with odd options; those that start Ray or train only up to their options' meaning."""
    command = rng.choice(("plan", "report", "validate", "replay", "export", "search", "train", "converge", "prepare"))
    first = {"plan": "gpt2", "search": "gpt2", "prepare": str(folder / "in.txt"), "validate": str(rng.choice(TABLES))}
    (folder / "in.txt").write_text(rng.choice(ODD_TEXTS), encoding="utf-8", errors="surrogatepass")
    argv = [rng.choice((first.get(command, "one"), rng.choice(ODD_TEXTS)))]
    for option in rng.choices(_options(command), k=rng.randrange(1, 4)):
        if option in ("--run", "--workers", "--help"):
            continue  # trains, or starts as many processes
        writes = option in ("--out", "--html", "--csv", "--png")
        value = rng.choice((str(folder / "made"), ODD_HOME)) if writes else rng.choice(ODD_TEXTS)
        argv.append(f"{option}={value}")
    if command in ("train", "converge"):
        module = "platform.train.__main__" if command == "train" else "platform.train.converging.command"
        importlib.import_module(module).PARSER.read(argv)
        return 0
    places = ["--studies", str(folder)] if command in ("report", "search", "export") else []
    defaults = {"plan": PLAN, "search": ("--dry-run",), "report": ("--no-mlflow",), "prepare": ("--workers=1",)}
    out = ["--out", rng.choice((str(folder / "made"), ODD_HOME))] if command in ("export", "prepare") else []
    return command_main(command, *argv, *places, *out, *defaults.get(command, ()))


def _changes(rng: random.Random, folder: Path) -> int:
    """Plans with odd values of axes."""
    argv: list[str] = []
    for _ in range(rng.randrange(1, 3)):
        axis = rng.choice([*axes(), "lr", ""])
        argv += ["--set", f"{axis}={','.join(rng.choices(ODD_TEXTS, k=rng.choice((1, 1, 2))))}"]
    return command_main("plan", "gpt2", *argv, *PLAN)


def _spaces(rng: random.Random, folder: Path) -> int:
    """Searches a space file with odd fields, or cut somewhere."""
    fields = {**FIELDS, **{rng.choice(list(FIELDS)): rng.choice(ODD_VALUES) for _ in range(rng.randrange(1, 3))}}
    text = SPACE.format(**{name: _source(value) for name, value in fields.items()})
    if rng.random() < 0.2:
        text = text[: rng.randrange(len(text))]
    (folder / "mine.py").write_text(text, encoding="utf-8", errors="surrogatepass")
    return command_main("plan", str(folder / "mine.py"), *PLAN)


def _source(value: Any) -> str:
    """Returns the value as Python source."""
    return (
        f'float("{value}")'
        if isinstance(value, float) and (value != value or value in (float("inf"),))
        else _repr(value)
    )


def _repr(value: Any) -> str:
    return hex(value) if isinstance(value, int) and not isinstance(value, bool) and value > 2**64 else repr(value)


def _configs(rng: random.Random, folder: Path) -> int:
    """Plans a model's config.json with odd values."""
    return command_main("plan", str(_written(folder / "config.json", changed_value(rng, CONFIG), rng)), *PLAN)


def _layouts(rng: random.Random, folder: Path) -> int:
    """Exports a layout file with odd values."""
    from trainers.spec.codec import to_json
    from trainers.spec.layout import Layout
    from trainers.spec.model import ModelSpec
    from trainers.spec.recipe import Recipe

    model = ModelSpec(
        name="tiny", architecture="gpt2", num_layers=1, hidden_size=32, num_heads=2, vocab_size=64, max_positions=64
    )
    recipe = Recipe(model=model, seq_len=16, global_batch=4)
    layout = {
        "layout": to_json(Layout(engine="ddp", dp_replicate=2)),
        "recipe": to_json(recipe),
        "batch": {"micro_batch": 1, "grad_accum": 2},
    }
    path = _written(folder / "layout.json", changed_value(rng, layout), rng)
    return command_main(
        "export",
        str(path),
        "--out",
        str(folder / "made"),
        "--tokens",
        "1000",
        "--to",
        rng.choice(("accelerate", "deepspeed", "torchrun")),
        "--studies",
        str(folder),
    )


def _journals(rng: random.Random, folder: Path) -> int:
    """Reports a journal with odd values, or with lines left out, doubled or cut."""
    from trainers.records.journal_lines import sealed

    lines = [json.loads(line) for line in JOURNAL.read_text(encoding="utf-8").splitlines()]
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(lines))
        match rng.randrange(4):
            case 0:
                del lines[place]
            case 1:
                lines.insert(rng.randrange(len(lines)), lines[place])
            case _:
                lines[place] = changed_value(rng, lines[place])
        if not lines:
            break
    texts = map(_json, lines)
    text = "".join(f"{sealed(json_text) if rng.random() < 0.9 else json_text}\n" for json_text in texts)
    if rng.random() < 0.2:
        text = text[: rng.randrange(len(text) + 1)]
    (folder / "one").mkdir()
    (folder / "one" / "journal.jsonl").write_text(text, encoding="utf-8", errors="surrogatepass")
    page = ("--html", str(folder / "page.html")) if rng.random() < 0.3 else ("--json",) if rng.random() < 0.3 else ()
    return command_main("report", "one", "--studies", str(folder), "--no-mlflow", *page)


def _tables(rng: random.Random, folder: Path) -> int:
    """Validates or replays a measured table with odd cells."""
    with rng.choice(TABLES).open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    rows = [rows[0], *rng.sample(rows[1:], min(8, len(rows) - 1))]
    for _ in range(rng.randrange(1, 4)):
        row = rng.choice(rows)
        row[rng.randrange(len(row))] = rng.choice(ODD_TEXTS)
    with (folder / "t.csv").open("w", encoding="utf-8", errors="surrogatepass", newline="") as file:
        csv.writer(file).writerows(rows)
    return command_main(rng.choice(("validate", "validate", "replay")), str(folder / "t.csv"))


def changed_value(rng: random.Random, original: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of `original` with one to three of its values, at any depth, odd or gone."""
    changed: dict[str, Any] = json.loads(json.dumps(original))
    for _ in range(rng.randrange(1, 4)):
        inner: Any = changed
        while True:
            key = rng.choice(list(inner))
            if not (isinstance(inner[key], dict) and inner[key] and rng.random() < 0.8):
                break
            inner = inner[key]
        if rng.random() < 0.15 and len(inner) > 1:
            del inner[key]
        else:
            inner[key] = rng.choice(ODD_VALUES)
    return changed


def _json(data: Any) -> str:
    """Returns JSON, with numbers of any length and surrogates."""
    sys.set_int_max_str_digits(0)
    text = json.dumps(data)
    sys.set_int_max_str_digits(4300)
    return text


def _written(path: Path, data: Any, rng: random.Random) -> Path:
    """Returns the file with `data` as JSON, sometimes cut."""
    text = _json(data)
    if rng.random() < 0.1:
        text = text[: rng.randrange(len(text))]
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    return path


KINDS: Mapping[str, Callable[[random.Random, Path], int | None]] = {
    "options": _command_options,
    "--set": _changes,
    "space files": _spaces,
    "config.json": _configs,
    "layout files": _layouts,
    "journals": _journals,
    "tables": _tables,
}

if __name__ == "__main__":
    sys.exit(main())
