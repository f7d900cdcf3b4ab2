"""The scores of a table by hand: rank correlation, regret, baselines, calibration, and cells."""

import dataclasses
import json

import numpy as np
import pytest

from platform.validate.__main__ import main
from platform.validate.evaluation import cells_of, constant_mfu, merged, score_table
from platform.validate.metrics import near_best, regret, scores, spearman
from platform.validate.rows import read_rows
from platform.validate.validation import validate
from tests.cost_model.points import TABLES
from tests.validate.test_validate import MEASUREMENTS, tr3m


def test_calibrating_rows_are_never_scored() -> None:
    runs = merged(tr3m())
    scored = score_table(runs, num_calibrate=3)
    assert int(scored.used.sum()) == 6  # three in each of two cells
    report = scores(scored, range(len(runs)), 0)
    assert report.rows_scored == len(runs) - 6
    plain = scores(score_table(runs), range(len(runs)), 0)
    assert report.step_time_ape_median is not None and plain.step_time_ape_median is not None
    assert report.step_time_ape_median < plain.step_time_ape_median


def test_where_all_was_measured_nothing_is_scored(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(TABLES / "tr3m_1b3.csv"), "--json", "--calibrate", "100"]) == 0
    overall = json.loads(capsys.readouterr().out)["overall"]
    for name in ("step_time_ape_median", "rank_correlation", "regret_median", "regret_mean", "interval_coverage"):
        assert overall[name] is None, name
    assert overall["rows_scored"] == 4, "those out of memory, which no search would learn times from"


def test_identical_configurations_are_one_by_their_median() -> None:
    runs = tr3m()
    again = [dataclasses.replace(runs[0], step_time_s=time) for time in (27.0, 31.0, 50.0)]
    (merged_run,) = merged(again)
    assert merged_run.step_time_s == 31.0 and merged_run.num_merged == 3


def test_rank_correlation_by_hand() -> None:
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 30.0])) == pytest.approx(1)
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([30.0, 20.0, 10.0])) == pytest.approx(-1)
    assert spearman(np.array([1.0, 2.0, 2.0, 4.0]), np.array([1.0, 3.0, 2.0, 4.0])) == pytest.approx(0.9487, abs=1e-4)
    assert spearman(np.array([1.0, 2.0]), np.array([1.0, 2.0])) is None


def test_rows_near_their_cells_best_are_the_same_by_cells_as_of_all() -> None:
    scored = score_table(merged(tr3m()))
    every = near_best(scored)
    assert 0 < every.sum() < len(every)
    for rows in cells_of(scored.runs).values():
        of_cell = near_best(scored, rows)
        assert np.array_equal(np.flatnonzero(of_cell), [row for row in rows if every[row]])


def test_regret_by_hand() -> None:
    runs = tr3m()[:5]
    scored = score_table(runs)
    scored = dataclasses.replace(
        scored,
        measured_s=np.array([10.0, 11.0, 12.0, 13.0, 20.0]),
        predicted_s=np.array([9.0, 8.0, 7.0, 6.0, 1.0]),
        predicted_fits=np.array([True, True, True, True, False]),
    )
    assert regret(scored, range(5)) == pytest.approx(0.3)
    assert regret(scored, range(3)) is None


def test_the_baseline_is_one_share_of_the_peak() -> None:
    runs = merged(tr3m())
    baseline = constant_mfu(score_table(runs))
    shares = {round(float(share), 6) for share in baseline.rate / baseline.predicted_s}
    assert len(shares) == 1


def test_a_baseline_that_cannot_tell_rows_apart_has_their_mean_regret() -> None:
    runs = tr3m()[:4]
    scored = dataclasses.replace(
        score_table(runs), measured_s=np.array([10.0, 11.0, 12.0, 13.0]), predicted_fits=np.ones(4, dtype=bool)
    )
    alike = dataclasses.replace(scored, expected_s=np.full(4, 5.0))
    backwards = dataclasses.replace(alike, measured_s=alike.measured_s[::-1].copy())
    assert regret(alike, range(4)) == regret(backwards, range(4)) == pytest.approx(0.15)


def test_a_first_choice_that_ran_out_of_memory_is_counted_beside_the_regret() -> None:
    runs = tr3m()[:5]
    scored = dataclasses.replace(
        score_table(runs),
        measured_s=np.array([10.0, 11.0, 12.0, 13.0, np.nan]),
        out_of_memory=np.array([False, False, False, False, True]),
        expected_s=np.array([6.0, 7.0, 8.0, 9.0, 5.0]),
        predicted_fits=np.ones(5, dtype=bool),
    )
    chosen = scores(scored, range(5), 0)
    assert (chosen.regret_mean, chosen.oom_first_choices, chosen.oom_missed) == (0.0, 1, 1)
    alternative = dataclasses.replace(scored, predicted_fits=~scored.out_of_memory)
    assert scores(alternative, range(5), 0).oom_first_choices == 0


def test_what_was_measured_can_be_chosen_though_it_was_not_predicted_to_fit() -> None:
    runs = tr3m()[:4]
    scored = dataclasses.replace(
        score_table(runs),
        measured_s=np.array([10.0, 14.0, 12.0, 13.0]),
        expected_s=np.array([20.0, 11.0, 12.0, 13.0]),
        predicted_fits=np.array([False, True, True, True]),
    )
    assert regret(scored, range(4)) == pytest.approx(0.4)
    assert regret(dataclasses.replace(scored, used=np.array([True, False, False, False])), range(4)) == 0.0


def test_recipes_do_not_share_a_cell_nor_are_their_rows_merged() -> None:
    """Checks Adafactor's rows beside the same rows of another recipe; published tables state no recipe and are
    unchanged.
    """
    own_rows = read_rows(MEASUREMENTS / "gpt2-adafactor-1xH200.csv")
    report = validate([*own_rows, *({**row, "recipe": "another"} for row in own_rows)])
    assert report.num_merged_away == 2 * validate(own_rows).num_merged_away
    first, second = report.cells
    assert first.ours == second.ours and first.cell[:-1] == second.cell[:-1]
    assert {first.label.partition(", recipe ")[2], second.label.partition(", recipe ")[2]} == {
        own_rows[0]["recipe"],
        "another",
    }
    (alone,) = validate(own_rows).cells
    assert "recipe" not in alone.label


def test_small_cells_can_be_left_aside(capsys: pytest.CaptureFixture[str]) -> None:
    rows = read_rows(TABLES / "tr3m_1b3.csv")
    every = validate(rows, num_calibrate=3)
    sizes = {report.cell: report.ours.rows_scored + 3 for report in every.cells}
    assert sorted(sizes.values()) == [11, 16]
    large = validate(rows, num_calibrate=3, min_cell=12)
    assert [report.cell for report in large.cells] == [max(sizes, key=lambda cell: sizes[cell])]
    assert large.overall == large.cells[0].ours and large.num_small == 11
    table = str(TABLES / "tr3m_1b3.csv")
    assert main([table, "--calibrate", "3", "--min-cell", "6"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "cells not looked" not in out and "before calibrating: step time, median error 8.4 %" in out
    assert main([table, "--min-cell", "17"]) == 2 and main([table, "--min-cell", "0"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: no cell has 17 configurations: the largest has 16",
        "error: --min-cell must be at least 1, got 0",
    ]


def test_several_tables_are_scored_together(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("gpt2-gated-1xH200.csv", "gpt2-profiled-1xH200.csv", "gpt2_zero-1xH200.csv")
    scored: list[int] = []
    for table_names in (names[:1], names[:2], names):
        assert main([*(str(MEASUREMENTS / name) for name in table_names), "--json"]) == 0
        scored.append(json.loads(capsys.readouterr().out)["overall"]["rows_scored"])
    assert scored == [2, 2, 10], "the second has the points of the first, the third eight of its own"
