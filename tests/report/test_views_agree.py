"""All views of one study show the same figures, and the same lines in another order are the same study."""

import html
import random
import re
from pathlib import Path
from typing import Any

import pytest

from platform.common.text import figure
from platform.report.console import rendered
from platform.report.html.page import page
from platform.report.json_report import as_json
from platform.report.lessons import lessons
from platform.report.markdown import as_markdown
from platform.report.rows import tables
from platform.report.summary import verdicts
from platform.report.team import team_parts
from platform.report.terminal import render
from platform.study.result.ranking import winner
from platform.tracking.study_run import leader, roles
from tests.samples import RECIPE, layout, measurement, oom, result_of, skipped
from trainers.records.measurement import Measurement, Outcome

SEEDS = range(60)
LAYOUTS = (
    layout(),
    layout(zero_stage=2),
    layout(checkpointing="full"),
    layout(zero_stage=2, checkpointing="full"),
    layout(engine="ddp", zero_stage=0, dp_shard=1, dp_replicate=4),
)
FAILURES = (Outcome.FAILED, Outcome.DIVERGED, Outcome.HUNG)


def drawn(seed: int) -> list[Measurement]:
    """Returns the measurements of a random study: some tied, some failed, the fastest ones run again."""
    draw = random.Random(seed)
    noise, base = draw.choice((0.0, 0.0, 0.001, 0.01, 0.05)), draw.choice((3.0, 1000.0, 40000.0, 1e6))
    measured: list[Measurement] = []
    able: list[tuple[int, int, float]] = []
    for number in draw.sample(range(len(LAYOUTS)), draw.randint(0, len(LAYOUTS))):
        of_layout = base * draw.choice((1.0, 1.0, 1.01, 1.1, 0.5))
        for micro_batch in draw.sample((1, 2, 4, 8), draw.randint(1, 3)):
            speed = of_layout * (1 + draw.choice((0.0, 0.01)) * micro_batch)
            figures: dict[str, Any] = {"on": LAYOUTS[number], "micro_batch": micro_batch}
            timed: dict[str, Any] = {**figures, "tokens_per_s": speed * (1 + draw.gauss(0, noise))}
            kind = draw.choices(("ok", "oom", "slow", "skipped", "failed"), (10, 1, 1, 1, 1))[0]
            if kind == "ok":
                able.append((number, micro_batch, speed))
                measured.append(measurement(**timed))
            elif kind == "slow":
                measured.append(measurement(**timed, outcome=Outcome.SLOW, reason="below the best"))
            elif kind == "failed":
                measured.append(
                    measurement(**figures, tokens_per_s=None, outcome=draw.choice(FAILURES), reason="its fault")
                )
            else:
                measured.append(oom(**figures) if kind == "oom" else skipped(**figures))
    repeats = draw.choice((0, 2, 2, 3, 4, 7))
    for number, micro_batch, speed in draw.sample(able, min(3, len(able))):
        for repeat in range(1, repeats + 1):
            shorter: dict[str, Any] = {"measured_grad_accum": draw.choice((1, 2))} if draw.random() < 0.3 else {}
            if draw.random() < 0.9:
                measured.append(
                    measurement(
                        on=LAYOUTS[number],
                        micro_batch=micro_batch,
                        tokens_per_s=speed * (1 + draw.gauss(0, noise)),
                        repeat=repeat,
                        **shorter,
                    )
                )
    return measured


@pytest.mark.parametrize("seed", SEEDS)
def test_every_view_shows_the_winner_s_figure(seed: int, tmp_path: Path) -> None:
    result = result_of(drawn(seed), recipes=(RECIPE,))
    of_recipe = result.of_study[0]
    best = of_recipe.winner
    (shown,) = re.findall(r"^.*\bok \*$", render(result, width=300), re.M) or [""]
    (written,) = [line for line in as_markdown(result).splitlines() if r"ok \*" in line] or [""]
    assert bool(shown) == bool(written) == (best is not None)
    if best is None:
        return
    speed = figure(best.tokens_per_s)
    (tmp_path / "made-up").mkdir()
    views = {
        "terminal": shown,
        "markdown": written,
        "answer": verdicts(result)[0],
        "page": html.unescape(page([result])),
        "team": rendered(team_parts([(tmp_path / "made-up", result)], tmp_path), width=300),
        "mlflow's tag": leader(result, tmp_path)[0]["winner"],
    }
    assert [name for name, text in views.items() if not re.search(rf"(?<![\d,.]){re.escape(speed)}(?!\d)", text)] == []
    assert as_json(result)["winner"]["tokens_per_s"] == best.tokens_per_s
    rows = tables(result)["measurements.json"]
    assert rows[0]["tokens_per_s"] == max(row["tokens_per_s"] for row in rows if row["outcome"] == "ok")
    assert best.tokens_per_s in [row["tokens_per_s"] for row in rows]
    assert roles(result)[best.id] == "measurement", "MLflow's saved views show this run"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_comparison_has_one_interval_in_every_sentence(seed: int) -> None:
    result = result_of(drawn(seed), recipes=(RECIPE,))
    of_recipe = result.of_study[0]
    for comparison in of_recipe.comparisons:
        assert comparison.low <= comparison.ratio <= comparison.high
        best, point = of_recipe.leader, of_recipe.point_of(comparison.other)
        assert best is not None and point is not None and of_recipe.beside(best, point) == comparison
        if of_recipe.runner_up is comparison.other and comparison.resolution == "faster":
            assert any(comparison.interval_words.partition(", ")[2] in sentence for sentence in lessons(result))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_order_of_lines_decides_nothing(seed: int) -> None:
    measured = drawn(seed)
    first = result_of(measured, recipes=(RECIPE,)).of_study[0]
    for other_order in range(3):
        shuffled = list(measured)
        random.Random(other_order).shuffle(shuffled)
        second = result_of(shuffled, recipes=(RECIPE,)).of_study[0]
        assert second.winner == first.winner and second.runner_up == first.runner_up
        assert [point.main_run.id for point in second.ranking] == [point.main_run.id for point in first.ranking]
        assert [point.main_run.id for point in second.unresolved] == [point.main_run.id for point in first.unresolved]
        assert second.caveats == first.caveats and second.comparisons == first.comparisons
        best = winner(shuffled)
        assert (best and best.id) == (first.leader and first.leader.main_run.id), "the search's own question"


@pytest.mark.parametrize("slow", [40000.0, 38000.0])
def test_a_verdict_is_that_of_the_table_of_comparisons(slow: float) -> None:
    """Checks two pairs, whose spread is pooled over all comparisons, on a machine slower than in the search."""
    runs = [
        measurement(on=LAYOUTS[number], tokens_per_s=speed, repeat=repeat)
        for number, speeds in enumerate(
            [(46000.0, 40000.0, 40200.0), (45000.0, 38100.0 * slow / 40000, 39000.0), (44800.0, 36900.0, 37090.0)]
        )
        for repeat, speed in enumerate(speeds)
    ]
    (result,) = result_of(runs, recipes=(RECIPE,)).by_id.values()
    contenders = [point.main_run.id for point in result.contenders[1:]]
    verdicts = {each.other.id: each.resolution for each in result.comparisons}
    still_open = [point.main_run.id for point in result.unresolved[1:]]
    assert contenders and still_open == [each for each in contenders if verdicts[each] == "not resolved"]
