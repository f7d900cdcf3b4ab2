"""Searches over tensor, pipeline and context parallelism, whole, on CPU workers: one model, whatever splits it."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from platform.common.errors import NOT_RESOLVED
from tests.whole_searches.session import Session, beyond_loopback, write_space
from tests.whole_searches.studies import ANSWERED, RAN, WITHOUT_MLFLOW, Run, start
from trainers.measuring.ladder import SHORT_ACCUM
from trainers.records.journal import Line, RungStart, TrialEnd, TrialStart
from trainers.records.measurement import Measurement
from trainers.spec.layout import Layout

pytestmark = [pytest.mark.ray, pytest.mark.search]


def _searched(folder: Path, name: str, *argv: str) -> Run:
    """Runs the search, and resumes it for 300 s where a disturbed machine left open which layout is fastest."""
    with start(folder, name, 1, *argv, "--name", name, environment=WITHOUT_MLFLOW) as session:
        session_end = [session.end()]
    if session_end[0].code == NOT_RESOLVED:
        argv = ("--resume", name, "--time-budget-s", "300")
        with start(folder, name, 2, *argv, environment=WITHOUT_MLFLOW) as session:
            session_end.append(session.end())
    return Run(path=folder / "studies" / name, sessions=tuple(session_end))


def _listening_by_layout(session: Session, num_trials: int) -> dict[Layout, frozenset[tuple[str, str]]]:
    """Returns the sockets that each of the first trials listens on during a rung, by layout."""
    addresses_by_layout: dict[Layout, frozenset[tuple[str, str]]] = {}
    for number in range(num_trials):
        rungs = session.wait_for(
            "a further trial's rung",
            lambda lines, number=number: list(dict.fromkeys(e.trial_id for e in lines if isinstance(e, RungStart)))[
                number:
            ],
        )
        layouts = {line.trial_id: line.layout for line in session.lines() if isinstance(line, TrialStart)}
        with session.standing_still():
            addresses_by_layout[layouts[rungs[0]]] = session.listening()
    return addresses_by_layout


def _first_losses(run: Run) -> Iterator[tuple[Measurement, list[float]]]:
    """Yields, for each measurement whose steps are whole, so that all train on the same samples, the first three
    losses.
    """
    for measurement in run.measured:
        if not measurement.repeat and measurement.outcome in RAN and measurement.batch.grad_accum < SHORT_ACCUM:
            yield measurement, list(measurement.losses[:3])


def _num_trial_ends(lines: Sequence[Line]) -> int:
    return sum(isinstance(line, TrialEnd) for line in lines)


@pytest.mark.heavy
def test_every_degree_trains_the_same_model(tmp_path: Path) -> None:
    space = write_space(
        tmp_path / "split.py",
        num_layers=2,
        axes={"engine": ("ddp",), "attention": ("sdpa",), "tp": (1, 2), "pp": (1, 2), "cp": (1, 2)},
        micro_batches=(1,),
        global_batch=2,
    )
    argv = (str(space), "--name", "split", "--steps", "4", "--searcher", "sweep")
    with start(tmp_path, "split", 1, *argv, environment=WITHOUT_MLFLOW) as session:
        listening = _listening_by_layout(session, 4)
        session.wait_for("the end of every degree's trial", lambda lines: _num_trial_ends(lines) == 4)
        session.interrupt()  # the winner's last run and gate are not asked here
        run = Run(path=tmp_path / "studies" / "split", sessions=(session.end(),))
    assert run.sessions[0].code == 130, run.sessions[0].err
    losses_by_degrees = {
        (measurement.layout.tp, measurement.layout.pp, measurement.layout.cp): losses
        for measurement, losses in _first_losses(run)
    }
    assert losses_by_degrees.keys() == {(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)}
    for degrees, losses in losses_by_degrees.items():
        assert losses == pytest.approx(losses_by_degrees[1, 1, 1], rel=1e-4), degrees

    assert (
        len(listening) == 4
        and {listener for addresses in listening.values() for listener in beyond_loopback(addresses)} == set()
    )
    layouts = [
        layout for layout, addresses in listening.items() if any("RayTrainWorker" in name for name, _ in addresses)
    ]
    assert any(max(layout.tp, layout.pp, layout.cp) > 1 for layout in layouts), "no worker's sockets were seen"


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["tr3m_1b3", "llama3_8b"])
def test_the_miniature_on_four_workers_is_searched_unaided(name: str, tmp_path: Path) -> None:
    """Runs a search in the space's own budget; the search chooses which layouts it tries."""
    run = _searched(tmp_path, name, name, "--gpus", "4")
    assert run.sessions[-1].code in ANSWERED, run.sessions[-1].err
    assert {measurement.layout.world_size for measurement in run.measured} == {4}
    _passes_the_gate(run)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["tr3m_1b3", "llama3_8b", "llama3_8b_32k"])
def test_every_degree_of_the_miniature_on_four_workers_trains_the_same_model(name: str, tmp_path: Path) -> None:
    changes = ("engine=ddp", "zero_stage=0", "checkpointing=none", "micro_batch=1", "global_batch=4")
    sets = [word for change in changes for word in ("--set", change)]
    argv = (name, "--gpus", "4", "--steps", "4", "--repeats", "0", "--searcher", "sweep", "--time-budget-s", "1500")
    run = _searched(tmp_path, name, *argv, *sets)
    assert run.sessions[-1].code in ANSWERED, run.sessions[-1].err
    layouts = [
        measurement.layout for measurement in run.measured if not measurement.repeat and measurement.outcome in RAN
    ]
    degrees = ("dp_replicate", "tp", "pp", "virtual") + (("cp",) if name.startswith("llama3_8b") else ())
    assert all(max(getattr(layout, degree) for layout in layouts) > 1 for degree in degrees)
    assert any(layout.tp == layout.pp == 2 for layout in layouts)
    assert name != "llama3_8b_32k" or any(layout.cp == 4 for layout in layouts)
    losses = list(_first_losses(run))
    assert len({measurement.layout for measurement, _ in losses}) > 2
    for measurement, first in losses:
        assert first == pytest.approx(losses[0][1], rel=1e-3), measurement.layout.label
    _passes_the_gate(run)


@pytest.mark.heavy
def test_a_long_context_is_searched_with_both_exchanges(tmp_path: Path) -> None:
    changes = ("engine=ddp", "zero_stage=0", "tp=1", "pp=1", "virtual=1", "micro_batch=1", "global_batch=4")
    sets = [word for change in changes for word in ("--set", change)]
    argv = ("llama3_8b_131k", "--gpus", "4", "--steps", "4", "--repeats", "0", "--searcher", "sweep")
    run = _searched(tmp_path, "long", *argv, "--time-budget-s", "420", *sets)
    assert run.sessions[-1].code in ANSWERED, run.sessions[-1].err
    layouts = [measurement.layout for measurement in run.measured if measurement.outcome in RAN]
    assert {(layout.cp, layout.cp_exchange) for layout in layouts} == {
        (1, "gather"), (2, "gather"), (2, "all_to_all"), (4, "gather"), (4, "all_to_all")
    }  # fmt: skip
    losses = list(_first_losses(run))
    assert {measurement.layout.cp_exchange for measurement, _ in losses} == {"gather", "all_to_all"}
    for measurement, first in losses:
        assert first == pytest.approx(losses[0][1], rel=1e-3), measurement.layout.label
    _passes_the_gate(run)


@pytest.mark.heavy
def test_a_configuration_on_eight_workers_is_searched_unaided(tmp_path: Path) -> None:
    """Checks that the search, whatever else it chose to try, tried layouts that split the model and layouts that do
    not, and that all of them train one model.
    """
    sizes = {"num_hidden_layers": 8, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 8}
    words = {"vocab_size": 256, "max_position_embeddings": 64, "intermediate_size": 128}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama", **sizes, **words}))
    argv = (str(config), "--gpus", "8", "--set", "global_batch=16", "--time-budget-s", "420")
    run = _searched(tmp_path, "eight", *argv, "--steps", "4", "--repeats", "0")
    assert run.sessions[-1].code in ANSWERED, run.sessions[-1].err
    layouts = [
        measurement.layout for measurement in run.measured if not measurement.repeat and measurement.outcome in RAN
    ]
    assert {layout.world_size for layout in layouts} == {8}
    assert {layout.model_parallel > 1 for layout in layouts} == {False, True}
    _passes_the_gate(run)


def _passes_the_gate(run: Run) -> None:
    """Checks that a winner passed its gate, and that no gate failed. A single layout has none to
    pass; where no layout is resolved to be the fastest, there is no winner.
    """
    has_none = "Numerics gate: none to pass" in run.sessions[-1].out or run.sessions[-1].code == NOT_RESOLVED
    assert has_none or [gate.is_reference for gate in run.history.gates].count(False) >= 1
    assert not [measurement for measurement in run.history.measurements if measurement.phase == "gate"], (
        "a winner failed its gate"
    )
