"""No view of a study states a lead, a gain or an order of two points that runs beside each other do not resolve."""

import html
import json
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from scipy import stats

from platform.report.html import page as html_page
from platform.report.json_report import as_json
from platform.report.lessons import lessons
from platform.report.result_files import write_results
from platform.report.summary import verdicts
from platform.study.result.result import StudyResult
from platform.tracking.study_run import leader
from tests.samples import layout, measurement, result_of
from trainers.records.measurement import Measurement

LAYOUTS = (layout(), layout(checkpointing="full"), layout(zero_stage=2), layout(checkpointing="full", zero_stage=2))
LEAD = re.compile(r"\b(ahead|faster|slower|behind|tied|above|below|less than|times)\b", re.IGNORECASE)
INTERVAL = re.compile(r"95 % interval (?:of its runs )?([+-]?[\d.]+)%? to ([+-]?[\d.]+)")


def histories(count: int) -> Iterator[list[Measurement]]:
    """Yields measurements of two to four layouts at two micro-batches: each in the search and up to five runs again,
    of random speed and spread.
    """
    draw = random.Random(7)
    for _ in range(count):
        spread, measured = draw.choice((0.0005, 0.01, 0.1)), list[Measurement]()
        for on in draw.sample(LAYOUTS, draw.randint(2, 4)):
            for micro_batch in draw.choice(((1,), (1, 2))):
                speed, runs = 40000.0 * math.exp(draw.gauss(0, 0.05)), draw.choice((0, 1, 1, 2, 3, 5))
                measured += [
                    measurement(
                        on=on,
                        micro_batch=micro_batch,
                        tokens_per_s=speed * math.exp(draw.gauss(0, spread)),
                        repeat=repeat,
                    )
                    for repeat in range(runs + 1)
                ]
        yield measured


def pairs(best: list[Measurement], other: list[Measurement]) -> list[float]:
    """Returns the logarithms of ratios of the runs that both have."""
    speeds = [{run.repeat: run.tokens_per_s or 0.0 for run in runs if run.repeat} for runs in (best, other)]
    return [math.log(speeds[0][number] / speeds[1][number]) for number in speeds[0].keys() & speeds[1].keys()]


def resolved(best: list[Measurement], others: list[list[Measurement]]) -> bool:
    """Returns whether runs of the same numbers show by a paired t that the best is faster than the first of
    `others`, or the two tied; where these have two pairs, with the residual variance of all of them.
    """
    logs, *further = [pairs(best, other) for other in others]
    if len(logs) < 2:
        return False
    groups = [logs, *further] if len(logs) == 2 else [logs]
    degrees = sum(max(0, len(group) - 1) for group in groups)
    residuals = [value - math.fsum(group) / len(group) for group in groups if len(group) > 1 for value in group]
    error = math.sqrt(math.fsum(residual**2 for residual in residuals) / degrees / len(logs))
    mean = math.fsum(logs) / len(logs)
    half = float(stats.t.ppf(0.975, degrees)) * error
    low, high = math.exp(mean - half), math.exp(mean + half)
    return low > 1 or (high - low < 0.03 and low <= 1 <= high)


def unresolved_leads(sentences: list[str]) -> list[str]:
    """Returns the sentences that state a lead with neither an interval that excludes equality nor "not resolved"."""
    leads: list[str] = []
    for sentence in sentences:
        stated = re.sub(r"; the cost model has it.*", "", sentence)  # a prediction, and called one
        for part in stated.split(";"):
            ends = INTERVAL.search(part)
            excludes = ends is not None and (float(ends[1]) >= 0) == (float(ends[2]) >= 0)
            open_words = ("not resolved", "do not resolve", "tied with", "another one may be faster")
            if LEAD.search(part) and not excludes and not any(words in part.lower() for words in open_words):
                leads.append(part)
    return leads


def test_no_view_states_a_lead_that_is_not_resolved(tmp_path: Path) -> None:
    openness: set[bool] = set()
    for measured in histories(60):
        result = result_of(measured)
        (of_recipe,) = result.of_study
        sentences = [*verdicts(result), *lessons(result)]
        assert unresolved_leads(sentences) == []
        best, *others = of_recipe.ranking
        if of_recipe.winner is None or not others:
            continue
        of_others = [run for point in others if (run := point.main_run).layout != best.main_run.layout]
        assert of_recipe.runner_up == next(iter(of_others), None), "all views name the same best other layout"
        again = [list(other.all) for place, other in enumerate(others) if not place or other.runs]
        is_open = not resolved(list(best.all), again)
        openness.add(is_open)
        names = [caveat.name for caveat in of_recipe.caveats]
        if is_open:
            assert "not resolved" in sentences[0] and names[0] == "not resolved"
            assert leader(result, tmp_path)[0]["winner_caveats"].startswith("not resolved")
        shown = as_json(result)
        assert shown["comparisons"][0]["resolution"] == "not resolved" if is_open else shown["comparisons"]
        assert all((entry["low"] or 0.0) > 1 for entry in shown["comparisons"] if entry["resolution"] == "faster")
    assert openness == {True, False}


def test_the_page_and_the_winner_s_file_have_the_same_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result: StudyResult = result_of(next(histories(1)))
    sections = re.findall(r'<section id="(?:answer|cost)">.*?</section>', html_page.page([result]), re.DOTALL)
    assert len(sections) == 2
    body = html.unescape("".join(sections))
    assert unresolved_leads(re.findall(r"<p[^>]*>([^<]*)</p>", body)) == []
    monkeypatch.setattr("platform.report.result_files.draw", lambda *_: [])
    write_results(tmp_path, result)
    caveats = json.loads((tmp_path / "layout.json").read_text())["caveats"]
    assert caveats == [caveat.sentence for caveat in result.of_study[0].caveats]
