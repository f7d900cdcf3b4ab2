"""Tells how to view a study in MLflow: the command to type and the pages to open."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from platform.common.checkout import ROOT
from platform.tracking.uri import default_uri, display_uri, sqlite_path

PORT = 5000
_SERVER = f"http://127.0.0.1:{PORT}"


def page_server(uri: str) -> str:
    """Returns the base address of MLflow's pages for the store at `uri`: the server, or that of `serve_command`."""
    return display_uri(uri).rstrip("/") if uri.startswith(("http://", "https://")) else _SERVER


def serve_command(uri: str) -> str:
    """Returns the command that serves a store's pages from the working folder; "" if a server already does."""
    if uri.startswith(("http://", "https://", "databricks")):
        return ""
    path = sqlite_path(uri)
    if path is not None and Path.cwd() == ROOT and (ROOT / "Makefile").exists() and uri == default_uri(path.parent):
        elsewhere = path.parent != ROOT / "studies"
        return "make mlflow" + (f" STUDIES={shlex.quote(str(path.parent))}" if elsewhere else "")
    # A database's address may hold a password, so the variable's name is shown.
    store = shlex.quote(uri) if path is not None else '"$MLFLOW_TRACKING_URI"'
    return f"{_program()} ui --backend-store-uri {store}"


def viewing_lines(uri: str, addresses: Mapping[str, str]) -> str:
    """Returns lines for people: the command, and the address of each known view."""
    if uri.startswith("databricks"):
        return "MLflow: open the Databricks workspace"
    command = serve_command(uri)
    first = f"MLflow: {command}" + (", then open" if addresses else "") if command else "MLflow: open"
    address_by_name = addresses or ({} if command else {"pages": page_server(uri)})
    return "\n".join([first, *(f"  {name:<8} {address}" for name, address in address_by_name.items())])


def page_link(words: str, address: str) -> str:
    """Returns a Markdown link between MLflow's pages that works at any port."""
    return f"[{words}](#{address.partition('/#')[2]})"


def _program() -> str:
    """Returns `mlflow` as typed in the working folder: of this environment, or of the PATH."""
    mlflow_path = Path(sys.executable).with_name("mlflow")
    if not mlflow_path.exists():
        return "mlflow" if shutil.which("mlflow") else f"{shlex.quote(sys.executable)} -m mlflow"
    relative_path = os.path.relpath(mlflow_path)
    return shlex.quote(str(mlflow_path) if relative_path.startswith("..") else relative_path)
