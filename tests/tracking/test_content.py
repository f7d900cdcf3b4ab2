"""The content of an MLflow run for any entry of a journal: the same parameters, known digits, real times, a role."""

import dataclasses
import datetime
import math

import pytest

from platform.study.history import History
from platform.study.result.result import StudyResult
from platform.tracking.content import ABSENT, COMPARED, Content, Entry, PredictedFigures, content_of
from platform.tracking.study_run import outdated, roles, study_params
from platform.tracking.views import AXES, LAYOUT_METRICS, LAYOUT_PARAMS
from tests.samples import RECIPE, header, layout, measurement, miniature, oom, profile
from trainers.records.journal import GateCurves, Line, Measured
from trainers.spec.layout import Layout

AT = "2026-01-01T00:01:00.000+00:00"
BEGAN = "2026-01-01T00:00:00.000+00:00"
ENDED_MS = round(datetime.datetime.fromisoformat(AT).timestamp() * 1000)
HEADER = header(at=BEGAN, versions={"torch": "2.13"}, commit="abc", price_per_gpu_h=2.5)
GATE = GateCurves(
    trial_id="t9",
    recipe=RECIPE,
    layout=layout(),
    steps=2,
    sequences=8,
    losses=(2.123456789, 1.0),
    grad_norms=(1.0, 0.5),
    step_times_s=(4.0, 2.5),
)


def content(entry: Entry, predicted: PredictedFigures | None = None) -> Content:
    return content_of(entry, HEADER, started=BEGAN, ended=AT, predicted=predicted)


def test_every_run_has_the_same_parameters_those_of_failures_gates_and_profiles_too() -> None:
    names = {frozenset(content(entry).params) for entry in (measurement(), oom(), GATE, profile())}
    assert len(names) == 1
    (parameters,) = names
    assert {*LAYOUT_PARAMS, *AXES} <= parameters
    assert not parameters & set(study_params(HEADER)), (
        "what is the same for the whole study is on the study's run alone"
    )
    assert content(GATE).params["micro_batch"] == ABSENT


def test_what_differs_among_recipes_is_a_parameter_of_each_run_and_the_rest_is_the_study_s() -> None:
    larger = dataclasses.replace(RECIPE, global_batch=1024)
    several = dataclasses.replace(HEADER, recipes=(RECIPE, larger))
    content = content_of(measurement(recipe=larger), several, started=BEGAN, ended=AT)
    assert content.params["global_batch"] == "1024" and "seq_len" not in content.params
    shown = study_params(several)
    assert "global_batch" not in shown and shown["seq_len"] == "2048" and shown["model"] == "bloom-7b1"
    assert study_params(HEADER)["global_batch"] == "512"
    assert [shown[name] for name in ("device", "num_nodes", "version_torch", "commit", "price_per_gpu_h")] == [
        "Made-up GPU", "1", "2.13", "abc", "2.5"]  # fmt: skip


def test_where_the_accumulation_is_fixed_each_run_has_the_global_batch_that_follows() -> None:
    fixed = dataclasses.replace(RECIPE, global_batch=0, grad_accum=16)
    study = dataclasses.replace(HEADER, recipes=(fixed,))
    params = content_of(measurement(recipe=fixed, micro_batch=2), study, started=BEGAN, ended=AT).params
    assert (params["grad_accum"], params["global_batch"]) == ("16", "128")
    gate = content_of(dataclasses.replace(GATE, recipe=fixed), study, started=BEGAN, ended=AT).params
    assert gate.keys() == params.keys() and "global_batch" not in study_params(study)


def test_every_column_has_a_figure_rounded_to_what_is_known_and_shares_are_per_cent() -> None:
    measured = measurement(tokens_per_s=43012.3456, peak_device_gib=70.123456, alloc_retries=12345)
    metrics = content(measured, PredictedFigures(step_s=24.386, peak_gib=58.51234)).metrics
    assert set(LAYOUT_METRICS) <= set(metrics)
    assert metrics["tokens_per_s"] == 43010 and metrics["alloc_retries"] == 12345
    assert metrics["headroom_gib"] == 9.877 and metrics["step_spread_pct"] == 1.0
    assert metrics["predicted_step_s"] == 24.39 and metrics["predicted_gib"] == 58.51
    assert measured.share_of_matmul_peak is not None
    assert metrics["share_of_peak_pct"] == pytest.approx(100 * measured.share_of_matmul_peak, rel=1e-3)
    assert metrics["utilization_pct"] == 97.5


def test_a_point_without_figures_is_compared_as_not_a_number_and_a_gate_not_at_all() -> None:
    assert all(math.isnan(content(oom()).metrics[name]) for name in COMPARED)
    assert not set(COMPARED) & set(content(GATE).metrics) and not set(COMPARED) & set(content(profile()).metrics)


def test_names_are_short_and_say_nothing_of_a_miniature_which_a_tag_does() -> None:
    small = measurement(recipe=miniature(), on=Layout(engine="ddp", dp_replicate=2, checkpointing="full"), repeat=2)
    assert content(small).name == "DDP, ckpt full, MBS 1, run 2 (t1)"
    assert content(small).tags["miniature"] == "true" and content(measurement()).tags["miniature"] == "false"
    every = measurement(on=layout(grad_sync="every", prefetch=2, attention="sdpa"))
    assert content(every).name == "FSDP2 stage 3, sync every, prefetch 2, MBS 1 (t1)"
    assert content(measurement(sdpa_kernel="flash")).tags["sdpa_kernel"] == "flash"
    assert "sdpa_kernel" not in content(measurement()).tags
    assert content(GATE).name == "gate: FSDP2 stage 3 (t9)"
    assert content(profile()).name == "profile: FSDP2 stage 3, MBS 1 (t2)"


def test_a_role_tells_measurements_repeats_gates_and_profiles_apart() -> None:
    entries = (measurement(), measurement(repeat=1), GATE, profile())
    assert [content(entry).role for entry in entries] == ["measurement", "repeat", "gate", "profile"]
    assert len({content(entry).entry_id for entry in entries}) == 4


def test_values_of_a_series_have_the_time_at_which_their_step_ended() -> None:
    measured = measurement(
        losses=(3.0, 2.0, 1.0),
        step_times_s=(9.0, 4.0, 2.0),
        windows_s=(4.0, 1.0),
        steps_per_window=2,
        power_w=(1.0, 2.0),
        others_busy_pct=(3.0, 81.0),
        others_gib=(0.0, 22.8),
    )
    series = content(measured).series
    assert series["loss"] == ((ENDED_MS - 6000, 3.0), (ENDED_MS - 2000, 2.0), (ENDED_MS, 1.0))
    assert series["power_w"] == ((ENDED_MS - 2000, 1.0), (ENDED_MS, 2.0))
    assert series["others_busy_pct"] == ((ENDED_MS - 2000, 3.0), (ENDED_MS, 81.0))
    assert series["others_gib"] == ((ENDED_MS - 2000, 0.0), (ENDED_MS, 22.8))
    assert content(GATE).series["gate_loss"] == ((ENDED_MS - 2500, 2.123456789), (ENDED_MS, 1.0))


@pytest.mark.parametrize("seconds", [(), (1.0,), (math.inf, 1.0)])
def test_values_whose_times_are_not_known_have_that_of_the_journal_s_line(seconds: tuple[float, ...]) -> None:
    old = dataclasses.replace(GATE, step_times_s=seconds)
    assert [time_ms for time_ms, _ in content(old).series["gate_loss"]] == [ENDED_MS, ENDED_MS]


def test_no_value_is_older_than_its_rung() -> None:
    long = measurement(losses=(2.0, 1.0), step_times_s=(50.0, 90.0))
    assert content(long).series["loss"] == ((ENDED_MS - 60_000, 2.0), (ENDED_MS, 1.0))


def history(*entries: Line) -> History:
    return History([HEADER, *(dataclasses.replace(entry, at=AT) for entry in entries)])


def test_of_a_point_s_runs_the_one_of_median_speed_stands_for_it() -> None:
    again = [measurement(repeat=number, tokens_per_s=speed) for number, speed in ((1, 39e3), (2, 42e3), (3, 40e3))]
    other = measurement(micro_batch=2)
    role_by_id = roles(
        StudyResult.of(history(*(Measured(measurement=point) for point in (measurement(), other, *again))))
    )
    assert role_by_id[again[2].id] == role_by_id[other.id] == "measurement"
    assert sorted(role_by_id.values()) == ["measurement", "measurement", "repeat", "repeat", "repeat"]


def test_a_run_that_failed_stands_for_its_point() -> None:
    lost = oom(repeat=1)
    role_by_id = roles(StudyResult.of(history(Measured(measurement=measurement()), Measured(measurement=lost))))
    assert role_by_id == {measurement().id: "repeat", lost.id: "measurement"}


def test_what_no_longer_holds_of_a_winner_is_found() -> None:
    tags = {"winner": "DDP", "winner_dp": "4", "study": "one"}
    metrics = {"gpus": 4.0, "days": 3.0, "system/cpu": 1.0}
    assert outdated(tags, metrics, {}, {"gpus": 4}) == (["winner", "winner_dp"], ["days"])
