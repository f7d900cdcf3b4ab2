"""Options in a file: the same values as on the command line, and one sentence for each mistake."""

import dataclasses
import os
from pathlib import Path
from typing import Literal

import pytest

from platform.common.config_file import read_config, write_config
from platform.common.errors import InputError
from platform.common.options import CommandParser, argument, config_field, non_default, option, setting
from platform.common.quantities import amount, duration


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    set: tuple[str, ...] = option((), repeated=True, about="values of an axis")
    command: tuple[str, ...] = setting((), about="a command")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    name: str = argument(about="what is meant")
    inner: Inner
    config: Path | None = config_field()
    counts: tuple[int, ...] = option((), read=lambda text: tuple(map(int, text.split(","))), about="numbers")
    budget_s: float | None = option(None, names=("--budget", "--budget-s"), read=duration, about="how long")
    tokens: float | None = option(None, read=amount, about="how many tokens")
    pair: tuple[str, ...] = option((), nargs=2, about="two names")
    kind: Literal["a", "b", "no"] = option("a", about="which kind")
    all: bool = option(False, about="all of them")
    trust: bool = option(False, in_files="never", about="trust others")


PARSER = CommandParser(Options, prog="command", description="Does something.")


def read(folder: Path, text: str, *words: str) -> Options:
    path = folder / "run.yaml"
    path.write_text(text)
    return PARSER.read(["--config", str(path), *words])


def test_a_file_says_what_the_command_line_says(tmp_path: Path) -> None:
    text = """
name: -x
counts: [1, 2]
budget: 1.5h
tokens: 1e11
pair: [one, two]
kind: no
all: true
set: {seq_len: 1024, engine: [fsdp, ddp]}
command: [torchrun, "{gpus}", --flag]
"""
    read_file = read(tmp_path, text.replace("name: -x", "name: x"))
    words = ["x", "--counts=1,2", "--budget=1.5h", "--tokens=1e11", "--pair", "one", "two", "--kind=no", "--all"]
    typed = PARSER.read([*words, "--set", "seq_len=1024", "--set", "engine=fsdp,ddp"])
    inner = dataclasses.replace(typed.inner, command=("torchrun", "{gpus}", "--flag"))
    assert read_file == dataclasses.replace(typed, inner=inner, config=tmp_path / "run.yaml")


def test_further_options_stand_on_the_command_line(tmp_path: Path) -> None:
    assert read(tmp_path, "counts: 4\nset: [a=1]\n", "x", "--all").counts == (4,)
    assert read(tmp_path, "name: y\nall: false\n", "--kind=b").kind == "b"
    assert PARSER.read(["x"]).config is None


@pytest.mark.parametrize(
    ("text", "words", "sentence"),
    [
        ("kinds: a", (), "has kinds, which is no option: did you mean kind?"),
        ("zzz: a", (), "has zzz, which is no option$"),
        ("trust: true", (), "has trust, which stands on the command line alone: leave it out"),
        ("config: x", (), "has config, which stands on the command line alone"),
        ("kind: [a, b]", (), "run.yaml: kind must be one value, got a list"),
        ("kind: {a: b}", (), "run.yaml: kind must be one value, got names with values"),
        ("kind: c", (), r"run.yaml: argument --kind: invalid choice: 'c'"),
        ("budget: soon", (), "run.yaml: argument --budget/--budget-s: must be a duration above 0"),
        ("all: 3", (), "run.yaml: all must be true or false, got '3'"),
        ("pair: one", (), "run.yaml: pair must be a list, got 'one'"),
        ("command: a b", (), "run.yaml: command must be a list, got 'a b'"),
        ("set: {a: {b: c}}", (), "run.yaml: set.a must be texts or numbers, got something nested"),
        ("set: {a: }", (), "run.yaml: set.a must be texts or numbers, got nothing"),
        ("kind:", (), "run.yaml: kind has no value: give one, or leave it out"),
        ("kind: a\nkind: b", (), "run.yaml gives kind twice: keep one of them"),
        ("budget-s: 1\nbudget_s: 1", (), "run.yaml gives budget_s twice: keep one of them"),
        ("budget: 1\nbudget_s: 1", (), "run.yaml gives budget and budget_s, one option twice: keep one of them"),
        ("set: {a: 1, a: 2}", (), "run.yaml gives a twice: keep one of them"),
        ("kind: a", ("--kind=b",), "--kind is given twice, by .*run.yaml too: leave one of them out"),
        ("set: [a=1]", ("--set", "b=1"), "--set is given twice, by"),
        ("name: y", ("x",), "name is given twice, by"),
        ("kind: a", ("--config", "other.yaml"), "--config is given twice: keep one file"),
        ("- a", (), "must hold options as KEY: VALUE lines"),
        ("", (), "must hold options as KEY: VALUE lines"),
        ("a: b: c", (), "is no YAML file: mapping values are not allowed here"),
        ("counts: !!int abc", (), "holds a value that is not of its YAML type: invalid literal for int"),
        ("all: !!bool maybe", (), "holds a value that is not of its YAML type: 'maybe'"),
        ("counts: !!int ''", (), "holds a value that is not of its YAML type: string index"),
        ("counts: !!timestamp abc", (), "holds a value that is not of its YAML type: 'NoneType'"),
        ("&a {kind: *a}", (), "kind must be|is no YAML file"),
    ],
)
def test_a_mistake_is_one_sentence(text: str, words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        read(tmp_path, text, *(words if "x" in words or "name" in text else (*words, "x")))


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00a")
    for name, sentence in (("none", "no such file"), ("pipe", "pipe"), (".", "folder"), ("bytes", "must hold options")):
        with pytest.raises(InputError, match=sentence):
            PARSER.read(["x", "--config", str(tmp_path / name)])


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    words = ["x", "--budget=1.5h", "--tokens=100B", "--pair", "1:30", "no", "--counts=4", "--kind=no", "--all"]
    options = PARSER.read(words)
    values = non_default(options, PARSER.read(["other"])) | {
        "set": ("a=1",),
        "command": ("a b", "{x=1,2}", "--é", "#", ""),
    }
    values["command"] = values["command"][:-1]
    write_config(tmp_path / "run.yaml", values, "A comment")
    again = PARSER.read(["--config", str(tmp_path / "run.yaml")])
    inner = Inner(set=("a=1",), command=("a b", "{x=1,2}", "--é", "#"))
    assert again == dataclasses.replace(options, inner=inner, config=tmp_path / "run.yaml")
    assert read_config(tmp_path / "run.yaml")["pair"] == ["1:30", "no"]


@pytest.mark.parametrize(("first", "write"), [("[x]", "[*a{0}, *a{0}]"), ("{{x: y}}", "{{<<: [*a{0}, *a{0}]}}")])
def test_aliases_of_aliases_are_refused_before_they_are_repeated(tmp_path: Path, first: str, write: str) -> None:
    levels = (f"a{level + 1}: &a{level + 1} {write.format(level)}" for level in range(40))
    path = tmp_path / "run.yaml"
    path.write_text("\n".join([f"a0: &a0 {first.format()}", *levels]))
    with pytest.raises(InputError, match=r"run\.yaml has more than 100,000 values with those that aliases repeat"):
        read_config(path)
