"""The options of a search of a user's command: what it needs, refuses, keeps and says before anything starts."""

import dataclasses
from pathlib import Path

import pytest

from platform.cluster.nodes import ClusterHandle, Node
from platform.common.errors import InputError
from platform.search.__main__ import main, parse
from platform.search.session import own_commands
from platform.search.setup.options import options_of
from platform.search.setup.request import read_request, resumed
from platform.search.setup.study_setup import setup_of
from tests.samples import header
from trainers.spec.cluster import Cluster
from trainers.spec.codec import to_json

COMMAND = ("--", "python", "train.py", "--batch", "{micro_batch=1,2}", "--accum", "{grad_accum}", "{mode=a,b}")
FUNCTION = ("--tokens-per-step", "64", "--build", "own.py:build")
NEEDED = ("--tokens-per-step", "64", "--seq-len", "16")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("train()")
    (tmp_path / "own.py").write_text("def build(layout): ...")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


BAD: dict[tuple[str, ...], str] = {
    (*NEEDED, "--"): "behind -- stands the command to search, as in -- torchrun train.py, got nothing",
    ("--seq-len", "16", *COMMAND): "a command needs --tokens-per-step N",
    ("gpt2", "--tokens-per-step", "64"): "--tokens-per-step is of --build or a command behind --, which is not there",
    ("gpt2", *NEEDED, *COMMAND): "the space names another subject: leave it out beside a command",
    (*NEEDED, "--set", "zero_stage=1", *COMMAND): "--set sets axes of this project's models",
    (*NEEDED, "--data", "tokens", *COMMAND): "--data is of this project's models",
    (*NEEDED, "--layout", "layout.json", *COMMAND): "--layout is of this project's models",
    (*NEEDED, "--learn-from", "old", *COMMAND): "--learn-from teaches predictions",
    (*NEEDED, "--profile", *COMMAND): "--profile profiles steps of this project's processes",
    (*NEEDED, "--safe", *COMMAND): "--safe trains a model of this project's",
    (*NEEDED, "--all", *COMMAND): "--all measures a space's named points",
    (*NEEDED, "--device-memory-gib", "8", *COMMAND): "--device-memory-gib limits this project's own allocator",
    (*NEEDED, "--gpus", "1,2", *COMMAND): "has no hole {gpus} for it",
    ("--tokens-per-step", "64", "--dry-run", *COMMAND): "--dry-run runs nothing: give --seq-len N",
    ("--tokens-per-step", "64", "--", "python", "train.py", "{micro_batch=1}"): "the command has no hole {grad_accum}",
    ("--tokens-per-step", "64", "--step-line", "loss", *COMMAND): "has no group (?P<tokens>...)",
    ("--tokens-per-step", "60", "--seq-len", "16", *COMMAND): "is no multiple of the 16 tokens of a sequence",
    (
        *NEEDED,
        "--build",
        "own.py:build",
        *COMMAND,
    ): "a command behind -- and --build, or a training's file, name two trainings",
    ("--build", "own.py:build"): "--build needs --tokens-per-step N",
    ("gpt2", *FUNCTION): "the space names another subject: leave it out beside --build",
    (*FUNCTION, "--learn-from", "old"): "--learn-from teaches predictions, and a function has none",
    (*FUNCTION, "--step-line", "loss"): "--step-line finds the steps of a command: leave it out beside --build",
    (*FUNCTION, "--safe"): "--safe trains a model of this project's",
    (*FUNCTION, "--set", "width"): "--set needs NAME=VALUE,VALUE, got 'width'",
    ("--tokens-per-step", "64", "--build", "none.py:build"): "none.py cannot be found from",
    (*NEEDED, "--gpus", "3", *COMMAND): "global batch 4 is not a multiple of micro_batch 1 x 3",
}


@pytest.mark.parametrize("arguments", BAD, ids=BAD.values())
def test_what_a_command_does_not_have_is_refused(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    text = capsys.readouterr().err
    assert BAD[arguments] in text and text.count("\n") == 1


def test_a_dry_run_lists_the_points(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*NEEDED, "--gpus", "2", "--dry-run", "--address", "local", *COMMAND]) == 0
    text = capsys.readouterr().out
    assert "train.py, length 16, global batch 4" in text
    assert "would run  mode=a, micro-batch 1, 2" in text and "would run  mode=b, micro-batch 1, 2" in text


def test_a_dry_run_tells_of_the_largest(capsys: pytest.CaptureFixture[str]) -> None:
    command = tuple(word.replace("{micro_batch=1,2}", "{micro_batch=max}") for word in COMMAND)
    assert main([*NEEDED, "--gpus", "2", "--dry-run", "--address", "local", *command]) == 0
    assert "would run  mode=a, the largest that fits of micro-batches 1, 2" in capsys.readouterr().out


def test_a_study_keeps_its_command() -> None:
    options = parse([*NEEDED, *COMMAND])
    request = read_request(options)
    begun = header(options=to_json(request.options))
    assert begun.arguments[-len(COMMAND) :] == COMMAND and "--folder" not in begun.arguments
    stored = options_of(begun)
    assert stored == options.study and stored.folder == str(Path.cwd())
    again = resumed(parse(["--resume", "one"]), stored)
    assert read_request(again).space.recipe == request.space.recipe
    with pytest.raises(InputError, match="a resumed study keeps the command"):
        resumed(parse(["--resume", "one", *COMMAND, "--more"]), stored)


def test_a_command_that_this_user_did_not_begin_needs_trust() -> None:
    """Checks a journal that came from elsewhere: whoever wrote it chose the command that a resumption runs."""
    request = read_request(parse([*NEEDED, *COMMAND]))
    with pytest.raises(InputError, match="which this user did not begin to search as it and its files are now"):
        own_commands.check(request, is_typed=False, trusted=False)
    own_commands.check(request, is_typed=True, trusted=False)
    own_commands.check(request, is_typed=False, trusted=False)
    Path("train.py").write_text("other()")
    changed = read_request(parse([*NEEDED, *COMMAND]))
    with pytest.raises(InputError, match="look at them, then give --trust"):
        own_commands.check(changed, is_typed=False, trusted=False)
    own_commands.check(changed, is_typed=False, trusted=True)


def test_a_function_is_kept_and_needs_trust_where_this_user_did_not_begin_it() -> None:
    options = parse([*FUNCTION, "--set", "width=1,2"])
    request = read_request(options)
    begun = header(options=to_json(request.options))
    assert {"--build=own.py:build", "--set=width=1,2"} <= {*begun.arguments} | {
        "=".join(pair) for pair in zip(begun.arguments, begun.arguments[1:], strict=False)
    }
    again = resumed(parse(["--resume", "one"]), options_of(begun))
    assert read_request(again).space.recipe == request.space.recipe
    with pytest.raises(InputError, match=r"the study runs the function own\.py:build in .*, which this user did not"):
        own_commands.check(request, is_typed=False, trusted=False)
    own_commands.check(request, is_typed=False, trusted=True)
    own_commands.check(request, is_typed=False, trusted=False)


def test_a_model_has_no_command_to_check() -> None:
    request = read_request(parse(["gpt2"]))
    own_commands.check(dataclasses.replace(request), is_typed=False, trusted=False)


NODES = ("--nnodes", "{nodes}", "--node-rank", "{node_rank}", "--master-addr", "{head}:{port}")


def _cluster_of(words: tuple[str, ...], handle: ClusterHandle) -> tuple[int, int]:
    tokens = ("--tokens-per-step", "256", "--seq-len", "16")
    cluster = setup_of(read_request(parse([*tokens, *COMMAND, *words])), handle, None).cluster
    return cluster.num_nodes, cluster.devices_per_node


def test_a_command_on_several_nodes_has_the_holes_of_nodes() -> None:
    gpus = Cluster(device_kind="cuda", device="H200", device_memory_gib=140.0, num_nodes=2, devices_per_node=2)
    handle = ClusterHandle(cluster=gpus, cpus_per_worker=1.0, driver_ip="10.0.0.1")
    assert _cluster_of(NODES, handle) == (2, 2)
    with pytest.raises(InputError, match=r"on 2 nodes, and the command has no hole \{node_rank\}, \{head\}"):
        _cluster_of(NODES[:2], handle)
    alone = dataclasses.replace(handle, cluster=dataclasses.replace(gpus, num_nodes=1))
    assert _cluster_of((), alone) == _cluster_of(NODES, alone) == (1, 2)


def test_workers_of_a_command_with_nodes_are_shared_out_over_all_of_them() -> None:
    cpus = Cluster(device_kind="cpu", device="a processor", device_memory_gib=8.0, devices_per_node=2)
    nodes = tuple(Node(id=name, address=name, num_cpus=1, num_gpus=0, facts={}) for name in ("a", "b"))
    handle = ClusterHandle(cluster=cpus, cpus_per_worker=0.5, driver_ip="a", nodes=nodes)
    assert (_cluster_of(NODES, handle), _cluster_of((), handle)) == ((2, 1), (1, 2))
    with pytest.raises(InputError, match=r"runs on all 3 nodes, which do not share 2 workers evenly: give --gpus 3"):
        _cluster_of(NODES, dataclasses.replace(handle, nodes=(*nodes, nodes[0])))
