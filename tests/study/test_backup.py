"""The second copy of a journal: copying, fetching, and a copy that only one search writes."""

from pathlib import Path

import boto3
import pytest

from platform.common.errors import InputError
from platform.study.backup import Backup, without_secrets
from platform.study.journal import JOURNAL


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Returns the journal of a study with two whole lines and a third that is being written."""
    path = tmp_path / "studies" / "one" / JOURNAL
    path.parent.mkdir(parents=True)
    path.write_bytes(b"first\nsecond\nthi")
    return path


def copied(place: Path) -> bytes:
    """Returns the content of the copy."""
    return (place / "one" / JOURNAL).read_bytes()


def test_finished_lines_are_copied_as_they_come_and_no_half_line(journal: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    copy = Backup(str(place), "one")
    copy.take(journal)
    assert copied(place) == b"first\nsecond\n"
    with journal.open("ab") as file:
        file.write(b"rd\nfourth\n")
    copy.take(journal)
    assert copied(place) == b"first\nsecond\nthird\nfourth\n"
    assert {path.name for path in place.rglob("*")} == {"one", JOURNAL}  # no probe, no part


def test_the_end_of_the_context_copies_the_rest(journal: Path, tmp_path: Path) -> None:
    copy = Backup(str(tmp_path / "place"), "one")
    with copy.following(journal, every_s=3600), journal.open("ab") as file:
        file.write(b"rd\n")
    assert copied(tmp_path / "place") == b"first\nsecond\nthird\n"


def test_another_machine_goes_on_from_the_copy(journal: Path, tmp_path: Path) -> None:
    Backup(str(tmp_path / "place"), "one").take(journal)
    copy = Backup(str(tmp_path / "place"), "one")
    assert copy.is_begun
    sentence = copy.fetch(tmp_path / "new")
    assert (tmp_path / "new" / "one" / JOURNAL).read_bytes() == b"first\nsecond\n"
    assert sentence.startswith("2 lines of one came from")
    assert copy.fetch(tmp_path / "new") == ""  # all is there now


def test_a_folder_that_is_ahead_is_left_as_it_is(journal: Path, tmp_path: Path) -> None:
    copy = Backup(str(tmp_path / "place"), "one")
    copy.take(journal)
    journal.write_bytes(b"first\nsecond\nthird\n")
    assert copy.fetch(tmp_path / "studies") == ""
    assert journal.read_bytes() == b"first\nsecond\nthird\n"


def test_a_folder_and_a_copy_of_two_histories_are_refused(journal: Path, tmp_path: Path) -> None:
    copy = Backup(str(tmp_path / "place"), "one")
    copy.take(journal)
    journal.write_bytes(b"first\nother\n")
    with pytest.raises(InputError, match="each have lines that the other lacks"):
        copy.fetch(tmp_path / "studies")
    assert journal.read_bytes() == b"first\nother\n"


def test_a_search_stops_copying_where_another_one_wrote(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, other = (Backup(str(tmp_path / "place"), "one") for _ in range(2))
    copy.take(journal)
    other.take(journal)  # it began from nothing, and something is there
    assert "Another search wrote the copy of one" in " ".join(capsys.readouterr().err.split())
    journal.write_bytes(b"first\nsecond\nelse\n")
    other.take(journal, last=True)
    assert copied(tmp_path / "place") == b"first\nsecond\n"
    assert not capsys.readouterr().err  # once is enough


def test_what_cannot_be_copied_is_said_and_tried_again(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "place"
    copy = Backup(str(place), "one")
    (place / "one").write_text("in the way")
    copy.take(journal)
    copy.take(journal)
    output = " ".join(capsys.readouterr().err.split())
    assert output.count("could not be copied") == 1 and "it is tried again" in output
    (place / "one").unlink()
    copy.take(journal)
    assert copied(place) == b"first\nsecond\n"


@pytest.mark.parametrize("place", ["file/below", "nosuch://bucket/prefix"])
def test_a_place_that_takes_no_files_is_refused_before_anything_starts(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"--copy-to .* cannot be used"):
        Backup(place if "://" in place else str(tmp_path / place), "one")


def test_an_address_is_printed_without_its_keys() -> None:
    assert without_secrets("s3://key:secret@bucket/a?endpoint_override=host") == "s3://bucket/a"
    assert without_secrets("/a/folder") == "/a/folder"


@pytest.mark.parametrize(("bucket", "prefix"), [("first", ""), ("second", "/deeper/prefix")])
def test_an_s3_compatible_address_takes_the_same(
    bucket: str, prefix: str, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies to moto's server with pyarrow's own client of S3."""
    from moto.server import ThreadedMotoServer

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        place = f"s3://{bucket}{prefix}?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
        with pytest.raises(InputError, match=r"--copy-to s3://\S+ cannot be used"):
            Backup(place, "one")  # there is no such bucket yet
        boto3.client("s3", region_name="us-east-1", endpoint_url=f"http://{host}:{port}").create_bucket(Bucket=bucket)
        copy = Backup(place, "one")
        assert not copy.is_begun
        copy.take(journal)
        with journal.open("ab") as file:
            file.write(b"rd\n")
        copy.take(journal, last=True)
        again = Backup(place, "one")
        assert again.is_begun
        assert again.fetch(tmp_path / "new").startswith("3 lines of one came from s3://")
        assert (tmp_path / "new" / "one" / JOURNAL).read_bytes() == b"first\nsecond\nthird\n"
        Backup(place, "one").take(tmp_path / "new" / "one" / JOURNAL)  # nothing is new
        copy.take(journal)
    finally:
        server.stop()
