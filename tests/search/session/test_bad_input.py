"""Bad input: one sentence on standard error, exit code 2, no traceback, and nothing was started for it."""

import json
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import platform.cluster.connection as connection  # pyright takes `from platform import` for the standard module
from platform.search.__main__ import main
from platform.study.study import Study
from tests.samples import header, layout, measurement
from trainers.records.journal import Measured
from trainers.records.journal_lines import append, to_line
from trainers.spec.codec import to_json

Refused = Callable[..., str]

CONFIG = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256, "n_positions": 64}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the shell's settings from the environment."""
    for name in [variable for variable in os.environ if variable.startswith(("MLFLOW_", "RAY_"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs the command with these arguments, which it must refuse; returns its sentence without "error: "."""

    def run(*argv: str, address: str = "local") -> str:
        before = {child.pid for child in psutil.Process().children(recursive=True)}
        code = main([*argv, "--studies", str(tmp_path / "studies"), "--address", address])
        output = capsys.readouterr()
        errors = [line for line in output.err.splitlines() if line.startswith("error:")]
        assert code == 2, output.err
        assert len(errors) == 1 and output.err.splitlines()[-1] == errors[0], output.err
        assert "Traceback" not in output.err and output.out == ""
        after = {child.pid for child in psutil.Process().children(recursive=True)}
        assert not after - before, "it left a process behind"  # what another test left may end meanwhile
        assert not list((tmp_path / "studies").glob("*/journal.jsonl")) or "--resume" in argv or "--name" in argv
        return errors[0].removeprefix("error: ")

    return run


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
            ("seq_len", "--set wants axis=value,value"),
            ("micro_batch=0", "micro-batches of at least 1"),
            ("global_batch=-512", "global_batch must be at least 1, got -512"),
            ("learning_rate=nan", "learning_rate takes numbers"),
            ("zero_stage=9", "zero_stage"),
            ("seed=-1", "seed must lie in [0, 2^63), got -1"),
            ("tp=2", "tp 2 does not divide the 50257 words in the vocabulary of gpt2: choose a tp that does"),
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
            ("compression=powersgd_4", "fsdp", "gradients are compressed by hooks that DDP alone has"),
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


class TestPlaces:
    @pytest.mark.parametrize("listens", [False, True])
    def test_a_ray_address_that_does_not_answer(
        self, refused: Refused, listens: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Checks a closed port, and one where a server listens but never answers."""
        assert connection.ANSWER_S == 20
        monkeypatch.setattr(connection, "ANSWER_S", 1)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            if listens:
                listener.listen()
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            began_s = time.monotonic()
            output = refused("gpt2", address=address)
            assert time.monotonic() - began_s < 300, "else it waits for ever"
        assert f"no Ray answers at {address} (no answer within 1 s)" in output and "--address local" in output

    def test_a_grpc_server_that_is_no_ray(self, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
        """Checks that the address is asked as Ray asks it: past the machine's proxy, which leads nowhere."""
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        server = grpc.server(ThreadPoolExecutor())
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            assert f"no Ray answers at {address} (UNIMPLEMENTED: Method not found!)" in refused("gpt2", address=address)
        finally:
            server.stop(None)

    def test_tls_without_its_files(self, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_USE_TLS", "1")
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            output = refused("gpt2", address=f"127.0.0.1:{listener.getsockname()[1]}")
        assert "RAY_TLS_SERVER_CERT" in output

    @pytest.mark.parametrize("address", ["nonsense", "host:port", "auto", "ray://127.0.0.1:10001", "127.0.0.1:99999"])
    def test_what_is_no_address(self, refused: Refused, address: str) -> None:
        assert address in refused("gpt2", address=address)

    @pytest.mark.parametrize("uri", ["ftp://somewhere", "mlruns", "http://", "file:///tmp/mlruns"])
    def test_an_mlflow_uri_of_unknown_scheme(self, refused: Refused, monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        output = refused("gpt2")
        assert "MLflow URI" in output and uri in output

    def test_a_studies_folder_that_is_a_file(self, refused: Refused, tmp_path: Path) -> None:
        (tmp_path / "studies").write_text("")
        assert "cannot be made" in refused("gpt2")


class TestData:
    def test_missing(self, refused: Refused, tmp_path: Path) -> None:
        assert "none.parquet" in refused("gpt2", "--data", str(tmp_path / "none.parquet"))

    def test_named_twice(self, refused: Refused, tmp_path: Path) -> None:
        assert "name the data twice" in refused("gpt2", "--data", str(tmp_path), "--set", "data=stream")

    def test_without_a_token_column(self, refused: Refused, tmp_path: Path) -> None:
        pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "data.parquet")
        output = refused("gpt2", "--data", str(tmp_path / "data.parquet"))
        assert "has no column tokens or input_ids; its columns are text" in output

    def test_not_parquet(self, refused: Refused, tmp_path: Path) -> None:
        (tmp_path / "data.parquet").write_text("tokens")
        assert "as Parquet" in refused("gpt2", "--data", str(tmp_path / "data.parquet"))

    def test_ids_outside_the_vocabulary(self, refused: Refused, tmp_path: Path) -> None:
        pq.write_table(pa.table({"tokens": [60_000] * 2000}), tmp_path / "data.parquet")
        assert "60000" in refused("gpt2", "--data", str(tmp_path / "data.parquet"))


class TestStudies:
    @pytest.fixture
    def study_path(self, tmp_path: Path) -> Path:
        """Returns a study that was made earlier."""
        (tmp_path / "studies").mkdir()
        with Study.create(tmp_path / "studies", "known-1") as study:
            study.record(header("known-1", space="gpt2", options={"space": "gpt2"}))
            study.record(Measured(measurement=measurement()))
            return study.path

    def test_a_name_that_exists(self, refused: Refused, study_path: Path) -> None:
        before = (study_path / "journal.jsonl").read_bytes()
        output = refused("gpt2", "--name", "known-1")
        assert "'known-1' exists already" in output and "--resume known-1" in output
        assert (study_path / "journal.jsonl").read_bytes() == before

    @pytest.mark.parametrize("name", ["../up", ".hidden", "", "a b", "mlflow.db"])
    def test_what_is_no_name(self, refused: Refused, name: str, tmp_path: Path) -> None:
        assert "cannot name a study" in refused("gpt2", "--name", name)
        assert not (tmp_path / "up").exists()

    @pytest.mark.parametrize(
        ("argv", "reason"),
        [
            (("bloom7b", "--learn-from", "known"), "did you mean known-1?"),
            (("bloom7b", "--learn-from", "./nowhere"), "no study 'nowhere' in"),
            (("gpt2", "--learn-from", "known-1"), "got --learn-from a study of another model (known-1: bloom-7b1)"),
            (("bloom7b", "--learn-from", "known-1", "--searcher", "random"), "got --searcher random"),
        ],
    )
    def test_learning_from_what_teaches_nothing(
        self, refused: Refused, study_path: Path, argv: tuple[str, ...], reason: str
    ) -> None:
        assert reason in refused(*argv, "--name", "new")
        assert not (study_path.parent / "new").exists()

    def test_resuming_what_is_not_there(self, refused: Refused, study_path: Path) -> None:
        assert "did you mean known-1?" in refused("--resume", "known")
        assert "did you mean known-1?" in refused("--resume", f"{study_path.parent}/known")

    def test_resuming_by_the_folder_s_path(self, refused: Refused, study_path: Path, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        path = study_path.rename(tmp_path / "elsewhere" / "a copy")
        assert "a resumed study keeps --seed" in refused("--resume", f"{path}/", "--seed", "1")

    def test_resuming_under_another_name(self, refused: Refused, study_path: Path) -> None:
        assert "leave out --name" in refused("--resume", "known-1", "--name", "other")

    @pytest.mark.parametrize(
        ("option", "named"), [(["--set", "seq_len=512"], "--set"), (["--seed", "1"], "--seed"), (["gpt2_xl"], "space")]
    )
    def test_resuming_as_another_study(self, refused: Refused, study_path: Path, option: list[str], named: str) -> None:
        output = refused("--resume", "known-1", *option)
        assert "a resumed study keeps" in output and named in output

    def test_resuming_what_another_process_runs(self, refused: Refused, study_path: Path, tmp_path: Path) -> None:
        study, _, _ = Study.resume(tmp_path / "studies", "known-1")
        with study:
            assert f"by process {os.getpid()}" in refused("--resume", "known-1")

    def test_a_journal_of_a_newer_version(self, refused: Refused, study_path: Path) -> None:
        line = {**to_line(Measured(measurement=measurement(micro_batch=2))), "schema": 99}
        append(study_path / "journal.jsonl", line)
        assert "newer version (journal schema 99" in refused("--resume", "known-1")

    def test_half_a_journal_line_is_kept_aside_and_told(
        self, study_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Checks that the line is reported before anything else happens; test_search.py shows that the rest is used."""
        with (study_path / "journal.jsonl").open("a") as journal:
            journal.write('{"kind":"measurement","schema":1,"meas')
        assert main(["--resume", "known-1", "--studies", str(tmp_path / "studies"), "--seed", "1"]) == 2
        output = capsys.readouterr().err.splitlines()
        assert "Line 3 of" in output[0] and "the rest is used" in output[0]
        rejected = json.loads((study_path / "journal.rejected.jsonl").read_text())
        assert rejected["text"] == '{"kind":"measurement","schema":1,"meas'


def test_a_dry_run_has_nothing_to_profile(refused: Refused) -> None:
    output = refused("gpt2", "--dry-run", "--profile")
    assert output == "--profile profiles the winner's run, and --dry-run runs nothing: leave out one of them"
