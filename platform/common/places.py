"""Files by their addresses: paths of this machine, and those of the file systems that pyarrow brings."""

import dataclasses
import functools
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, cast

import pyarrow as pa
import pyarrow.fs as fs

from platform.common.errors import InputError, one_line

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.IGNORECASE | re.DOTALL)
SCHEMES = "s3://, gs://, hf:// or file://"
"""Examples of schemes, for people."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RemoteStatus:
    """Facts of a file from its file system, under the names of `os.stat`."""

    st_size: int
    st_mtime_ns: int
    st_dev: str
    """The address's scheme."""
    st_ino: str
    """The address itself, which a file has alone."""


class RemotePath(PurePosixPath):
    """A file or folder of another file system, called by its address; reads as a `Path` does."""

    def __str__(self) -> str:
        scheme, divider, place = super().__str__().partition(":/")
        return f"{scheme}://{place}" if divider else scheme

    def _located(self) -> tuple[Any, str]:
        scheme, _, place = str(self).partition("://")
        bucket, _, key = place.partition("/")
        file_system, root = _file_system(scheme, bucket)
        return file_system, f"{root}/{key}" if key else root

    def _info(self) -> Any:
        file_system, path = self._located()
        try:
            return file_system.get_file_info(path)
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(self, error) from error

    def exists(self) -> bool:
        """Returns whether there is a file or folder."""
        return self._info().type != fs.FileType.NotFound

    def is_dir(self) -> bool:
        """Returns whether it is a folder."""
        return self._info().type == fs.FileType.Directory

    def is_file(self) -> bool:
        """Returns whether it is a file."""
        return self._info().type == fs.FileType.File

    def stat(self) -> RemoteStatus:
        """Returns the file's size and when it changed, 0 where that is not known."""
        info = self._info()
        scheme = str(self).partition("://")[0]
        return RemoteStatus(st_size=info.size, st_mtime_ns=info.mtime_ns or 0, st_dev=scheme, st_ino=str(self))

    def open(self, mode: str = "rb") -> Any:
        """Returns the file's bytes, read from any place on.

        Raises:
            OSError: it cannot be read.
        """
        assert mode == "rb", "inputs are read"
        file_system, path = self._located()
        return file_system.open_input_file(path)

    def rglob(self, pattern: str) -> Iterator["RemotePath"]:
        """Yields all files below this folder.

        Raises:
            InputError: it cannot be read, or holds a name with "..", which is no place below it.
        """
        assert pattern == "*", "all of them"
        file_system, path = self._located()
        try:
            infos = file_system.get_file_info(fs.FileSelector(path, recursive=True))
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(self, error) from error
        for info in infos:
            if info.type == fs.FileType.File:
                place = PurePosixPath(info.path).relative_to(path)
                if ".." in place.parts:  # clients read another object by it, and a copy would lie outside its folder
                    raise InputError(f"{self} holds an object whose name has '..' in it, {place}: remove or rename it")
                yield self / place


InputPath = Path | RemotePath


def input_path(text: str) -> InputPath:
    """Returns the input of this name: a path, or an address such as s3://bucket/folder.

    Raises:
        InputError: the address has credentials in it, or is of an unknown kind.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return Path(text)
    scheme, place = match[1].lower(), match[2]
    if scheme == "file":
        return Path("/" + place.partition("/")[2])
    if not place.strip("/"):
        raise InputError(f"{text} names no bucket: inputs are paths, or addresses such as s3://bucket/folder")
    login = place.partition("/")[0].rpartition("@")[0]
    if login not in ("", "anonymous"):
        raise InputError(
            f"an address holds no credentials, as that of {place.partition('@')[2]} does: they come from the"
            " environment, such as AWS_ACCESS_KEY_ID, or the file system's own files"
        )
    path = RemotePath(f"{scheme}:/{place}")
    _file_system(scheme, place.partition("/")[0])
    return path


@functools.cache
def _file_system(scheme: str, bucket: str) -> tuple[Any, str]:
    """Returns the file system of a bucket and the bucket's path in it."""
    address = f"{scheme}://{bucket}"
    try:
        return cast(tuple[Any, str], fs.FileSystem.from_uri(address))
    except (OSError, ValueError, pa.ArrowException, ImportError) as error:
        raise InputError(
            f"{address} is no file system that pyarrow opens ({one_line(error)}): inputs are paths, or addresses that"
            f" begin with {SCHEMES}"
        ) from error


def _unreadable(path: RemotePath, error: Exception) -> InputError:
    return InputError(f"cannot read {path}: {one_line(error)}")
