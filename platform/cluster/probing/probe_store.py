"""Stores probes, one JSON file a cluster, named by the cluster's fingerprint."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from platform.cluster.nodes import ClusterHandle
from platform.common.errors import InputError
from platform.study.atomic_write import replacing
from platform.study.folder import make_folder
from trainers.records.plain_files import read_json
from trainers.records.probe import Probe
from trainers.spec.cluster import Cluster
from trainers.spec.codec import from_json, to_json

FOLDER = ".probes"
"""Folder of the probes beside the studies. No study's name begins with a dot."""


def fingerprint(cluster: Cluster, software: Mapping[str, str]) -> str:
    """Returns 12 hex digits of what the figures depend on: devices, their numbers, nodes, driver and versions.

    It contains no host names or addresses, and no host memory, so that a job on other nodes of the same kind finds the
    figures.
    """
    devices = {name: value for name, value in to_json(cluster).items() if name != "host_share_gib"}
    text = json.dumps([devices, dict(sorted(software.items()))], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def write(studies: Path, probe: Probe) -> Path:
    """Writes the probe, replacing an older one; returns its file.

    Raises:
        InputError: the folder or file cannot be written.
    """
    path = studies / FOLDER / f"{probe.fingerprint}.json"
    make_folder(path.parent)
    with replacing(path) as part:
        part.write_text(json.dumps(to_json(probe), indent=1) + "\n", encoding="utf-8")
    return path


def find(studies: Path, handle: ClusterHandle) -> Probe | None:
    """Returns the probe of exactly this cluster; None without one.

    Raises:
        InputError: its file is damaged.
    """
    path = studies / FOLDER / f"{fingerprint(handle.cluster, handle.software)}.json"
    return read(path) if path.exists() else None


def read(path: Path) -> Probe:
    """Returns the probe in a file.

    Raises:
        InputError: the file cannot be read or holds no probe.
    """
    stored = read_json(path, links=True)
    try:
        return from_json(Probe, stored)
    except ValueError as error:
        raise InputError(f"{path} holds no probe ({error}): make a new one with `python -m platform.probe`") from error
