"""Knows the addresses of files that were copied here, because a text for the user names what the user named."""

from pathlib import Path

_ADDRESSES: dict[Path, str] = {}
"""Addresses by the folders of their copies."""


def remember(copy: Path, address: str) -> None:
    """Records that the folder `copy` holds a copy of `address` as long as this process runs."""
    _ADDRESSES[copy] = address.rstrip("/")


def is_copy(path: Path) -> bool:
    """Returns whether the path is such a folder or inside one."""
    return any(path.is_relative_to(copy) for copy in _ADDRESSES)


def with_addresses(text: str) -> str:
    """Returns the text with addresses in place of the paths of their copies."""
    for copy, address in _ADDRESSES.items():
        text = text.replace(str(copy), address)
    return text
