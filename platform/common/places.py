"""Input files by address: local paths, and addresses of the file systems that pyarrow supports."""

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
"""Examples of addresses for error messages."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RemoteStatus:
    """Facts of a remote file, named as in `os.stat`."""

    st_size: int
    st_mtime_ns: int
    st_dev: str
    """The address's scheme."""
    st_ino: str
    """The whole address, which identifies the file."""


class RemotePath(PurePosixPath):
    """A file or folder at an address such as s3://bucket/key; has the reading methods of `Path`."""

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
        return self._info().type != fs.FileType.NotFound

    def is_dir(self) -> bool:
        return self._info().type == fs.FileType.Directory

    def is_file(self) -> bool:
        return self._info().type == fs.FileType.File

    def stat(self) -> RemoteStatus:
        """Returns the file's size and modification time; the time is 0 if unknown."""
        info = self._info()
        scheme = str(self).partition("://")[0]
        return RemoteStatus(st_size=info.size, st_mtime_ns=info.mtime_ns or 0, st_dev=scheme, st_ino=str(self))

    def open(self, mode: str = "rb") -> Any:
        """Returns a seekable binary file.

        Raises:
            OSError: the file cannot be read.
        """
        assert mode == "rb", "inputs are read"
        file_system, path = self._located()
        return file_system.open_input_file(path)

    def rglob(self, pattern: str) -> Iterator["RemotePath"]:
        """Yields all files below this folder.

        Raises:
            InputError: the folder cannot be listed, or an object's name has ".." in it.
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
    """Returns a local path, or a remote one if `text` is an address such as s3://bucket/folder.

    Raises:
        InputError: the address holds credentials, names no bucket, or pyarrow does not know its scheme.
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
    """Returns the file system of a bucket and the bucket's path in it.

    Raises:
        InputError: pyarrow cannot open it.
    """
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
