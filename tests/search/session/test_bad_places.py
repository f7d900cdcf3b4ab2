"""Places, data and studies that cannot be used: one sentence, exit code 2, and nothing was started for it."""

import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import platform.cluster.connection as connection  # pyright takes `from platform import` for the standard module
from platform.search.__main__ import main
from platform.study.study import Study
from tests.samples import header, measurement
from tests.search.session.refusals import Refused
from trainers.records.journal import Measured
from trainers.records.journal_lines import append, to_line


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
        cause = "no answer within 1 s" if listens else "connection refused"
        assert f"no Ray answers at {address} ({cause})" in output and "--address local" in output

    @pytest.mark.parametrize("address", ("http://127.0.0.1:8265", "https://head.example"))
    def test_the_address_of_the_dashboard(self, refused: Refused, address: str) -> None:
        output = refused("gpt2", address=address)
        host = address.partition("://")[2].partition(":")[0]
        assert f"{address} is the address of Ray's dashboard, which takes jobs" in output
        assert f"give the head's own, as {host}:6379" in output and "or unset RAY_ADDRESS" in output

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
