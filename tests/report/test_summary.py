"""The winner, the sentences, and the JSON object."""

import dataclasses
import json

import pytest

from platform.common.errors import NOT_RESOLVED
from platform.report.endings import verdict
from platform.report.json_report import as_json
from platform.report.scaling_rows import rows
from platform.report.summary import nearest, nearest_sentence, verdicts, winner_sentence
from platform.study.history import History
from platform.study.result.coverage import Coverage
from platform.study.result.ranking import winner
from platform.study.result.result import StudyResult
from tests.samples import CLUSTER, CONDITIONS, RECIPE, header, layout, measurement, miniature, oom, skipped
from trainers.records.journal import End, GateCurves, Line, Measured, Peak, Planned, PlannedLayout
from trainers.records.measurement import SETTINGS, TRAINING_STATE, Measurement, Outcome
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

FAST, SLOW = layout(checkpointing="full"), layout()


def _history(*measurements: Measurement, recipes: tuple[Recipe, ...] = (RECIPE,)) -> History:
    timestamp = "2026-01-01T00:00:00+00:00"
    entries: list[Line] = [
        header(at=timestamp, recipes=recipes),
        Peak(at=timestamp, device="d", precision="bf16", tflops=700.0),
    ]
    return History([*entries, *(Measured(at=timestamp, measurement=point) for point in measurements)])


def test_the_fastest_ok_point_wins_and_thrash_never() -> None:
    best = measurement(on=SLOW, tokens_per_s=50000.0)
    others = [
        measurement(on=SLOW, micro_batch=2, tokens_per_s=90000.0, outcome=Outcome.THRASH),
        measurement(on=FAST, tokens_per_s=45000.0),
        oom(micro_batch=4),
        skipped(micro_batch=8),
        measurement(on=FAST, micro_batch=2, tokens_per_s=float("nan")),
    ]
    assert winner([*others, best]) is best
    assert winner(others[:1] + others[3:]) is None


def test_total_tokens_count_and_not_those_of_a_device() -> None:
    two = measurement(on=Layout(engine="ddp", dp_replicate=2), tokens_per_s=30000.0)
    four = measurement(on=Layout(engine="ddp", dp_replicate=4), tokens_per_s=40000.0)
    assert winner([two, four]) is four


def test_a_confirmed_point_is_judged_by_its_confirming_runs() -> None:
    search = measurement(on=FAST, tokens_per_s=50000.0)
    runs = [measurement(on=FAST, tokens_per_s=speed, repeat=n + 1) for n, speed in enumerate([41e3, 47e3, 43e3])]
    other = [measurement(on=SLOW, tokens_per_s=speed, repeat=n) for n, speed in enumerate([49e3, 42e3, 42e3, 42e3])]
    assert winner([search, *runs, *other]) is runs[2]
    assert winner([search, *runs[:2], *other]) is other[1]  # 41,000 of two: the slower one
    failed = oom(on=FAST, repeat=4)
    assert winner([search, *runs, failed, *other]) is other[1]


def test_one_layout_of_several_is_no_winner() -> None:
    """Checks a study of two layouts of which a budget left time for one, and one of a single layout."""
    layouts = [PlannedLayout(recipe=RECIPE.id, layout=on, micro_batches=(1,)) for on in (FAST, SLOW)]

    def result(planned: int, *ran: Measurement) -> StudyResult:
        history = _history(*ran)
        history.extend([Planned(at="2026-01-01T00:00:00+00:00", layouts=tuple(layouts[:planned]))])
        return StudyResult.of(history)

    alone = result(2, measurement(on=FAST))
    assert not alone.winners and not alone.is_resolved and verdict(alone)[0] == NOT_RESOLVED
    assert verdicts(alone)[0].startswith("Measured one layout of 2 for bloom-7b1")
    for compared in (result(1, measurement(on=FAST)), result(2, measurement(on=FAST), oom(on=SLOW))):
        assert compared.winners and verdicts(compared)[0].startswith("Fastest of")


def test_the_winner_in_one_sentence() -> None:
    sentence = winner_sentence(measurement(micro_batch=2, step_time_derived=True), tokens=100e9)
    for words in ("bloom-7b1", "FSDP2 stage 3", "4 devices", "2 x 64", "~40,000 tokens/s", "28.9 days for 100B tokens"):
        assert words in sentence, sentence
    assert "% of the measured matmul peak" in sentence and "% of the data sheet's" in sentence
    small = measurement(recipe=miniature(), on=Layout(engine="ddp", dp_replicate=2))
    assert "miniature of bloom-7b1" in winner_sentence(small, tokens=1e9)


def test_what_held_its_devices_back_is_told_each_reason_once() -> None:
    reasons = ("power cap", "", "power cap, thermal")
    void = ("a shape was compiled anew",) * 2
    point = measurement(idle_devices=1, held_back=reasons, void_windows=void, windows_s=(0.2,) * 3)
    output = verdicts(StudyResult.of(_history(point)))
    assert "2 of 5 windows of its run were void and are not counted: a shape was compiled anew." in output
    assert "Clocks were lowered in 2 of 3 windows of its run: power cap, thermal." in output
    assert "1 of 4 devices were idle (under 5 % busy)." in output


def test_memory_that_other_processes_held_is_told_of_the_winner_and_of_all_measurements() -> None:
    """Checks two searches on the same GPUs, which is seen between the windows alone."""
    beside = [
        measurement(others_gib=(22.8, 0.0, 21.5)),
        measurement(micro_batch=2, tokens_per_s=30e3, others_gib=(37.3,)),
    ]
    others = [measurement(micro_batch=4, tokens_per_s=20e3, others_gib=(0.0,)), measurement(on=FAST, tokens_per_s=1.0)]
    output = verdicts(StudyResult.of(_history(*beside, *others, skipped(micro_batch=8))))
    assert "Other processes held up to 22.8 GiB of a GPU in 2 of 3 windows of its run." in output
    assert (
        "Other processes held up to 37.3 GiB of a GPU in 2 of 3 measurements: their times may not be the layouts' own."
        " End those processes and search anew; --resume keeps these times."
    ) in output
    assert not any("Other processes" in verdict for verdict in verdicts(StudyResult.of(_history(*others))))
    lost = dataclasses.replace(beside[0], outcome=Outcome.THRASH, reason="2 allocator retries")
    assert any("in 1 of 1 measurement:" in verdict for verdict in verdicts(StudyResult.of(_history(lost))))


def test_a_disturbed_point_has_the_memory_that_other_processes_held_in_the_search_and_in_its_runs() -> None:
    runs = [measurement(tokens_per_s=speed, repeat=n, others_gib=(0.0,)) for n, speed in ((1, 55e3), (2, 56e3))]
    output = verdicts(StudyResult.of(_history(measurement(others_gib=(20.0, 25.0)), *runs)))
    assert any("(other processes held 22.5, then 0 GiB of a GPU)" in verdict for verdict in output), output


def test_a_winner_without_another_layout_is_said_to_have_no_gate_to_pass() -> None:
    """Checks that the sentence appears only where a session ended by itself and left nothing out, and where the winner
    has curves only as a reference, if any.
    """
    output = "Numerics gate: none to pass, the search has no other layout to compare the winner with."
    timestamp = "2026-01-01T00:00:01+00:00"
    end = End(at=timestamp, exit_code=0, wall_s=1, gpu_s=0, why="every layout of the space was tried")
    curves = GateCurves(
        at=timestamp, trial_id="t2", recipe=RECIPE, layout=SLOW, steps=5, sequences=8, losses=(1.0,), grad_norms=(1.0,)
    )
    ends: list[tuple[bool, list[Line]]] = [
        (True, [end]),
        (True, [dataclasses.replace(curves, is_reference=True), end]),
        (False, []),
        (False, [dataclasses.replace(end, exit_code=130)]),
        (False, [dataclasses.replace(end, left_out="the winner's numerics gate")]),
        (False, [dataclasses.replace(end, why="")]),
        (False, [curves, end]),
    ]
    for is_shown, lines in ends:
        history = _history(measurement(on=SLOW))
        history.extend(lines)
        sentences = verdicts(StudyResult.of(history))
        assert (output in sentences) == is_shown, lines
        assert any("were not compared" in sentence for sentence in sentences) == (lines[:1] == [curves])


def test_what_an_engine_lacks_is_told_beside_its_winner() -> None:
    conditions = dataclasses.replace(CONDITIONS, engine_lacks=(SETTINGS, TRAINING_STATE))
    sentences = verdicts(StudyResult.of(_history(measurement(on=SLOW, conditions=conditions))))
    assert any(sentence.startswith("Not read back: ") for sentence in sentences)
    assert any(sentence.startswith("Numerics gate: not run, ") for sentence in sentences)


def test_what_came_nearest_where_nothing_fits() -> None:
    far = oom(on=layout(prefetch=1), allocated_gib=79.0, asked_gib=20.0)
    near = oom(on=layout(prefetch=2), allocated_gib=79.0, asked_gib=1.5)
    capped = oom(on=layout(prefetch=3), allocated_gib=39.0, asked_gib=1.25, cap_gib=40.0)
    assert nearest([skipped(), far, near], CLUSTER) is near
    assert nearest([skipped(), far, near, capped], CLUSTER) is capped
    assert nearest([skipped()], CLUSTER) is not None
    thrash = measurement(outcome=Outcome.THRASH, reason="2 allocator retries")
    assert nearest([near, thrash], CLUSTER) is thrash
    output = nearest_sentence(RECIPE, [far, near], CLUSTER)
    assert output.startswith("Nothing fits") and "prefetch 2" in output and "0.5 GiB too many" in output
    left = PlannedLayout(layout=layout(prefetch=3), recipe=RECIPE.id, micro_batches=(1,))
    output = nearest_sentence(RECIPE, [far, near], CLUSTER, Coverage(num_tried=2, not_tried=(left,)))
    assert (
        output.startswith("Nothing that was tried fits") and "Tried were 2 of 3 layouts: --resume continues" in output
    )
    output = nearest_sentence(RECIPE, [], CLUSTER)
    assert output.startswith("Nothing was measured") and "--resume continues" in output
    disqualified = measurement(outcome=Outcome.FAILED, reason="Numerics gate failed: ...")
    assert nearest_sentence(RECIPE, [disqualified, skipped()], CLUSTER).startswith("Nothing has won")


def test_a_recipe_of_which_all_is_skipped_does_not_fit_although_a_budget_ended_the_search() -> None:
    """Tells apart a recipe without layouts to try and one with some, of which nothing is known."""

    def verdict(*micro_batches: int) -> str:
        history, timestamp = _history(skipped(micro_batch=8)), "2026-01-01T00:00:01+00:00"
        planned = PlannedLayout(layout=skipped().layout, recipe=RECIPE.id, micro_batches=micro_batches)
        history.extend([Planned(at=timestamp, layouts=(planned,)), End(at=timestamp, exit_code=1, wall_s=1, gpu_s=0)])
        return verdicts(StudyResult.of(history))[0]

    assert verdict(8).startswith("Nothing fits")
    assert verdict(4, 8).startswith("Nothing was measured")


def test_each_recipe_has_its_own_verdict() -> None:
    other = Recipe(model=RECIPE.model, seq_len=1024, global_batch=512)
    history = _history(measurement(), measurement(recipe=other, tokens_per_s=90000.0), recipes=(RECIPE, other))
    firsts = [output for output in verdicts(StudyResult.of(history)) if output.startswith("Fastest")]
    assert [("length 2048" in output, "length 1024" in output) for output in firsts] == [
        (True, False),
        (False, True),
    ]


@pytest.mark.parametrize("tried_all", [True, False])
def test_what_was_skipped_beforehand_is_no_verdict_where_nothing_was_tried(tried_all: bool) -> None:
    """Checks the verdict of a search that a budget, or Ctrl-C, may have ended before its first trial with a recipe."""
    history = _history(skipped(), recipes=(RECIPE,))
    history.extend([End(at="2026-01-01T00:00:01+00:00", exit_code=1, wall_s=1, gpu_s=0, tried_all=tried_all)])
    (output,) = verdicts(StudyResult.of(history))
    assert output.startswith("Nothing fits" if tried_all else "Nothing was measured for bloom-7b1")
    assert rows([StudyResult.of(history)])[0].reason == (skipped().reason if tried_all else "nothing was measured")


def test_json_has_every_field_and_is_json_for_any_reader() -> None:
    diverged = measurement(on=FAST, outcome=Outcome.DIVERGED, losses=(1.0, float("nan")), tokens_per_s=None)
    history = _history(measurement(), diverged, oom(micro_batch=4), skipped(micro_batch=8))
    text = json.dumps(as_json(StudyResult.of(history)), allow_nan=False)
    data = json.loads(text)
    promised = [
        "study",
        "space",
        "recipe",
        "miniature",
        "cluster",
        "winner",
        "tie",
        "measurements",
        "skipped",
        "wall_s",
        "gpu_s",
    ]
    assert set(promised) <= set(data)
    assert data["study"] == "made-up" and data["tie"] is None and data["miniature"] is False
    assert data["recipe"]["id"] == RECIPE.id and data["winner"]["id"] == measurement().id
    assert [row["outcome"] for row in data["measurements"]] == ["ok", "diverged", "oom"]
    first = data["measurements"][0]
    for name in (
        "id", "layout", "batch", "outcome", "tokens_per_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu",
        "peak_allocated_gib", "peak_reserved_gib", "days",
    ):  # fmt: skip
        assert first[name] is not None, name
    assert first["layout"]["id"] == SLOW.id and first["batch"] == {"micro_batch": 1, "grad_accum": 128}
    assert data["measurements"][1]["losses"] == [1.0, None]
    assert data["skipped"][0]["layout"]["label"] == SLOW.label and "105.3 GiB" in data["skipped"][0]["reason"]


def test_json_without_a_winner() -> None:
    data = as_json(StudyResult.of(_history(oom())))
    assert data["winner"] is None and len(data["measurements"]) == 1


@pytest.mark.parametrize("fields", [{"layout", "batch"}])
def test_nothing_of_the_layout_is_lost_in_json(fields: set[str]) -> None:
    (row,) = as_json(StudyResult.of(_history(measurement(on=layout(prefetch=2, bucket_mib=25)))))["measurements"]
    assert fields <= set(row)
    assert (row["layout"]["prefetch"], row["layout"]["bucket_mib"]) == (2, 25)


def test_a_winner_at_the_end_of_what_was_listed_says_so() -> None:
    timestamp, best = "2026-01-01T00:00:00+00:00", measurement(on=layout(prefetch=2), micro_batch=4)

    def sentences_of(*micro_batches: int) -> list[str]:
        layouts = tuple(
            PlannedLayout(layout=on, recipe=RECIPE.id, micro_batches=micro_batches) for on in (best.layout, layout())
        )
        cluster = dataclasses.replace(CLUSTER, capability=(9, 0), device_memory_gib=500.0)
        slower = measurement(on=layout(), tokens_per_s=1.0)
        ran = [Measured(at=timestamp, measurement=point) for point in (best, slower)]
        lines = [header(at=timestamp, cluster=cluster), *ran]
        history = History([*lines, Planned(at=timestamp, layouts=layouts)])
        return [sentence for sentence in verdicts(StudyResult.of(history)) if "listed" in sentence]

    prefetch = "prefetch 2 is the largest value listed, and 4 was not tried: --set prefetch=2,4 tries both."
    assert sentences_of(1, 4, 8) == [prefetch], "8 was tried"
    assert sentences_of(2, 4) == [
        prefetch,
        "micro_batch 4 is the largest value listed, and 8 was not tried: --set micro_batch=4,8 tries both.",
    ]
