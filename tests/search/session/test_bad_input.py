"""Bad input: one sentence on standard error, exit code 2, no traceback, and nothing was started for it."""

import json
from pathlib import Path

import pytest

from platform.search.__main__ import main
from tests.samples import layout, measurement
from tests.search.session.refusals import Refused
from trainers.spec.codec import to_json

CONFIG = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256, "n_positions": 64}


class TestSpaces:
    def test_none(self, refused: Refused) -> None:
        assert "--list" in refused()

    def test_unknown_with_near_names(self, refused: Refused) -> None:
        assert "unknown space 'bloom7'; did you mean bloom7b or bloom7b_kinds?" in refused("bloom7")

    def test_unknown_and_like_none(self, refused: Refused) -> None:
        output = refused("zzzz")
        assert "unknown space 'zzzz'" in output and "did you mean" not in output and "gpt2_xl" in output

    def test_no_such_file(self, refused: Refused, tmp_path: Path) -> None:
        assert "there is no such file" in refused(str(tmp_path / "space.py"))

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("def space(:\n", "SyntaxError"),
            ("import not_there_at_all\n", "ModuleNotFoundError"),
            ("x = 1\n", "no function space()"),
            ("def space():\n    return 3\n", "returned int, not a Space"),
            ("def space():\n    raise RuntimeError('no\\nluck')\n", "RuntimeError"),
            ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
            # Here its miniature is searched, of which the unknown engine is no axis.
            (
                "import dataclasses, search_spaces\n"
                "def space():\n"
                "    return dataclasses.replace(search_spaces.load('gpt2'), axes={'engine': ('zero',)})\n",
                "axis engine of space gpt2: engine must be one of ddp, fsdp, deepspeed",
            ),
            (
                "import dataclasses, search_spaces\n"
                "def space():\n"
                "    return dataclasses.replace(search_spaces.load('gpt2'), optional_axes=('loss'))\n",
                "optional_axes of space gpt2 must be a tuple, as in ('loss',), got no tuple",
            ),
        ],
    )
    def test_a_file_that_gives_no_space(self, refused: Refused, tmp_path: Path, text: str, reason: str) -> None:
        path = tmp_path / "mine.py"
        path.write_text(text)
        assert reason in refused(str(path))


class TestConfig:
    def test_unreadable(self, refused: Refused, tmp_path: Path) -> None:
        assert str(tmp_path / "config.json") in refused(str(tmp_path / "config.json"))

    def test_a_folder_without_one(self, refused: Refused, tmp_path: Path) -> None:
        assert f"{tmp_path} has no config.json: give a space's name" in refused(str(tmp_path))
        assert f"{tmp_path}/none is not there: give a space's name" in refused(f"{tmp_path}/none")

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("{", "JSON"),
            ("[1, 2]", "config.json"),
            (json.dumps({**CONFIG, "model_type": "t5"}), "t5"),
            (json.dumps({key: CONFIG[key] for key in CONFIG if key != "model_type"}), "states no model_type: this"),
            (json.dumps({key: CONFIG[key] for key in CONFIG if key != "n_embd"}), "n_embd"),
            (json.dumps({**CONFIG, "n_embd": "wide"}), "n_embd"),
            (json.dumps({**CONFIG, "n_embd": 65}), "65"),
            (json.dumps({**CONFIG, "n_layer": 0}), "0"),
        ],
    )
    def test_malformed(self, refused: Refused, tmp_path: Path, text: str, reason: str) -> None:
        path = tmp_path / "config.json"
        path.write_text(text)
        output = refused(str(path))
        assert reason in output

    def test_bytes_that_are_no_text(self, refused: Refused, tmp_path: Path) -> None:
        path = tmp_path / "config.json"
        path.write_bytes(b"\xff\xfe\x00{}")
        assert str(path) in refused(str(path))


class TestSet:
    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ("zero_stag=1", "did you mean zero_stage?"),
            ("engine=horovod", "engine has no value 'horovod'"),
            ("engine=ddb", "did you mean ddp?"),
            ("seq_len=long", "seq_len takes whole numbers, got 'long'"),
            ("seq_len", "--set needs axis=value,value"),
            ("micro_batch=0", "micro-batches of at least 1"),
            ("global_batch=-512", "global_batch must be at least 1, got -512"),
            ("learning_rate=nan", "learning_rate takes numbers"),
            ("zero_stage=9", "zero_stage"),
            ("seed=-1", "seed must lie in [0, 2^63), got -1"),
            ("tp=2", "tp 2 does not divide the 50257 words in the vocabulary of gpt2: choose another tp"),
        ],
    )
    def test_unknown_axis_or_value(self, refused: Refused, change: str, reason: str) -> None:
        assert reason in refused("gpt2", "--set", change)

    def test_a_layout_that_no_cluster_size_allows(self, refused: Refused) -> None:
        output = refused("gpt2", "--set", "engine=ddp", "--set", "zero_stage=3")
        assert "gives no layout on any cluster" in output

    @pytest.mark.parametrize(
        ("change", "engine", "reason"),
        [
            ("compression=powersgd_4", "fsdp", "only DDP compresses gradients"),
            ("offload=all", "ddp", "DDP keeps everything on the device, got offload all"),
            ("offload=optimizer", "fsdp", "FSDP2 offloads weights and gradients along with the states"),
        ],
    )
    def test_what_no_engine_runs(self, refused: Refused, change: str, engine: str, reason: str) -> None:
        output = refused("gpt2", "--set", change, "--set", f"engine={engine}")
        assert output.startswith(f"nothing of space gpt2 can run: {reason}")

    def test_a_batch_that_does_not_divide(self, refused: Refused) -> None:
        output = refused("gpt2", "--set", "micro_batch=3")
        assert "global batch 512 is not a multiple of micro_batch 3" in output


class TestLayoutFile:
    def write(self, path: Path, **parts: object) -> str:
        path.write_text(json.dumps(parts))
        return str(path)

    def test_missing(self, refused: Refused, tmp_path: Path) -> None:
        assert "cannot be read" in refused("gpt2", "--layout", str(tmp_path / "layout.json"))

    def test_not_a_layout(self, refused: Refused, tmp_path: Path) -> None:
        path = self.write(tmp_path / "layout.json", layout={"engine": "ddp", "zero_stage": 3})
        assert "zero_stage of ddp must be one of 0, got 3" in refused("gpt2", "--layout", path)

    def test_a_batch_that_does_not_divide(self, refused: Refused, tmp_path: Path) -> None:
        measured = measurement()
        path = self.write(
            tmp_path / "layout.json",
            recipe=to_json(measured.recipe),
            layout=to_json(layout(dp_shard=4)),
            batch={"micro_batch": 3, "grad_accum": 43},
        )
        assert "global batch 512 is not a multiple of micro_batch 3" in refused("--layout", path)

    @pytest.mark.parametrize(
        ("parts", "reason"),
        [
            ({"layout": {"engine": "ddp", "tp": 1.5}}, "tp must be a whole number, got 1.5"),
            ({"layout": {"engine": "ddp", "tp": "2"}}, "tp must be a whole number, got '2'"),
            ({"layout": {"engine": "deepspeed", "tp": 2}}, "engines ddp and fsdp have it, got tp 2: set it to 1"),
            ({"layout": {"engine": "ddp"}, "batch": {"micro_batch": 1}}, "BatchPoint lacks grad_accum"),
        ],
    )
    def test_a_file_written_by_hand(
        self, refused: Refused, tmp_path: Path, parts: dict[str, object], reason: str
    ) -> None:
        assert reason in refused("gpt2", "--layout", self.write(tmp_path / "layout.json", **parts))

    def test_a_layout_alone_wants_a_space(self, refused: Refused, tmp_path: Path) -> None:
        path = self.write(tmp_path / "layout.json", layout=to_json(layout()))
        assert "name a space" in refused("--layout", path)

    @pytest.mark.parametrize("space", [(), ("bloom7b",)])
    def test_set_beside_a_file_with_a_recipe(self, refused: Refused, tmp_path: Path, space: tuple[str, ...]) -> None:
        measured = measurement()
        path = self.write(tmp_path / "layout.json", recipe=to_json(measured.recipe), layout=to_json(measured.layout))
        output = refused(*space, "--layout", path, "--set", "seq_len=1024")
        assert "holds its own recipe" in output and "--set seq_len=1024" in output and "leave out --set" in output

    @pytest.mark.parametrize("change", ["engine=ddp", "micro_batch=2"])
    def test_set_of_what_a_layout_alone_fixes(self, refused: Refused, tmp_path: Path, change: str) -> None:
        batch = {"micro_batch": 1, "grad_accum": 128}
        path = self.write(tmp_path / "layout.json", layout=to_json(layout()), batch=batch)
        assert f"got --set {change}" in refused("bloom7b", "--layout", path, "--set", change)

    def test_a_space_beside_the_recipe_of_another_model(self, refused: Refused, tmp_path: Path) -> None:
        measured = measurement()
        path = self.write(tmp_path / "layout.json", recipe=to_json(measured.recipe), layout=to_json(measured.layout))
        output = refused("gpt2", "--layout", path)
        assert "space gpt2 trains gpt2" in output and "bloom-7b1" in output and "leave out the space" in output


@pytest.mark.parametrize("option", ["--max-trials", "--time-budget-s", "--gpu-s", "--device-memory-gib", "--tokens"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "many", ""])
def test_budgets_that_are_none(refused: Refused, option: str, value: str) -> None:
    output = refused("gpt2", f"{option}={value}")
    assert option in output and "got " in output and "_count" not in output and "_amount" not in output


def test_devices_that_nothing_runs_on(refused: Refused) -> None:
    batch = ("--set", "global_batch=512")
    assert "512 is not a multiple of micro_batch 1 x 3 data-parallel ranks" in refused("gpt2", "--gpus", "3", *batch)


def test_studies_in_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """Checks an empty folder, as an unset variable of the shell gives it."""
    assert main(["gpt2", "--studies", ""]) == 2
    assert "--studies: must be the path of a folder, got ''" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--searcher=annealing", "--seed=x", "--seed=-1", "--seed=4294967296"])
def test_seeds_and_searchers_that_are_none(refused: Refused, option: str) -> None:
    assert option.partition("=")[0] in refused("gpt2", option)


@pytest.mark.parametrize("option", ["--no-such-option", "--ste=3"])
def test_options_that_are_none(refused: Refused, option: str) -> None:
    assert f"unrecognized arguments: {option}" in refused("gpt2", option)


def test_a_dry_run_has_nothing_to_profile(refused: Refused) -> None:
    output = refused("gpt2", "--dry-run", "--profile")
    assert output == "--profile profiles the winner's run, and --dry-run runs nothing: leave out one of them"
