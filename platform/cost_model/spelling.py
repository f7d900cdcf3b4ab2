"""Spellings of devices: plain forms of names, names of similar devices, and remarks on clocks."""

import difflib
import re
from collections.abc import Mapping

_CLOCKS = re.compile(
    r"\d\s*(?:W|kW|[MG]Hz)\b|power|clock|throttl|undervolt|\bcap(?:ped)?\b|limit|\bTDP\b|\bTGP\b", re.IGNORECASE
)
"""Words for remarks on a device's clocks."""
_MEMORY = re.compile(r"(?i)[- ]?(\d+)\s?GB\b")
_MOST_NEAR = 6


def plain(name: str) -> str:
    """Returns the letters, digits and dots of a name in lower case."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def changes_clocks(name: str) -> bool:
    """Returns whether a remark in brackets says that the device does not run at its usual clocks."""
    return any(_CLOCKS.search(remark) for remark in re.findall(r"\(([^)]*)\)", name))


def without_memory(name: str) -> tuple[str, float | None]:
    """Returns (name without its memory, the memory in GB or None)."""
    match = _MEMORY.search(name)
    return (name, None) if match is None else (name[: match.start()] + name[match.end() :], float(match[1]))


def near_names(name: str, names: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the entries of `names`, given by spelling, with a similar spelling to `name` and the same product family:
    workstation cards have four-digit numbers, other devices fewer digits.
    """
    alike = {plain(spelling): entry for spelling, entry in names.items() if _kind(spelling) == _kind(name)}
    near = difflib.get_close_matches(plain(name), alike, n=_MOST_NEAR, cutoff=0.4)
    return tuple(dict.fromkeys(alike[spelling] for spelling in near))


def _kind(name: str) -> tuple[str, bool]:
    letters, number = re.match(r"[^a-z]*([a-z]*)[- ]*(\d*)", name.lower()).groups()  # type: ignore[reportOptionalMemberAccess]
    return letters, len(number) > 3
