"""A training in a file is what is typed: its axes, environment, folder and what they leave out; bad files are named."""

import json
from pathlib import Path

import pytest

from platform.common.errors import InputError
from platform.search.__main__ import main, parse
from platform.search.setup.options import options_of
from platform.search.setup.request import read_request, resumed
from tests.samples import header
from tests.search.setup.test_stand_in import CONFIG
from tests.whole_searches.own_page import PAGE
from trainers.spec.batch import values_of
from trainers.spec.codec import to_json
from trainers.spec.workload import flags_of, value_of

FILE = """
command: torchrun --nproc-per-node {gpus} train.py --batch {micro_batch} --accum {grad_accum} {ckpt} --fsdp={fsdp}
axes:
  micro_batch: [1, 2]
  ckpt: [--checkpoint, ""]
  fsdp: [full, grad, true]
without:
  - {fsdp: [grad, true], ckpt: ""}
environment: {TOKENIZERS_PARALLELISM: false, OMP_NUM_THREADS: 2}
folder: project
tokens_per_step: 64
seq_len: 16
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("train()")
    (tmp_path / "project" / "own.py").write_text("def build(layout): ...")
    (tmp_path / "run.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_file_is_what_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = read_request(parse(["run.yaml", "--seq-len", "8"]))
    workload = request.space.recipe.workload
    assert workload is not None and workload.folder == str(tmp_path / "project")
    assert workload.variables() == {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "2"}
    candidates, _ = request.space.candidates(2)
    flags = [tuple(flags_of(candidate.layout.flags).values()) for candidate in candidates]
    assert flags == [("--checkpoint", "full"), ("--checkpoint", "grad"), ("--checkpoint", "true"), ("", "full")]
    assert {candidate.micro_batches for candidate in candidates} == {(1, 2)}
    assert (request.space.recipe.seq_len, request.space.recipe.global_batch) == (8, 8), "what is typed counts"
    monkeypatch.chdir(tmp_path / "project")
    words = ("torchrun", "--nproc-per-node", "{gpus}", "train.py", "--batch", "{micro_batch=1,2}", "--accum")
    words = (*words, "{grad_accum}", "{ckpt=--checkpoint,}", "--fsdp={fsdp=full,grad,true}")
    typed = read_request(parse(["--tokens-per-step=64", "--seq-len=8", "--", *words])).space.recipe.workload
    assert typed is not None and typed.command == workload.command
    assert typed.digest == workload.digest and typed != workload, "the environment may change what is trained"


def test_the_page_s_file_is_one(tmp_path: Path) -> None:
    """Checks docs/your-training.md: every key of its file, a variable with a hole, and what a stand-in of it is."""
    _, text = PAGE.read_text(encoding="utf-8").split("```yaml\n")
    Path("run.yaml").write_text(text.partition("```")[0].replace("../project", "project"))
    Path("config.json").write_text(json.dumps(CONFIG))
    request = read_request(parse(["run.yaml"]))
    space = request.space
    workload = space.recipe.workload
    assert workload is not None and workload.folder == str(tmp_path / "project")
    candidates, _ = space.candidates(4)
    flags = [flags_of(candidate.layout.flags) for candidate in candidates]
    assert {tuple(values) for values in flags} == {("fsdp", "ckpt", "threads")} and len(flags) == 6
    values = {**values_of(candidates[1].layout, candidates[1].batch_points()[0])}
    assert workload.variables(values) == {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "4"}
    assert request.stand_in is not None
    layouts = [request.stand_in.of(candidate).layout for candidate in candidates]
    assert [(on.zero_stage, on.checkpointing) for on in layouts[::2]] == [(3, "full"), (2, "full"), (2, "none")]


def test_a_study_keeps_what_its_file_said() -> None:
    options = parse(["run.yaml"])
    begun = header(options=to_json(options.study))
    assert options_of(begun) == options.study and begun.arguments[-10] == "torchrun"
    Path("run.yaml").unlink()
    again = resumed(parse(["--resume", "one"]), options_of(begun))
    assert read_request(again).space == read_request(options).space


def test_a_function_in_a_file() -> None:
    Path("run.yaml").write_text("{build: own.py:build, axes: {width: [1, 2]}, folder: project, tokens_per_step: 64}")
    request = read_request(parse(["run.yaml", "--set", "micro_batch=4"]))
    candidates, _ = request.space.candidates(2)
    assert [(c.layout.label, c.micro_batches) for c in candidates] == [("width=1", (4,)), ("width=2", (4,))]


def test_a_command_gets_its_values_as_they_are_written() -> None:
    """Checks words that YAML would turn into other ones: switches, octal and sexagesimal numbers, trailing zeros."""
    words = ["on", "No", "True", "null", "010", "0x1F", "1:30", "1.10", "1_000", "1e-05", "2026-01-02", "~"]
    Path("run.yaml").write_text(
        "environment: {MODE: off}\n"
        "command: train {micro_batch} {mode}\n"
        f"axes: {{micro_batch: 2, mode: [{', '.join(words)}]}}\n"
        "without: [{mode: 010}]\n"
        "tokens_per_step: 64\n"
        "seq_len: 16\n"
    )
    space = read_request(parse(["run.yaml"])).space
    candidates, _ = space.candidates(1)
    values = [flags_of(candidate.layout.flags)["mode"] for candidate in candidates]
    assert values == [word for word in words if word != "010"]
    assert space.recipe.workload is not None and space.recipe.workload.variables() == {"MODE": "off"}


def test_a_function_gets_values_of_yaml_s_types() -> None:
    Path("run.yaml").write_text(
        "{build: own.py:build, axes: {fused: [True, False], rate: [.5]}, folder: project, tokens_per_step: 64}"
    )
    candidates, _ = read_request(parse(["run.yaml"])).space.candidates(1)
    values = [{name: value_of(text) for name, text in flags_of(c.layout.flags).items()} for c in candidates]
    assert values == [{"fused": True, "rate": 0.5}, {"fused": False, "rate": 0.5}]


def test_a_mapping_may_be_copied_into_another() -> None:
    copied = FILE.replace("environment: {", "environment: {<<: &all {ALL: 1}, ")
    Path("run.yaml").write_text(copied)
    workload = read_request(parse(["run.yaml"])).space.recipe.workload
    assert workload is not None and workload.variables()["ALL"] == "1"


def test_a_space_file_may_be_of_a_command() -> None:
    Path("own_space.py").write_text(
        "from pathlib import Path\n"
        "from search_spaces.command import space_of_command\n"
        "def space():\n"
        "    words = ('python', 'train.py', '{micro_batch=1,2}', '{grad_accum}', '{mode=a,b}')\n"
        "    return space_of_command(words, folder=Path('project').absolute(), tokens_per_step=64, seq_len=16,\n"
        "                            without=('mode=b',))\n"
    )
    candidates, _ = read_request(parse(["own_space.py"])).space.candidates(2)
    assert [candidate.layout.label for candidate in candidates] == ["mode=a"]


BAD = {
    "[": "is no YAML file: while parsing",
    "{axes: {a: 1}, axes: {b: 1}}": "gives axes twice: keep one of them",
    "- 1": "a training is a mapping with command, build, axes",
    "{command: a, cmd: b}": "it has an unknown key cmd: there are command, build, axes",
    "{axes: {a: 1}}": "a training has either a command or a build",
    "{command: a, build: b}": "a training has either a command or a build",
    "{command: {a: 3}}": "a command is a text or a list of words, got {",
    "{command: 'a {micro_batch}', axes: {micro_batch: 1, width: 1}}": "axis width has no hole in the command",
    "{command: a, axes: [1]}": "axes is a mapping of names",
    "{command: 'a {b}', axes: {b: ['x,y']}}": "a value of axis b has no comma and no brace, got 'x,y'",
    "{command: 'a {b}', axes: {b: [[1]]}}": "a value is a text, a number, true or false, got ['1']",
    "{command: a, tokens_per_step: many}": "tokens_per_step must be a whole number of at least 1, as in 2000, ",
    "{command: 'a {b}', axes: {b: 1}, without: {b: 1}}": "without is a list of combinations",
    "{command: 'a {b}', axes: {b: 1}, without: [{c: 1}]}": "without names c, which is no axis of flags: b",
    "{command: 'a {b}', axes: {b: 1}, without: [{b: 2}]}": "without names the value '2', which axis b does not have",
}


@pytest.mark.parametrize("text", BAD)
def test_a_file_that_means_nothing_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.yaml").write_text(text)
    assert main(["run.yaml", "--tokens-per-step", "64", "--seq-len", "16"]) == 2
    error = capsys.readouterr().err
    assert BAD[text] in error and "run.yaml" in error and error.count("\n") == 1


def test_what_stands_twice_or_not_at_all_is_refused() -> None:
    with pytest.raises(InputError, match="name two trainings: leave out one"):
        parse(["run.yaml", "--", "python", "train.py"])
    with pytest.raises(InputError, match=r"none\.yaml cannot be read: there is no such file"):
        parse(["none.yaml"])
    Path("run.yaml").write_text(
        FILE.replace("fsdp: [grad, true]", "fsdp: [full, grad, true]").replace('ckpt: ""}', "}")
    )
    with pytest.raises(InputError, match="every combination of the axes"):
        read_request(parse(["run.yaml"]))


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        ("compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n", "accelerate's configuration"),
        ("cluster_name: a\nprovider: {type: aws}\n", "Ray's cluster file"),
    ],
)
def test_a_file_of_another_tool_is_told_as_a_plan_tells_it(tmp_path: Path, text: str, tool: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=f"is {tool}, .*a model is given by its config.json"):
        parse([str(path)])


def test_a_key_without_a_value_is_left_out(tmp_path: Path) -> None:
    """Checks a template's keys that are not filled in, and numbers as YAML spells them."""
    axes, _, _ = FILE.partition("environment")
    path = tmp_path / "keys.yaml"
    empty = "environment: ~\nfolder:\nstep_line: null\nmodel:\nmeans:\nbuild: null\n"
    path.write_text(f"{axes}{empty}seq_len: 16\ntokens_per_step: 65_536\n")
    filled = parse([str(path)]).study
    assert (filled.tokens_per_step, filled.seq_len, filled.step_line, filled.model) == (65536, 16, None, None)
    assert (filled.environment, filled.folder, filled.build) == ((), str(tmp_path), None)
    path.write_text("build: project/own.py:build\nstep_line:\ntokens_per_step: 65_536\nseq_len: ~\n")
    built = parse([str(path)]).study
    assert (built.tokens_per_step, built.seq_len, built.step_line) == (65536, None, None)
