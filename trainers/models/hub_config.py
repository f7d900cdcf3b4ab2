"""Fetches a model's `config.json` from the Hugging Face hub. Runs as a process of its own, so that it can be killed:

    python -m trainers.models.hub_config OWNER/NAME [REVISION]

Prints a JSON object: the file's `path` in the hub's cache, its `commit`, the `endpoint` used and a `warning`; or
`error`, a sentence without its subject. No other file is fetched, and no code of the model runs.
"""

import json
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

os.environ |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_XET": "1"}

from huggingface_hub import constants, get_token, hf_hub_download  # reads the environment at import
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

_LOCAL = ("localhost", "127.0.0.1", "::1")


def fetch(model: str, revision: str | None) -> dict[str, str]:
    """Returns the object that the module prints for a model."""
    try:
        path = Path(hf_hub_download(model, "config.json", revision=revision))
    except Exception as error:  # the library, the server or the disk may fail
        return {"error": _sentence(error, model, revision)}
    # .../models--OWNER--NAME/snapshots/COMMIT/config.json
    return {"path": str(path), "commit": path.parent.name, "endpoint": constants.ENDPOINT, "warning": _warning()}


def _warning() -> str:
    address = urlsplit(constants.ENDPOINT)
    if address.scheme == "http" and address.hostname not in _LOCAL and get_token() and not constants.HF_HUB_OFFLINE:
        return f"the token of the hub was sent to {address.hostname} in the clear: HF_ENDPOINT begins with http://"
    return ""


def _sentence(error: Exception, model: str, revision: str | None) -> str:
    """Returns the cause and the remedy as the second part of a sentence."""
    page = f"{constants.ENDPOINT}/{model}"
    if isinstance(error.__cause__, HfHubHTTPError):  # the library reports HTTP errors as a missing network
        error = error.__cause__
    match error:
        case GatedRepoError():  # also a RepositoryNotFoundError
            account = "of an account that may read it" if get_token() else "(hf auth login, or HF_TOKEN)"
            return f"is gated: accept its terms at {page} and use a token {account}"
        case RevisionNotFoundError():
            return f"has no revision {revision} at {page}"
        case RepositoryNotFoundError():
            hint = "or the token may not read it" if get_token() else "or is private and no token is set"
            return f"is not at {page}, {hint}"
        # LocalEntryNotFoundError is also an EntryNotFoundError.
        case LocalEntryNotFoundError() | OfflineModeIsEnabled():
            if constants.HF_HUB_OFFLINE:
                return f"is not in the hub's cache, and HF_HUB_OFFLINE is set: {_download(model)}"
            return f"cannot be fetched from {constants.ENDPOINT}, nor is it in the hub's cache: {_download(model)}"
        case EntryNotFoundError():
            return f"has no config.json at {page}"
        case HfHubHTTPError():
            return f"cannot be fetched: {page} answers {error.response.status_code}"
        case _:
            lines = [type(error).__name__, *str(error).splitlines()[:1]]
            return f"cannot be fetched from {constants.ENDPOINT}: {': '.join(lines)}"


def _download(model: str) -> str:
    folder = model.rpartition("/")[2]
    return f"with a network, hf download {model} config.json --local-dir {folder}, then give {folder}/config.json here"


if __name__ == "__main__":
    print(json.dumps(fetch(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)))
