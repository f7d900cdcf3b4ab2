"""Builds the page from its sections and writes the file."""

from collections.abc import Sequence
from pathlib import Path

from platform.common.text import figure
from platform.report.html.budget_sections import cost_of_the_search, days_against_devices
from platform.report.html.conditions import conditions
from platform.report.html.elements import Section, document, facts, heading, paragraph
from platform.report.html.loss_sections import loss_curves
from platform.report.html.pareto import Group, groups_of
from platform.report.html.speed_sections import against_batch_and_length, against_memory, heat_maps
from platform.report.html.step_sections import predicted_and_measured, where_the_step_goes
from platform.report.summary import cost_of, days_of, verdicts
from platform.study.atomic_write import replacing
from platform.study.folder import user_path
from platform.study.result.result import StudyResult


def write_page(path: Path, results: Sequence[StudyResult], folders: Sequence[Path]) -> Path:
    """Writes the report of the studies, whose folders may hold trainings; returns the absolute path.

    Raises:
        InputError: the file cannot be written.
    """
    text = page(results, folders)
    path = user_path(path).absolute()
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def page(results: Sequence[StudyResult], folders: Sequence[Path] = ()) -> str:
    """Returns the report of the studies as HTML."""
    groups = groups_of(results)
    names = ", ".join(result.header.name for result in results)
    clusters = "; ".join(dict.fromkeys(result.header.cluster.label_under(result.header.cap_gib) for result in results))
    return document(
        f"Layout search: {names}",
        f"On {clusters}. Every figure is measured unless its place says otherwise.{_caveats(results)}",
        [
            _answer(groups, results),
            against_memory(groups),
            heat_maps(groups),
            against_batch_and_length(groups),
            days_against_devices(results),
            where_the_step_goes(groups, results),
            predicted_and_measured(results),
            loss_curves(results, folders),
            cost_of_the_search(results),
            conditions(results),
        ],
    )


def _caveats(results: Sequence[StudyResult]) -> str:
    """Returns the names of all results' caveats as a sentence; "" for none."""
    names = {caveat.name: None for result in results for of_recipe in result.of_study for caveat in of_recipe.caveats}
    return f" Caveats: {', '.join(names)}." if names else ""


def _answer(groups: Sequence[Group], results: Sequence[StudyResult]) -> Section:
    body = ""
    winners = [(result, best) for group in groups for result, _, best in group.winners]
    if len(winners) == 1:
        result, best = winners[0]
        header = result.header
        tilde = "~" * best.step_time_derived
        answers = {
            "tokens/s": figure(best.tokens_per_s) + tilde,
            f"tokens/s a {header.cluster.device_word}": figure(best.tokens_per_s_per_gpu) + tilde,
            "seconds a step": figure(best.step_time_s) + tilde,
            "GiB at most": figure(best.peak_allocated_gib),
            "days": figure(days_of(best, header.tokens)),
            "cost": figure(cost_of(best, header.tokens, header.price_per_gpu_h)),
        }
        body += facts([(name, value) for name, value in answers.items() if value.strip("~")])
    for result in results:
        body += heading(result.header.name) if len(results) > 1 else ""
        body += "".join(paragraph(sentence) for sentence in verdicts(result))
    return Section(id="answer", title="The answer", body=body)
