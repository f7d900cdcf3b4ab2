"""Device files: a user's description of an accelerator that is not in the catalogue, a JSON object.

    {"name": "RTX 4070", "memory_gib": 11.6, "bandwidth_gb_per_s": 504, "tflops": {"bf16": 58.3, "fp32": 29.1},
     "link": "pcie4", "source": "datasheet of 2023, dense figures"}

A file's path stands wherever a name of the catalogue does, and files that the environment variable
`LAYOUT_SEARCH_DEVICES` lists are known by their `name` and `aliases`, such as the driver's.
"""

import difflib
import os
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platform.common.errors import InputError
from trainers.records.plain_files import read_json

VARIABLE = "LAYOUT_SEARCH_DEVICES"
"""Environment variable with paths of device files, separated like those of PATH."""
_NEEDED = ("memory_gib", "bandwidth_gb_per_s", "tflops", "link", "source")
_PRECISIONS = ("bf16", "fp16", "fp8", "tf32", "fp32")
_BOUNDS = {
    "memory_gib": (0.1, 4096.0), "bandwidth_gb_per_s": (1.0, 1e5), "host_gb_per_s": (0.1, 1e4),
    "context_gib": (0.0, 100.0), "units": (1.0, 1e5), "matmul_share": (0.01, 1.0), "flash_share": (0.01, 1.0),
}  # fmt: skip
"""(least, largest) value by number; a value outside was probably stated in other units."""
_TFLOPS = (0.01, 1e5)
_LINK_GB_PER_S = (0.01, 1e4)
_LONGEST_NAME = 60
_TEXTS = ("name", "architecture", "source")
_KEYS = {*_NEEDED, *_BOUNDS, *_TEXTS, "aliases"}
UNKNOWN_ARCHITECTURE = "not stated"


def path_of(name: str) -> Path | None:
    """Returns the path if `name` is a device file by its suffix; otherwise None."""
    return Path(name).expanduser() if name.strip().lower().endswith(".json") else None


def is_device_file(path: Path) -> bool:
    """Returns whether the file exists and is not a cluster's probe, which has a fingerprint."""
    try:
        return "fingerprint" not in read_json(path, links=True)
    except InputError:
        return False


def listed() -> tuple[Path, ...]:
    """Returns the device files listed in the environment variable."""
    return tuple(Path(part).expanduser() for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part)


def read(path: Path, content: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns (name, entry) of the device file, in the catalogue's form; `content` is the catalogue.

    Missing figures are the median over the catalogue's devices. The rates of a device outside the catalogue are less
    certain.

    Raises:
        InputError: the file cannot be read, or a key is missing, unknown or wrong.
    """
    stated = _object(path)
    devices = [entry for entry in content["devices"].values() if "bf16" in entry["tflops"] and entry["units"] > 1]
    for key in stated:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), sorted(_KEYS), n=1)
            hint = f"did you mean {near[0]}" if near else f"the keys are {', '.join(sorted(_KEYS))}"
            raise InputError(f"device file {path}: {key} is no key of a device: {hint}")
    if missing := [key for key in _NEEDED if key not in stated]:
        raise InputError(f"device file {path}: {missing[0]} is missing: the file needs {', '.join(_NEEDED)}")
    entry: dict[str, Any] = {
        key: statistics.median(device[key] for device in devices)
        for key in ("matmul_share", "flash_share", "units", "host_gb_per_s", "context_gib")
    }
    entry |= {key: _number(path, key, stated[key], bounds) for key, bounds in _BOUNDS.items() if key in stated}
    for key in _TEXTS:
        if key in stated and not (isinstance(stated[key], str) and stated[key].strip()):
            raise InputError(f"device file {path}: {key} must be text, got {stated[key]!r}")
    if len(stated.get("name", "")) > _LONGEST_NAME:
        raise InputError(f"device file {path}: name must have at most {_LONGEST_NAME} characters")
    aliases = stated.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise InputError(f"device file {path}: aliases must be a list of names, got {aliases!r}")
    entry |= {
        "aliases": aliases,
        "architecture": stated.get("architecture", UNKNOWN_ARCHITECTURE),
        "tflops": _tflops(path, stated["tflops"]),
        "sigma": max(device.get("sigma", 0.0) for device in devices),
        "source": stated["source"],
        **_link(path, stated["link"], content["links"]),
    }
    return stated.get("name", path.stem), entry


def _object(path: Path) -> dict[str, Any]:
    try:
        return read_json(path, links=True)
    except InputError as error:
        raise InputError(f"the device file {error}") from error


def _number(path: Path, key: str, value: Any, bounds: tuple[float, float]) -> float:
    least, largest = bounds
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= largest:
        raise InputError(f"device file {path}: {key} must be a number from {least:g} to {largest:g}, got {value!r}")
    return float(value)


def _tflops(path: Path, stated: Any) -> dict[str, float]:
    """Returns the dense peaks of every precision. Without own units, bf16 and tf32 are computed as fp32."""
    if not isinstance(stated, dict) or "fp32" not in stated or not {"bf16", "fp16"} & stated.keys():
        raise InputError(
            f"device file {path}: tflops must have dense TFLOP/s of fp32 and of bf16 or fp16, such as"
            f' {{"bf16": 125, "fp32": 31.2}}, got {stated!r}'
        )
    if unknown := [name for name in stated if name not in _PRECISIONS]:
        raise InputError(f"device file {path}: tflops.{unknown[0]} is none of {', '.join(_PRECISIONS)}")
    peaks = {name: _number(path, f"tflops.{name}", value, _TFLOPS) for name, value in stated.items()}
    half = max(peaks.get("bf16", 0.0), peaks.get("fp16", 0.0))
    for name, bound in (("fp8", 2 * half), ("tf32", half)):
        if peaks.get(name, 0.0) > 1.1 * bound:
            raise InputError(
                f"device file {path}: tflops.{name} {peaks[name]:g} is above {bound:g}, what tensor units of"
                f" {half:g} in 16 bits have: state dense figures for all, not those with sparsity"
            )
    return {"fp16": half, "bf16": peaks["fp32"], "tf32": peaks["fp32"], **peaks}


def _link(path: Path, stated: Any, links: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the link between the devices of a node: a link of the catalogue, or GB/s in one direction,
    of which collectives reach the same share as with PCIe.
    """
    if isinstance(stated, str):
        if stated not in links:
            raise InputError(f"device file {path}: link must be GB/s or one of {', '.join(links)}, got {stated!r}")
        return {"link": stated}
    return {"link": "pcie4", "link_gb_per_s": _number(path, "link", stated, _LINK_GB_PER_S)}
