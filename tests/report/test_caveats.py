"""Every caveat of a result stands in every view of it."""

import dataclasses
import html
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from platform.report.html.page import page
from platform.report.json_report import as_json
from platform.report.markdown import as_markdown, escaped
from platform.report.result_files import write_results
from platform.report.summary import verdicts
from platform.study.layout_file import read_layout
from platform.study.result.caveats import DECLARED
from platform.study.result.result import StudyResult
from platform.tracking.study_run import leader
from platform.train.exporting.formats import LAUNCH, write_caveats
from platform.train.target import read_target
from tests.samples import RECIPE, SMALL, layout, measurement, oom, result_of
from trainers.records.journal import GateCurves, Line, Planned, PlannedLayout
from trainers.spec.model import ModelSpec

AT = "2026-01-01T00:00:00+00:00"
BEST, PLAIN, UNTRIED = layout(checkpointing="full"), layout(), layout(zero_stage=2)


def planned(*of_plan: PlannedLayout) -> Line:
    return Planned(at=AT, layouts=of_plan)


def in_plan(on: object) -> PlannedLayout:
    return PlannedLayout(recipe=RECIPE.id, layout=on, micro_batches=(1,), tokens_per_s=1.0)  # pyright: ignore


def gate(on: object, *, is_reference: bool) -> Line:
    return GateCurves(
        at=AT, trial_id="g", recipe=RECIPE, layout=on, is_reference=is_reference, steps=2, sequences=4,  # pyright: ignore
        losses=(2.0, 1.0), grad_norms=(1.0, 1.0),
    )  # fmt: skip


SOUND = (
    measurement(on=BEST, tokens_per_s=50000.0),
    *(measurement(on=BEST, tokens_per_s=50000.0 + n, repeat=n) for n in (1, 2)),
    *(measurement(on=PLAIN, repeat=n, tokens_per_s=40000.0 + n) for n in range(3)),
)
GATED = (gate(BEST, is_reference=False), gate(PLAIN, is_reference=True))
SMALL_RECIPE = dataclasses.replace(RECIPE, model=SMALL)
MOE = ModelSpec(
    name="moe", architecture="mixtral", num_layers=2, hidden_size=64, num_heads=4, vocab_size=256, num_experts=4,
    experts_per_token=2,
)  # fmt: skip
BALANCED = dataclasses.replace(RECIPE, model=MOE, routing="balanced")
ACCUMULATED = dataclasses.replace(RECIPE, global_batch=0, grad_accum=4)
RESULTS: dict[str, Callable[[], StudyResult]] = {
    "not resolved": lambda: result_of(SOUND[:-1], *GATED),
    "miniature": lambda: result_of([measurement(recipe=SMALL_RECIPE)]),
    "forced balance": lambda: result_of([measurement(recipe=BALANCED)]),
    "predicted": lambda: result_of([oom(on=BEST)], planned(in_plan(BEST), in_plan(UNTRIED))),
    "few tried": lambda: result_of(SOUND, planned(in_plan(BEST), in_plan(PLAIN), in_plan(UNTRIED)), *GATED),
    "unlike batches": lambda: result_of([measurement(recipe=ACCUMULATED, micro_batch=size) for size in (1, 2)]),
    "not repeated": lambda: result_of([SOUND[0], SOUND[3]], *GATED),
    "not gated": lambda: result_of(SOUND),
    "as reported": lambda: result_of([dataclasses.replace(run, remark="its clock differs") for run in SOUND], *GATED),
    "disturbed": lambda: result_of([*SOUND, measurement(on=BEST, tokens_per_s=20000.0, repeat=3),
        measurement(on=PLAIN, micro_batch=2, tokens_per_s=9.0), measurement(on=PLAIN, micro_batch=2,
        tokens_per_s=4.0, repeat=1)], *GATED),
    "side by side": lambda: result_of([dataclasses.replace(run, addresses=(f"10.0.0.{number}",))
        for number, run in enumerate((SOUND[0], SOUND[3]))], *GATED),
}  # fmt: skip


def test_a_sound_result_has_no_caveat() -> None:
    result = result_of(SOUND, planned(in_plan(BEST), in_plan(PLAIN)), *GATED)
    assert result.of_study[0].caveats == ()
    assert "Caveats" not in page([result]) and "Caveats" not in as_markdown(result)


def test_sizes_that_were_not_tried_are_named() -> None:
    hurried = measurement(on=UNTRIED, micro_batch=2, tokens_per_s=9.0, untried_micro_batch=128)
    again = [measurement(on=UNTRIED, micro_batch=2, tokens_per_s=9.0, repeat=number) for number in (1, 2)]
    result = result_of([*SOUND, hurried, *again], planned(in_plan(BEST), in_plan(PLAIN), in_plan(UNTRIED)), *GATED)
    (caveat,) = result.of_study[0].caveats
    assert caveat.name == "few tried" and f"{UNTRIED.label} (above 2, up to 128)" in caveat.sentence


def test_the_page_on_results_explains_every_caveat() -> None:
    pages = Path(__file__).parents[2] / "docs" / "results.md"
    assert [name for name in DECLARED if f"| {name} |" not in pages.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("name", DECLARED)
def test_every_view_shows_every_caveat(name: str, tmp_path: Path) -> None:
    result = RESULTS[name]()
    (caveat,) = [caveat for caveat in result.of_study[0].caveats if caveat.name == name]
    first, *others = verdicts(result)  # the terminal, the answer of the page, and the text of MLflow's run
    assert caveat.sentence in others
    assert caveat.sentence in html.unescape(page([result]))
    assert name in page([result]).partition("<nav>")[0]
    assert dataclasses.asdict(caveat) in as_json(result)["caveats"]
    assert f"- **{name}**: {escaped(caveat.sentence)}" in as_markdown(result).partition("## Caveats")[2].splitlines()
    if result.of_study[0].winner is None:
        return
    assert name in first
    assert name in leader(result, tmp_path)[0]["winner_caveats"]
    write_results(tmp_path, result)
    assert caveat.sentence in json.loads((tmp_path / "layout.json").read_text())["caveats"]
    assert caveat.sentence in read_layout(tmp_path / "layout.json").caveats
    target = read_target(str(tmp_path / "layout.json"), tmp_path, None)
    (tmp_path / LAUNCH).write_text("#!/bin/sh\ntrain\n")
    write_caveats(tmp_path, target.caveats)
    assert f"# {caveat.sentence}" in (tmp_path / LAUNCH).read_text().splitlines()


def test_the_changelog_names_every_caveat() -> None:
    text = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
    listed = text.partition("has the same caveats: ")[2].partition(".\n")[0].split(", ")
    assert listed == [*DECLARED]
