"""The beginning of a session with --auto-resume and --copy-to: a new study, an existing one, or the copy's. No Ray."""

from pathlib import Path

import pytest

from platform.common.errors import InputError
from platform.search.__main__ import parse
from platform.search.session.open_study import opened, with_resumption
from platform.search.setup.options import SearchOptions
from platform.study.journal import JOURNAL
from tests.samples import header
from trainers.records.journal import End


def _options(tmp_path: Path, *argv: str, studies: str = "studies") -> SearchOptions:
    return parse(["bloom7b", f"--studies={tmp_path / studies}", *argv])


def _begin(options: SearchOptions) -> None:
    """Runs a session that records its first line and its end."""
    with opened(with_resumption(options)) as opening, opening.copying():
        assert opening.study is not None and not opening.is_resumed
        opening.study.record(header(opening.study.name, options={"space": "bloom7b"}))
        opening.study.record(End(exit_code=130, wall_s=1.0, gpu_s=0.0))


def test_one_line_begins_a_study_and_goes_on_with_it(tmp_path: Path) -> None:
    options = _options(tmp_path, "--name=one", "--auto-resume")
    _begin(options)
    with opened(with_resumption(options)) as opening:
        assert opening.is_resumed and opening.history.end is not None


def test_without_auto_resume_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    _begin(_options(tmp_path, "--name=one"))
    with pytest.raises(InputError, match="a study 'one' exists already"), opened(_options(tmp_path, "--name=one")):
        pass


def test_another_machine_goes_on_from_the_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ("--name=one", "--auto-resume", f"--copy-to={tmp_path / 'place'}")
    _begin(_options(tmp_path, *line))
    with opened(with_resumption(_options(tmp_path, *line, studies="elsewhere"))) as opening, opening.copying():
        assert opening.is_resumed and opening.study is not None
        opening.study.record(End(exit_code=0, wall_s=1.0, gpu_s=0.0))
    assert f"2 lines of one came from {tmp_path / 'place'}" in " ".join(capsys.readouterr().err.split())
    copied = (tmp_path / "place" / "one" / JOURNAL).read_bytes()
    assert copied.count(b"\n") == 3
    assert copied == (tmp_path / "elsewhere" / "one" / JOURNAL).read_bytes()
    # The first machine is back: it takes what is new.
    with opened(with_resumption(_options(tmp_path, *line))) as opening:
        assert opening.history.end is not None and opening.history.end.exit_code == 0


def test_a_new_study_does_not_write_over_the_copy_of_another(tmp_path: Path) -> None:
    line = ("--name=one", f"--copy-to={tmp_path / 'place'}")
    _begin(_options(tmp_path, *line))
    with (
        pytest.raises(InputError, match=r"a study 'one' exists already in .*place: continue it with --resume one"),
        opened(with_resumption(_options(tmp_path, *line, studies="elsewhere"))),
    ):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_auto_resume_wants_a_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give --name"):
        with_resumption(_options(tmp_path, "--auto-resume"))
