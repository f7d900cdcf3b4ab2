"""MLflow URIs that are accepted, and how they are shown."""

import importlib.metadata
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from platform.common.checkout import ROOT
from platform.common.errors import InputError
from platform.tracking import serve, urls
from platform.tracking.uri import (
    check_uri,
    default_uri,
    display_uri,
    proxy_words,
    report_uri,
    sqlite_path,
    without_secrets,
)


@pytest.mark.parametrize(
    "uri",
    [
        "http://host:5000",
        "https://me:secret@host/path",
        "sqlite:////abs/mlflow.db",
        "postgresql://me@host/db",
        "postgresql+psycopg2://me@host/db",
        "mysql+pymysql://host/db",
        "databricks",
        "databricks://profile",
    ],
)
def test_what_mlflow_knows_is_taken_as_it_is(uri: str) -> None:
    assert check_uri(uri) == uri


@pytest.mark.parametrize("uri", ["", "ftp://host", "htp://host", "host:5000"])
def test_an_unknown_scheme_is_one_sentence(uri: str) -> None:
    with pytest.raises(InputError, match=r"no known scheme: .*http://, https://, sqlite://") as caught:
        check_uri(uri)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("uri", ["mlruns", "/tmp/some/mlruns", "file:///tmp/some/mlruns"])
def test_a_store_of_files_has_the_command_that_moves_it(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    with pytest.raises(InputError, match="is a store of files, where runs are not written") as caught:
        check_uri(uri)
    folder = "/mlruns" if uri == "mlruns" else "/tmp/some/mlruns"
    assert f"`mlflow migrate-filestore --source {folder} --target sqlite:////" in str(caught.value)


@pytest.mark.mirror
def test_the_command_that_moves_a_store_of_files_makes_one_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    source = tmp_path / "mlruns"
    client = mlflow.MlflowClient(tracking_uri=source.as_uri())
    run = client.create_run(client.create_experiment("kept"))
    client.log_metric(run.info.run_id, "loss", 0.5)
    with pytest.raises(InputError) as caught:
        check_uri(str(source))
    _, command, words = str(caught.value).split("`")
    subprocess.run([sys.executable, "-m", *shlex.split(command)], check=True, capture_output=True)
    target = check_uri(words.removeprefix(" and name ").partition(",")[0])
    moved = mlflow.MlflowClient(tracking_uri=target).get_experiment_by_name("kept")
    assert moved is not None


def test_schemes_of_mlflow_s_plugins_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = importlib.metadata.EntryPoint("azureml", "azureml.mlflow:store", "mlflow.tracking_store")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [plugin] if "tracking" in group else [])
    assert check_uri("azureml://region/workspace") == "azureml://region/workspace"
    with pytest.raises(InputError, match="no known scheme"):
        check_uri("arize://host")


@pytest.mark.parametrize(
    ("uri", "reason"), [("http://", "no host"), ("sqlite://", "no file"), ("sqlite:///:memory:", "no file")]
)
def test_a_uri_that_leads_nowhere_is_refused(uri: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        check_uri(uri)


def test_a_relative_file_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    uri = check_uri("sqlite:///some/mlflow.db")
    assert uri == f"sqlite:///{tmp_path}/some/mlflow.db"
    assert sqlite_path(uri) == tmp_path / "some" / "mlflow.db"


@pytest.mark.parametrize("name", ["plain", "with blank", "100% why?", "ünï"])
def test_the_default_is_beside_the_studies_whatever_they_are_called(name: str) -> None:
    uri = default_uri(Path("/data") / name)
    assert uri.startswith("sqlite:////data/")
    assert check_uri(uri) == uri
    assert sqlite_path(uri) == Path("/data") / name / "mlflow.db"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://me:secret@host:5000/x", "http://host:5000/x"),
        ("https://secret@host/x", "https://host/x"),
        ("http://me:sec/ret@host:5000", "http://host:5000"),
        ("http://me:sec#ret@host:5000", "http://host:5000"),
        ("postgresql://me:secret@host/db?sslpassword=secret", "postgresql://host/db"),
        ("mysql://host/db?password=secret", "mysql://host/db"),
        ("http://host:5000/x", "http://host:5000/x"),
        ("sqlite:////data/a@b/mlflow.db", "sqlite:////data/a@b/mlflow.db"),
        ("databricks", "databricks"),
        ("me:secret@host", "host"),
    ],
)
def test_user_password_and_token_are_never_shown(uri: str, shown: str) -> None:
    assert display_uri(uri) == shown
    hint = urls.viewing_lines(uri, {"layouts": urls.page_server(uri)})
    assert "secret" not in hint and "ret@" not in hint


def test_a_uri_that_is_refused_is_shown_without_its_password() -> None:
    with pytest.raises(InputError) as caught:
        check_uri("ftp://me:secret@host")
    assert "secret" not in str(caught.value)


def test_an_error_is_told_without_what_the_environment_and_the_uri_keep_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t0ken")
    text = "500 for http://me:pass%20word@host/api: got Authorization Bearer t0ken, Basic bWU6cGFzcyB3b3Jk, pass word"
    hint = without_secrets(text, "http://me:pass%20word@host")
    assert hint == "500 for http://host/api: got Authorization Bearer ***, Basic ***, ***"


class TestWhereAReportMirrors:
    """A URI in a journal is used only where it is the store beside the study, or the user names it too."""

    def test_beside_the_study_by_default_and_for_a_copy(self, tmp_path: Path) -> None:
        beside = default_uri(tmp_path)
        for recorded in ("", beside, f"sqlite:///{tmp_path}/gone/mlflow.db"):
            assert report_uri("", recorded, tmp_path) == beside

    def test_where_the_user_says(self, tmp_path: Path) -> None:
        assert report_uri("http://mine:5000", "http://theirs:5000", tmp_path) == "http://mine:5000"

    def test_a_link_to_the_folder_is_the_same_folder(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "real" / "mlflow.db").touch()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        assert report_uri("", default_uri(tmp_path / "link"), tmp_path / "real") == default_uri(tmp_path / "real")

    @pytest.mark.parametrize("recorded", ["http://theirs:5000", "postgresql://theirs/db", "databricks"])
    def test_never_at_what_the_journal_alone_names(self, tmp_path: Path, recorded: str) -> None:
        with pytest.raises(InputError, match="name it too, by --mlflow URI or MLFLOW_TRACKING_URI"):
            report_uri("", recorded, tmp_path)

    def test_never_in_another_file_that_the_journal_names(self, tmp_path: Path) -> None:
        (tmp_path / "theirs.db").touch()
        with pytest.raises(InputError, match="MLflow is left as it is"):
            report_uri("", f"sqlite:///{tmp_path}/theirs.db", tmp_path / "studies")


class TestHowToLook:
    """The command works where it is printed."""

    def test_in_the_checkout_it_is_make(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(ROOT)
        assert urls.serve_command(default_uri(ROOT / "studies")) == "make mlflow"
        assert urls.serve_command(default_uri(Path("/my data"))) == "make mlflow STUDIES='/my data'"

    def test_elsewhere_it_is_this_environment_s_program(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.chdir(tmp_path)
        program, *words = shlex.split(urls.serve_command("sqlite:////my data/mlflow.db"))
        assert Path(program) == Path(sys.executable).with_name("mlflow") and Path(program).exists()
        assert words == ["ui", "--backend-store-uri", "sqlite:////my data/mlflow.db"]

    def test_another_database_stays_in_its_variable(self) -> None:
        assert urls.serve_command("postgresql://me@host/db").endswith('--backend-store-uri "$MLFLOW_TRACKING_URI"')

    def test_a_server_has_its_pages_already(self) -> None:
        hint = urls.viewing_lines("http://host:5000/", {"layouts": f"{urls.page_server('http://host:5000/')}/#/x"})
        assert hint.splitlines() == ["MLflow: open", "  layouts  http://host:5000/#/x"]
        assert urls.viewing_lines("http://host:5000", {}).split() == ["MLflow:", "open", "pages", "http://host:5000"]


class TestServing:
    """`make mlflow`, up to the moment at which MLflow itself takes over."""

    def test_it_serves_the_store_beside_the_studies_on_this_machine_alone(self, tmp_path: Path) -> None:
        (tmp_path / "mlflow.db").touch()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        words = serve.ui_arguments(tmp_path, port)
        assert words[:5] == ["-m", "mlflow", "ui", "--backend-store-uri", default_uri(tmp_path)]
        assert words[words.index("--host") + 1] == "127.0.0.1" and words[words.index("--port") + 1] == str(port)

    def test_a_folder_without_a_store_is_one_sentence(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert serve.main(["--studies", str(tmp_path)]) == 2
        assert capsys.readouterr().err == (
            f"error: {tmp_path} has no mlflow.db: run make search first, or name another folder by STUDIES=DIR\n"
        )

    @pytest.mark.parametrize("port", ["taken", "99999"])
    def test_a_port_that_cannot_be_used_is_one_sentence(
        self, tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "mlflow.db").touch()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            number = str(listener.getsockname()[1]) if port == "taken" else port
            assert serve.main(["--studies", str(tmp_path), "--port", number]) == 2
        output = capsys.readouterr().err
        assert "where MLflow serves these studies already, open the printed addresses" in output
        assert "else choose another by PORT=NUMBER" in output

    @pytest.mark.parametrize("port", [5000, 5001])
    def test_another_port_takes_its_place_in_the_printed_addresses(
        self, tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "mlflow.db").touch()
        monkeypatch.setattr(serve, "ui_arguments", lambda studies, port: [])  # port 5000 may be taken here
        monkeypatch.setattr(os, "execve", lambda *_: None)
        serve.main(["--studies", str(tmp_path), "--port", str(port)])
        assert ("printed put 5001 in place of 5000" in capsys.readouterr().out) is (port == 5001)

    def test_make_passes_folder_and_port_on(self) -> None:
        hint = subprocess.run(
            ["make", "-n", "mlflow", "STUDIES=/my data", "PORT=5001"], cwd=ROOT, capture_output=True, text=True
        )
        assert "-m platform.tracking.serve --studies '/my data' --port 5001" in hint.stdout


def test_a_proxy_in_the_way_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert proxy_words("http://h:1") == ""
    monkeypatch.setenv("http_proxy", "http://user:secret@dead:3128")
    words = proxy_words("http://127.0.0.1:7921")
    assert words.startswith(", through the proxy http://") and "dead:3128 of http_proxy" in words
    assert "secret" not in words
    assert proxy_words("https://h:1") == proxy_words("sqlite:////a") == ""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert proxy_words("http://127.0.0.1:7921") == ""
