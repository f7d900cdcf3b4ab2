"""Where MLflow keeps a study: checked before anything starts, without importing MLflow."""

import shlex
import urllib.parse
from pathlib import Path

from platform.common.errors import InputError

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_SERVERS = ("http", "https")


def default_uri(studies: Path) -> str:
    """A sqlite file beside the studies, by its absolute path."""
    return f"sqlite:///{_quoted(studies.absolute() / 'mlflow.db')}"


def kept_uri(kept: str, studies: Path) -> str:
    """Where a study's runs are: as its journal says (`kept`), else beside `studies`, which may be a copy of the folder
    that the journal means, on a machine that has no such file.
    """
    file = sqlite_path(kept)
    return default_uri(studies) if not kept or (file is not None and not file.exists()) else kept


def check_uri(uri: str) -> str:
    """The URI, a relative sqlite path made absolute (workers and threads may stand in another folder).

    Raises:
        InputError: MLflow would not know what to do with it, or would lose what it is given.
    """
    scheme, colon, rest = uri.partition(":")
    kind = scheme.partition("+")[0].lower()
    if uri == "databricks" or (kind == "databricks" and colon):
        return uri
    if kind in _SERVERS and colon:
        if not urllib.parse.urlsplit(uri).hostname:
            raise InputError(f"the MLflow URI {shown_uri(uri)!r} names no host: write http://HOST:PORT")
        return uri
    if kind == "sqlite" and colon:
        return f"{scheme}:///{_absolute(uri, rest)}"
    if kind in _DATABASES and rest.startswith("//"):
        return uri
    known = ", ".join(f"{each}://" for each in (*_SERVERS, *_DATABASES, "databricks"))
    raise InputError(
        f"the MLflow URI {shown_uri(uri)!r} has no known scheme: MLFLOW_TRACKING_URI must begin with one of {known}"
    )


def _absolute(uri: str, rest: str) -> str:
    path = rest.removeprefix("///") if rest.startswith("///") else ""
    path, mark, query = path.partition("?")
    if not path or path == ":memory:":
        raise InputError(f"the MLflow URI {uri!r} names no file: write sqlite:////ABSOLUTE/PATH/mlflow.db")
    return _quoted(Path(urllib.parse.unquote(path)).absolute()) + mark + query


def _quoted(path: Path) -> str:
    """Only what would bend the path is quoted: MLflow takes a quoted blank for three letters, and makes a folder so."""
    return str(path).replace("%", "%25").replace("?", "%3F")


def sqlite_path(uri: str) -> Path | None:
    """The file of a sqlite URI that `check_uri` made absolute; None for any other."""
    scheme, _, rest = uri.partition(":///")
    if scheme.partition("+")[0].lower() != "sqlite":
        return None
    return Path(urllib.parse.unquote(rest.partition("?")[0]))


def shown_uri(uri: str) -> str:
    """The URI as it may be shown and kept: without the password."""
    try:
        parts = urllib.parse.urlsplit(uri)
        if parts.password is None:
            return uri
    except ValueError:
        return uri
    host = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit(parts._replace(netloc=f"{parts.username}@{host}"))


def ui_command(uri: str, experiment_id: str = "") -> str:
    """What to type, or to open, to look at the runs; with the page to open, as a shell's comment where it follows."""
    page = f"/#/experiments/{experiment_id}/runs" if experiment_id else ""
    if uri.startswith(("http://", "https://")):
        return f"open {shown_uri(uri).rstrip('/')}{page}"
    if uri.startswith("databricks"):
        return "open the Databricks workspace"
    then = f"  # then open http://127.0.0.1:5000{page}" if page else ""
    return f"mlflow ui --backend-store-uri {shlex.quote(shown_uri(uri))}{then}"
