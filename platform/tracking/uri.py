"""The MLflow store of a study: checked at the start without importing MLflow, and shown without secrets."""

import base64
import importlib.metadata
import os
import re
import shlex
import urllib.parse
import urllib.request
from pathlib import Path

from platform.common.errors import InputError

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_PLUGINS = "mlflow.tracking_store"
"""Entry-point group in which packages register further schemes for MLflow."""
_SERVERS = ("http", "https")


def default_uri(studies: Path) -> str:
    return f"sqlite:///{_quoted(studies.absolute() / 'mlflow.db')}"


def report_uri(explicit_uri: str, recorded: str, studies: Path) -> str:
    """Returns the store that a report on a study in `studies` updates: `explicit_uri`, else the one beside the study.

    A journal may come from another user: a server named in it would receive this user's token, and a file named in it
    would be written to. So a `recorded` store elsewhere is used only if the user names it too.

    Raises:
        InputError: the URI is invalid, or the study's runs are elsewhere and no URI is given; the text names the
            remedy.
    """
    if explicit_uri:
        return check_uri(explicit_uri)
    study_uri = default_uri(studies)
    file, default = sqlite_path(recorded), sqlite_path(study_uri)
    if not recorded or (file is not None and (not file.exists() or (default and file.resolve() == default.resolve()))):
        return study_uri  # also for a copy of the folder on a machine without the recorded file
    raise InputError(
        f"MLflow is left as it is: by its journal the study is at {display_uri(recorded)!r}, which is used only"
        " where you name it too, by --mlflow URI or MLFLOW_TRACKING_URI"
    )


def check_uri(uri: str) -> str:
    """Returns the URI with a relative sqlite path made absolute, because workers and threads may have other folders.

    Raises:
        InputError: MLflow cannot use the URI, or would lose data there.
    """
    scheme, colon, location = uri.partition(":")
    kind = scheme.partition("+")[0].lower()
    if uri == "databricks" or (kind == "databricks" and colon):
        return uri
    if kind in _SERVERS and colon:
        if not urllib.parse.urlsplit(uri).hostname:
            raise InputError(f"the MLflow URI {display_uri(uri)!r} names no host: write http://HOST:PORT")
        return uri
    if kind == "sqlite" and colon:
        return f"{scheme}:///{_absolute(uri, location)}"
    if kind == "file" or (not colon and uri):
        folder = urllib.parse.unquote(location.removeprefix("//")) if colon else uri
        source = Path(folder).absolute()
        target = f"sqlite:///{_quoted(source.parent / 'mlflow.db')}"
        raise InputError(
            f"the MLflow URI {display_uri(uri)!r} is a store of files, where runs are not written: move it by"
            f" `mlflow migrate-filestore --source {shlex.quote(str(source))} --target {shlex.quote(target)}` and name"
            f" {target}, or unset MLFLOW_TRACKING_URI"
        )
    if colon and any(entry.name == scheme for entry in importlib.metadata.entry_points(group=_PLUGINS)):
        return uri
    if kind in _DATABASES and location.startswith("//"):
        return uri
    schemes = ", ".join(f"{known_scheme}://" for known_scheme in (*_SERVERS, *_DATABASES, "databricks"))
    raise InputError(
        f"the MLflow URI {display_uri(uri)!r} has no known scheme: MLFLOW_TRACKING_URI must begin with one of {schemes}"
    )


def _absolute(uri: str, location: str) -> str:
    path = location.removeprefix("///") if location.startswith("///") else ""
    path, mark, query = path.partition("?")
    if not path or path == ":memory:":
        raise InputError(f"the MLflow URI {uri!r} names no file: write sqlite:////ABSOLUTE/PATH/mlflow.db")
    return _quoted(Path(urllib.parse.unquote(path)).absolute()) + mark + query


def _quoted(path: Path) -> str:
    """Returns the path with only `%` and `?` quoted, because MLflow does not decode a quoted blank."""
    return str(path).replace("%", "%25").replace("?", "%3F")


def sqlite_path(uri: str) -> Path | None:
    """Returns the file of an absolute sqlite URI; None for other URIs."""
    scheme, _, location = uri.partition(":///")
    if scheme.partition("+")[0].lower() != "sqlite":
        return None
    return Path(urllib.parse.unquote(location.partition("?")[0]))


def display_uri(uri: str) -> str:
    """Returns the URI for display and records: without user, password and query, which may hold a token."""
    if sqlite_path(uri) is not None:
        return uri
    scheme, separator, location = uri.partition("://")
    if not separator:
        return uri.rpartition("@")[2]
    location = (
        location.partition("?")[0].partition("#")[0]
        if "@" not in location
        else location.rpartition("@")[2].partition("?")[0]
    )
    return f"{scheme}://{location}"


def proxy_words(uri: str) -> str:
    """Returns a clause on the proxy used for requests to the server; "" without a proxy."""
    parts = urllib.parse.urlsplit(uri)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if parts.scheme not in ("http", "https") or not proxy or urllib.request.proxy_bypass(parts.hostname or ""):
        return ""
    return f", through the proxy {display_uri(proxy)} of {parts.scheme}_proxy"


def without_secrets(text: str, uri: str) -> str:
    """Returns an error's text with users, passwords and tokens of the URI and the environment masked."""
    text = re.sub(r"//\S*@", "//", text)
    secrets = {os.environ.get(name, "") for name in ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")}
    user_info = uri.partition("://")[2].rpartition("@")[0]
    if user_info:
        plain = urllib.parse.unquote(user_info)
        password = user_info.partition(":")[2] or user_info
        secrets |= {user_info, plain, password, urllib.parse.unquote(password)}
    user, password = (os.environ.get(f"MLFLOW_TRACKING_{name}", "") for name in ("USERNAME", "PASSWORD"))
    plain = {urllib.parse.unquote(user_info), f"{user}:{password}"}
    secrets |= {base64.b64encode(credential.encode()).decode() for credential in plain if credential.strip(":")}
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
