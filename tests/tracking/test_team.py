# pyright: basic
"""MLflow for a team: deploy/mlflow/serve.sh, accounts on a real PostgreSQL, artifacts in moto's S3."""

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from mlflow import MlflowClient
from mlflow.server import get_app_client

from platform.tracking.mirror import Mirror
from tests import needs
from tests.loopback import free_port
from tests.tracking.studies import POINTS, runs_of, write
from tests.whole_searches.head import short_folder
from tests.whole_searches.session import ROOT, Session, write_space

pytestmark = [pytest.mark.mirror, pytest.mark.heavy]
_READY_S = 600.0
PATIENT = ("MLFLOW_HTTP_REQUEST_TIMEOUT", "120")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yields the name of a bucket in an S3 server of moto on loopback, to which this process and its children are
    sent.
    """
    from moto.server import ThreadedMotoServer

    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", f"http://{host}:{port}")
        boto3.client("s3", endpoint_url=f"http://{host}:{port}").create_bucket(Bucket="team")
        yield "team"
    finally:
        server.stop()


class Server:
    """The server that `deploy/mlflow/serve.sh` starts, as a user who is not root."""

    def __init__(self, folder: Path, bucket: str) -> None:
        port = free_port()
        self.uri = f"http://127.0.0.1:{port}"
        self.folder, self.home = folder / "team", folder / "home"
        self.home.mkdir()
        self.folder.mkdir()
        self.folder.chmod(0o755)  # as `mkdir -p` makes it; the database in it lets everybody in who comes so far
        self._log = folder / "server.log"
        # PostgreSQL refuses root: root of this machine is another user in a namespace of its own.
        other = ["unshare", "--user", "--map-user=65534", "--map-group=65534"] if os.geteuid() == 0 else []
        self._command = [
            *other,
            str(ROOT / "deploy" / "mlflow" / "serve.sh"),
            str(self.folder),
            f"s3://{bucket}/mlflow",
        ]
        self._command += ["--workers", "1", "--host", "127.0.0.1", "--port", str(port)]
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "MLFLOW_S3_ENDPOINT_URL": os.environ["MLFLOW_S3_ENDPOINT_URL"],
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # job runners take seconds to start
        }

    @property
    def admin(self) -> tuple[str, str]:
        """Returns the account that the first start makes."""
        return "admin", (self.folder / "admin-password").read_text()

    @contextlib.contextmanager
    def runs(self) -> Iterator[None]:
        """Starts the server and waits until it answers; ends it afterwards."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._command,
                cwd=self._log.parent,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            until_s = time.monotonic() + _READY_S
            while self.status() is None:
                assert time.monotonic() < until_s and process.poll() is None, self._log.read_text()[-3000:]
                time.sleep(0.5)
            yield
        finally:
            process.terminate()
            code = process.wait(_READY_S)
        assert code == 143, self._log.read_text()[-3000:]
        assert self.status() is None, "the server outlived its script"

    def status(self) -> int | None:
        """Returns the HTTP status of a request without a password; None where nobody answers."""
        request = f"{self.uri}/api/2.0/mlflow/experiments/get-by-name?experiment_name=Default"
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None


@pytest.fixture
def server(bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Yields a server that is yet to be started; a client waits for its answers for as long as a loaded machine
    needs.
    """
    monkeypatch.setenv(*PATIENT)
    needs.tools(["initdb", "postgres"], "postgresql")
    with short_folder() as folder:  # PostgreSQL's socket lies in it
        yield Server(folder, bucket)


def _as(account: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", account[0])
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", account[1])


def test_members_share_experiments_and_a_wrong_password_is_refused_in_a_sentence(
    studies: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server.runs():
        assert server.status() == 401
        for secret in ("admin-password", "session-key", "auth.ini", "database"):
            assert (server.folder / secret).stat().st_mode & 0o077 == 0
        rules = (server.folder / "database" / "pg_hba.conf").read_text()
        assert rules == "local all all peer map=owner\n"  # the kernel says who connects, should the folder be opened
        _as(server.admin, monkeypatch)
        accounts = [(name, secrets.token_hex(16)) for name in ("first", "second")]
        for account in accounts:
            get_app_client("basic-auth", tracking_uri=server.uri).create_user(*account)
        for account in accounts:  # the second adds to the experiment that the first has made
            _as(account, monkeypatch)
            assert Mirror(write(studies, account[0], *POINTS), server.uri).start().close(600) == ""
            assert len(runs_of(server.uri, account[0])[2]) == len(POINTS)

        _as(("first", "not-the-password"), monkeypatch)
        sentence = Mirror(write(studies, "refused", *POINTS), server.uri).start().close(600)
        assert "lacks 3 of 3 measurements" in sentence and "401" in sentence, sentence
        assert "not-the-password" not in sentence and "\n" not in sentence


@pytest.mark.search
def test_what_a_search_sends_outlives_its_machine_and_the_server_s_restart(
    tmp_path: Path, server: Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    studies = tmp_path / "gone"
    space = write_space(tmp_path / "tiny.py", micro_batches=(1,))
    command = [str(space), "--address=local", "--name=tiny", "--repeats=0", "--steps=3", f"--studies={studies}"]
    # Whose server it is needs no password in the environment: the server's first start has written it down.
    environment = {"MLFLOW_TRACKING_URI": server.uri, "HOME": str(server.home), PATIENT[0]: PATIENT[1]}
    with server.runs():
        journal = studies / "tiny" / "journal.jsonl"
        with Session(tmp_path / "log", journal, *command, environment=environment) as session:
            session_end = session.end()
        assert session_end.code == 0 and " lacks " not in session_end.err, session_end.err
        assert server.admin[1] not in session_end.out + session_end.err + journal.read_text()
    layout = (studies / "tiny" / "layout.json").read_bytes()
    shutil.rmtree(studies)
    with server.runs():
        _as(server.admin, monkeypatch)
        client = MlflowClient(tracking_uri=server.uri)
        (experiment,) = (
            search_experiment for search_experiment in client.search_experiments() if search_experiment.name == "tiny"
        )
        runs = client.search_runs([experiment.experiment_id])
        (parent,) = (run for run in runs if "mlflow.parentRunId" not in run.data.tags)
        assert parent.info.status == "FINISHED" and len(runs) > 1
        brought = client.download_artifacts(parent.info.run_id, "layout.json", str(tmp_path))
        assert Path(brought).read_bytes() == layout
    s3 = boto3.client("s3", endpoint_url=os.environ["MLFLOW_S3_ENDPOINT_URL"])
    keys = [item["Key"] for item in s3.list_objects_v2(Bucket=bucket)["Contents"]]
    assert any(key.startswith("mlflow/") and key.endswith("/layout.json") for key in keys), keys
