"""Which MLflow URIs are taken, and how they are shown."""

import shlex
from pathlib import Path

import pytest

from platform.common.errors import InputError
from platform.mirror.uri import check_uri, default_uri, shown_uri, sqlite_path, ui_command


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


@pytest.mark.parametrize(
    "uri", ["", "ftp://host", "mlruns", "/tmp/mlruns", "file:///tmp/mlruns", "htp://host", "host:5000"]
)
def test_an_unknown_scheme_is_one_sentence(uri: str) -> None:
    with pytest.raises(InputError, match=r"no known scheme: .*http://, https://, sqlite://") as caught:
        check_uri(uri)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "why"), [("http://", "no host"), ("sqlite://", "no file"), ("sqlite:///:memory:", "no file")]
)
def test_a_uri_that_leads_nowhere_is_refused(uri: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
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


def test_a_password_is_never_shown() -> None:
    assert shown_uri("http://me:secret@host:5000/x") == "http://me@host:5000/x"
    assert "secret" not in ui_command("postgresql://me:secret@host/db")
    with pytest.raises(InputError) as caught:
        check_uri("ftp://me:secret@host")
    assert "secret" not in str(caught.value)


def test_how_to_look_at_the_runs() -> None:
    assert ui_command("sqlite:////data/mlflow.db") == "mlflow ui --backend-store-uri sqlite:////data/mlflow.db"
    assert ui_command("http://host:5000") == "open http://host:5000"
    assert ui_command("http://host:5000/", "7") == "open http://host:5000/#/experiments/7/runs"
    words = shlex.split(ui_command("sqlite:////my data/mlflow.db", "7"), comments=True)
    assert words == ["mlflow", "ui", "--backend-store-uri", "sqlite:////my data/mlflow.db"]
    assert ui_command("sqlite:////data/mlflow.db", "7").endswith("http://127.0.0.1:5000/#/experiments/7/runs")
