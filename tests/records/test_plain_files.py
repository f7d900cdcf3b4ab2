"""Whatever stands where a file is expected is refused in one sentence with its path, at once."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from trainers.records.journal_lines import append
from trainers.records.plain_files import lines_of, open_plain, read_json, read_plain, refuse_links
from trainers.spec.errors import InputError, MissingFileError

pytestmark = pytest.mark.timeout(20)  # a pipe that is waited for


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(path.parent)  # a socket's path has at most 107 bytes
        listener.bind(path.name)


SPECIAL: dict[str, tuple[Callable[[Path], object], str]] = {
    "a folder": (Path.mkdir, "is a folder where a regular file is expected"),
    "a pipe": (os.mkfifo, "is a pipe where a regular file is expected"),
    "a socket": (_socket, "is a socket or a device where a regular file is expected"),
    "a link": (lambda path: path.symlink_to("/etc/hostname"), "is a link where a regular file is expected: links are"),
    "a link to nothing": (lambda path: path.symlink_to("nothing"), "is a link where a regular file is expected"),
    "nothing": (lambda path: None, "cannot be read: there is no such file"),
}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("read", [read_json, read_plain, open_plain, lambda path: open_plain(path, os.O_RDWR)])
def test_what_is_no_regular_file(
    read: Callable[[Path], object], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make, sentence = SPECIAL[kind]
    make(tmp_path / "one.json")
    with pytest.raises(InputError, match=sentence) as refused:
        read(tmp_path / "one.json")
    assert str(refused.value).startswith(str(tmp_path / "one.json"))
    assert isinstance(refused.value, MissingFileError) == (kind == "nothing")


@pytest.mark.parametrize("read", [read_json, read_plain])
def test_a_link_that_the_user_typed(read: Callable[..., object], tmp_path: Path) -> None:
    path, target = tmp_path / "one.json", tmp_path / "target"
    path.symlink_to(target)
    with pytest.raises(MissingFileError, match=r"one\.json cannot be read: there is no such file"):
        read(path, links=True)
    target.write_text('{"a": 1}')
    assert read(path, links=True) in ({"a": 1}, b'{"a": 1}')
    target.unlink()
    os.mkfifo(target)
    with pytest.raises(InputError, match=r"one\.json is a pipe"):
        read(path, links=True)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(InputError, match=r"one\.json is a socket or a device"):
        read(path, links=True)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b"null", "it holds null where a JSON object is expected"),
        (b"[1]", "it holds a list where"),
        (b"3", "it holds a number where"),
        (b"NaN", "it holds a number where"),
        (b"true", "it holds true or false where"),
        (b'"a"', "it holds a text where"),
        (b"[" * 10**5, "it is nested too deeply"),
        (b'{"a":' * 10**5, "it is nested too deeply"),
        (b'{"a":' + b"9" * 5000 + b"}", "it holds a number of 5,000 digits"),
        (b'{"b": {"a": 1, "a": 2}}', "it states 'a' as 1 and as 2: keep one of them"),
        (b'{"a": 1', "Expecting ',' delimiter"),
        (b"\xff\xfe{", "it is not UTF-8 text"),
        ('{"a": 1}'.encode("utf-16"), "it is not UTF-8 text"),
        (b"\0" * 100, "Expecting value"),
    ],
)
def test_what_is_no_object(text: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_bytes(text)
    with pytest.raises(InputError, match=sentence) as refused:
        read_json(path)
    assert str(refused.value).startswith(str(path)) and "\n" not in str(refused.value)


def test_an_object_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": [1, NaN]}')
    assert list(read_json(path)) == ["a"]


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 5000])
def test_a_path_that_no_file_system_takes(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the path .* is not valid|cannot be opened: File name too long"):
        read_json(tmp_path / name)


def test_a_file_of_any_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(InputError, match=r"has 1,099,511,627,776 bytes: at most 268,435,456 are read"):
        read_json(path)


def test_a_file_is_made_with_the_mode_that_was_asked_for(tmp_path: Path) -> None:
    os.close(open_plain(tmp_path / "lock", os.O_RDWR | os.O_CREAT, mode=0o600))
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("folder_mode", "file_mode"), [(0o755, 0o600), (0o777, 0o660), (0o2775, 0o660), (0o700, 0o600)]
)
def test_a_new_journal_is_for_this_user_alone_unless_its_folder_is_shared(
    folder_mode: int, file_mode: int, tmp_path: Path
) -> None:
    tmp_path.chmod(folder_mode)
    before = os.umask(0o002)
    try:
        append(tmp_path / "journal.jsonl", {"kind": "x"})
    finally:
        os.umask(before)
    assert (tmp_path / "journal.jsonl").stat().st_mode & 0o777 == file_mode
    (tmp_path / "journal.jsonl").chmod(0o644)
    append(tmp_path / "journal.jsonl", {"kind": "x"})
    assert (tmp_path / "journal.jsonl").stat().st_mode & 0o777 == 0o644, "as its user wants it"


def test_a_folder_with_a_link(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    refuse_links(tmp_path)
    (tmp_path / "b").symlink_to("nothing")
    with pytest.raises(InputError, match=f"{tmp_path}/b is a link where"):
        refuse_links(tmp_path)


def test_a_line_of_any_length_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_bytes(b"a\nb")
    with path.open("rb") as file:
        assert list(lines_of(file, path)) == [b"a\n", b"b"]
    with path.open("ab") as file:
        file.truncate(2**31)
    with (
        path.open("rb") as file,
        pytest.raises(InputError, match=r"one\.jsonl has a line of more than 67,108,864 bytes"),
    ):
        list(lines_of(file, path))
