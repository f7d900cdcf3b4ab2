"""The disk under the journal fills up: a real one, of some MiB."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from platform.common.errors import ClusterError
from platform.study.study import Study
from tests.disks import fill, small_disk
from tests.samples import header
from tests.search.loop.backend import ALL_RUNGS, CLUSTER, OTHER, RECIPE, Backend, Clock, Make, outcomes
from tests.search.loop.conftest import backend, clock, make
from tests.whole_searches.session import ROOT, Session, write_space
from tests.whole_searches.studies import ANSWERED
from trainers.records.journal import Measured

__all__ = ["backend", "clock", "make"]
MIB = 2**20


@pytest.fixture
def disk(tmp_path: Path, size_mib: int) -> Iterator[Path]:
    """Yields a file system of `size_mib`."""
    with small_disk(tmp_path / "disk", size_mib) as folder:
        yield folder


@pytest.fixture
def study(disk: Path) -> Iterator[Study]:
    """Yields a study on that disk."""
    with Study.create(disk, "made-up") as created:
        created.record(header("made-up", recipes=(RECIPE, OTHER), cluster=CLUSTER))
        yield created


@pytest.mark.parametrize("size_mib", [1])
def test_a_full_disk_ends_the_search_with_a_sentence_and_room_lets_it_go_on(
    disk: Path, study: Study, backend: Backend, make: Make
) -> None:
    loop = make()
    backend.step(loop)
    before = outcomes(study)
    filler = fill(disk)
    with pytest.raises(ClusterError, match=r"No space left on device.*make room, then continue with --resume made-up"):
        for _ in range(50):  # the last page of the file has some lines' room
            backend.step(loop)
    filler.unlink()
    again = Backend(study, Clock())
    again.run(make())
    assert outcomes(study)[: len(before)] == before
    assert sorted({layout for layout, _ in backend.order + again.order}, key=str) == sorted(
        {layout for layout, _ in ALL_RUNGS}, key=str
    )
    assert len(outcomes(study)) == len(set(outcomes(study))) * len(ALL_RUNGS)  # every point once


@pytest.mark.heavy
@pytest.mark.search
@pytest.mark.parametrize("size_mib", [160])
def test_a_search_whose_disk_fills_up_says_so_and_resumes(disk: Path, tmp_path: Path) -> None:
    space = write_space(
        tmp_path / "two.py",
        micro_batches=(1, 2),
        global_batch=8,
        axes={"engine": ("ddp",), "checkpointing": ("none", "full")},
    )
    where = ("--studies", str(disk), "--address", "local")
    journal = disk / "full" / "journal.jsonl"
    with Session(tmp_path / "one", journal, str(space), "--name", "full", *where) as session:
        session.wait_for("a measurement", lambda lines: [line for line in lines if isinstance(line, Measured)])
        filler = fill(disk)
        session_end = session.end()
    assert session_end.code == 3, session_end.err
    assert (
        "No space left on device" in session_end.err
        and "make room" in session_end.err
        and "Traceback" not in session_end.err
    )
    filler.unlink()
    with Session(tmp_path / "two", journal, "--resume", "full", *where) as session:
        session_end = session.end()
    assert session_end.code in ANSWERED, session_end.err
    assert str(ROOT) not in session_end.err
    points = [
        (line.measurement.layout.id, line.measurement.batch.micro_batch)
        for line in session_lines(journal)
        if isinstance(line, Measured) and not line.measurement.repeat
    ]
    assert len(points) == len(set(points))  # nothing twice
    begun = points[0][0]
    assert {batch for layout, batch in points if layout == begun} == {1, 2}
    assert {layout for layout, _ in points} > {begun}  # its second rung may be hopeless beside what is known by then


def session_lines(journal: Path) -> list[object]:
    """Returns the lines of the journal."""
    from platform.study.journal import Tail

    return list(Tail(journal).read(last=True))
