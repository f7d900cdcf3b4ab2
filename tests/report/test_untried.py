"""The share of the plan that was tried, in sentence, table and JSON."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from platform.cluster.nodes import ClusterHandle
from platform.report.__main__ import main
from platform.report.json_report import as_json
from platform.report.rows import tables
from platform.report.show import show
from platform.report.summary import verdicts
from platform.report.untried import not_tried_lines
from platform.search.__main__ import parse
from platform.search.setup.planned_line import planned
from platform.search.setup.request import read_request
from platform.search.setup.study_setup import setup_of
from platform.study.history import History
from platform.study.result.coverage import coverage
from platform.study.result.result import StudyResult
from platform.study.study import Study
from tests.samples import RECIPE, header, layout, measurement, skipped
from tests.whole_searches.session import write_space
from trainers.records.journal import End, Line, Measured, Planned, PlannedLayout
from trainers.records.measurement import Outcome
from trainers.spec.cluster import Cluster
from trainers.spec.codec import to_json

AT = "2026-01-01T00:00:00+00:00"
TRIED, HALF, UNTRIED, HOPELESS = (
    layout(),
    layout(checkpointing="full"),
    layout(zero_stage=2),
    layout(zero_stage=2, checkpointing="full"),
)
H200 = Cluster(device_kind="cuda", device="NVIDIA H200", device_memory_gib=140.0, devices_per_node=4, capability=(9, 0))


def _planned(*, predicted: bool = True) -> Planned:
    prediction: dict[str, Any] = {"micro_batch": 2, "tokens_per_s": 24100.0, "step_time_s": 2.5, "peak_gib": 43.0}
    figures = prediction if predicted else {}
    planned_layouts = [
        PlannedLayout(recipe=RECIPE.id, layout=on, micro_batches=(1, 2), **figures)
        for on in (TRIED, HALF, UNTRIED, HOPELESS)
    ]
    return Planned(at=AT, layouts=tuple(planned_layouts))


def _history(*further: Line, plan: Planned | None = None) -> History:
    """Returns a history with one layout tried, one whose trial failed, one not tried, and one known not to run."""
    failed = measurement(on=HALF, tokens_per_s=None, outcome=Outcome.FAILED, reason="it broke")
    hopeless = [skipped(on=HOPELESS, micro_batch=micro_batch) for micro_batch in (1, 2)]
    measurements = [measurement(on=TRIED), failed, skipped(on=UNTRIED, micro_batch=2), *hopeless]
    lines = [header(at=AT), *([plan] if plan else []), *(Measured(at=AT, measurement=point) for point in measurements)]
    return History([*lines, *further])


@pytest.mark.parametrize("end", [None, 0, 130])
def test_the_sentence_says_of_how_many_layouts_the_winner_is_the_fastest(end: int | None) -> None:
    ends = [] if end is None else [End(at=AT, exit_code=end, wall_s=1, gpu_s=4)]
    (shown, *_) = verdicts(StudyResult.of(_history(*ends, plan=_planned())))
    assert shown.startswith("Fastest of 2 of 3 layouts tried for bloom-7b1"), "what cannot run is not counted"


def test_where_each_was_tried_nothing_is_listed() -> None:
    history = _history(Measured(at=AT, measurement=measurement(on=UNTRIED)), plan=_planned())
    covered = coverage(history, RECIPE)
    assert (
        verdicts(StudyResult.of(history))[0].startswith("Fastest of 3 layouts tried for")
        and not_tried_lines(covered) == []
    )


def test_without_a_plan_in_the_journal_nothing_is_said_of_it() -> None:
    history = _history()
    assert coverage(history, RECIPE) is None and verdicts(StudyResult.of(history))[0].startswith(
        "Fastest for bloom-7b1"
    )
    assert as_json(StudyResult.of(history))["not_tried"] is None


def test_the_table_lists_what_was_not_tried_apart_from_what_is_known_not_to_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(StudyResult.of(_history(plan=_planned())), [], as_object=False)
    shown = capsys.readouterr().out
    assert f"Not tried: 1 of 3 layouts.\n  {UNTRIED.label}, MBS 2: predicted 24,100 tokens/s, 43.0 GiB\n" in shown
    assert "Skipped: 3 batch points of 2 layouts." in shown


@pytest.mark.parametrize(
    "ends", [(), (End(at=AT, exit_code=1, wall_s=1, gpu_s=0),), (End(at=AT, exit_code=130, wall_s=1, gpu_s=0),)]
)
def test_a_study_without_a_measurement_shows_its_plan(
    ends: tuple[Line, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Tests a running search, one whose budget was over before the first measurement, and one that Ctrl-C cut."""
    result = StudyResult.of(History([header(at=AT, cap_gib=40.0), _planned(), *ends]))
    show(result, [], as_object=False)
    shown = capsys.readouterr().out
    assert shown.startswith(f"{RECIPE.label}, on 4 x Made-up GPU (80.0 GiB, held to 40)\nNot tried: 4 of 4 layouts.\n")
    for untried_layout in (TRIED, HALF, UNTRIED, HOPELESS):
        assert f"  {untried_layout.label}, MBS 2: predicted 24,100 tokens/s, 43.0 GiB\n" in shown
    assert "Nothing was measured for bloom-7b1" in " ".join(shown.split())
    assert len(as_json(result)["not_tried"]) == len(tables(result)["not_tried.json"]) == 4


def test_of_two_recipes_the_one_that_was_not_measured_shows_its_plan_too(capsys: pytest.CaptureFixture[str]) -> None:
    other = dataclasses.replace(RECIPE, seq_len=1024)
    plan = _planned()
    both = dataclasses.replace(
        plan, layouts=(*plan.layouts, PlannedLayout(recipe=other.id, layout=UNTRIED, micro_batches=(1,)))
    )
    line = Measured(at=AT, measurement=measurement(on=TRIED))
    show(StudyResult.of(History([header(at=AT, recipes=(RECIPE, other)), both, line])), [], as_object=False)
    shown = capsys.readouterr().out
    places = [shown.index(words) for words in ("Not tried: 3 of 4 layouts", other.label, "Not tried: 1 of 1 layout (")]
    assert places == sorted(places)


def test_on_cpus_there_is_no_prediction() -> None:
    lines = not_tried_lines(coverage(_history(plan=_planned(predicted=False)), RECIPE))
    assert lines == [
        "Not tried: 1 of 3 layouts (none is predicted: the cost model has no such device).",
        f"  {UNTRIED.label}",
    ]


def test_json_and_mlflow_s_tables_have_them_with_their_predictions() -> None:
    history = _history(plan=_planned())
    printed = json.loads(json.dumps(as_json(StudyResult.of(history))))
    assert (printed["layouts_tried"], printed["layouts_planned"]) == (2, 3)
    (entry,) = printed["not_tried"]
    assert (entry["layout"]["id"], entry["micro_batches"], entry["predicted_tokens_per_s"]) == (
        UNTRIED.id,
        [1, 2],
        24100.0,
    )
    assert printed["recipes"][0]["not_tried"] == printed["not_tried"]
    (row,) = tables(StudyResult.of(history))["not_tried.json"]
    assert row["layout"] == UNTRIED.label and row["predicted_gib"] == 43.0


def test_a_plan_on_gpus_has_each_layout_once_with_its_likely_best_rung() -> None:
    options = parse(["gpt2", "--set", "engine=ddp,fsdp", "--set", "micro_batch=4,8,16"])
    setup = setup_of(read_request(options), ClusterHandle(cluster=H200, cpus_per_worker=1.0, driver_ip=""), probe=None)
    layouts = planned(setup.plan).layouts
    assert {planned_layout.layout for planned_layout in layouts} == {
        candidate.layout for candidate in setup.plan.candidates
    }
    assert len(layouts) == len(setup.plan.candidates) > 2
    for planned_layout in layouts:
        assert (
            planned_layout.micro_batch in planned_layout.micro_batches
            and planned_layout.tokens_per_s
            and planned_layout.peak_gib
        )
        assert planned_layout.step_time_s == pytest.approx(
            setup.recipes[0].tokens_per_step / planned_layout.tokens_per_s
        )


class TestOlderJournals:
    """Journals that do not state what was planned."""

    @staticmethod
    def history_of(space: str, *argv: str) -> History:
        options = parse([space, *argv])
        setup = setup_of(
            read_request(options), ClusterHandle(cluster=H200, cpus_per_worker=1.0, driver_ip=""), probe=None
        )
        first = setup.plan.candidates[0]
        stored_options = to_json(options.study.with_absolute_paths())
        ran = measurement(on=first.layout, recipe=first.recipe, micro_batch=first.micro_batches[0])
        begun = header(at=AT, recipes=setup.recipes, cluster=H200, options=stored_options)
        return History([begun, Measured(at=AT, measurement=ran)])

    def test_a_space_file_is_never_run_for_a_report(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        space = write_space(tmp_path / "mine.py")
        history = self.history_of(str(space))
        space.write_text("raise SystemExit('a report ran a space file')")
        with Study.create(tmp_path, "old") as study:
            assert history.header is not None
            study.record(history.header)
            study.record(Measured(measurement=history.measurements[0]))
            study.record(End(exit_code=0, wall_s=1, gpu_s=4))
        assert main(["old", "--studies", str(tmp_path), "--no-mlflow"]) == 0
        assert "Not tried" not in capsys.readouterr().out
