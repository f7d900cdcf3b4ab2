"""The difference between two measurements, and the share of each change in it."""

import dataclasses
import math

import pytest

from platform.common.errors import InputError
from platform.report.difference import difference, measurement_by_prefix
from platform.report.difference_words import sentences
from tests.samples import CONDITIONS, RECIPE, header, layout, measurement, oom
from trainers.records.journal import StudyHeader
from trainers.records.measurement import Measurement
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout

MADE_UP = (header("a"), header("b"))
H200 = Cluster(device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8, devices_per_node=4, capability=(9, 0))
KNOWN_GPU: tuple[StudyHeader, StudyHeader] = (header("a", cluster=H200), header("b", cluster=H200))

FIRST = measurement(tokens_per_s=40000.0)
SECOND = measurement(on=layout(checkpointing="full", prefetch=2), micro_batch=2, tokens_per_s=30000.0)


def test_measured_steps_between_the_two_tell_each_share():
    between = [
        measurement(on=layout(checkpointing="full"), tokens_per_s=32000.0),
        measurement(on=layout(checkpointing="full", prefetch=2), tokens_per_s=32000.0),
    ]
    explained = difference(FIRST, SECOND, MADE_UP, [FIRST, *between, SECOND])
    assert [change.names for change in explained.changes] == [("checkpointing",), ("prefetch",), ("micro_batch",)]
    assert {change.source for change in explained.changes} == {"measured"}
    ratios = [change.ratio or 0.0 for change in explained.changes]
    assert ratios == pytest.approx([40 / 32, 1.0, 32 / 30])
    assert explained.ratio == pytest.approx(math.prod(ratios)) and explained.unexplained_ratio == pytest.approx(1.0)
    lines = sentences(explained)
    assert lines[0].endswith("is 25.0% slower than FSDP2 stage 3, sync last, eager, micro-batch 1: 30,000 against "
                            "40,000 tokens/s (one run of each, so not resolved).")  # fmt: skip
    assert lines[1] == "checkpointing: none to full: 20.0% slower, 78% of the difference (measured)."
    assert lines[2] == "prefetch: 0 to 2: no difference (measured)."


def test_the_cost_model_tells_shares_that_nothing_measured_does_and_the_rest_is_said():
    explained = difference(FIRST, SECOND, KNOWN_GPU)
    assert {change.source for change in explained.changes} == {"predicted"}
    again = next(change for change in explained.changes if change.names == ("checkpointing",))
    assert 1.2 < (again.ratio or 0.0) < 1.4  # a third forward pass beside a forward and two backward ones
    assert explained.unexplained_ratio is not None and explained.ratio is not None
    parts = math.prod(change.ratio or 0.0 for change in explained.changes)
    assert parts * explained.unexplained_ratio == pytest.approx(explained.ratio)
    assert any("the cost model's error" in sentence for sentence in sentences(explained))


def test_on_devices_that_the_cost_model_does_not_know_a_share_is_said_to_be_unknown():
    explained = difference(FIRST, SECOND, MADE_UP)
    assert explained.unexplained_ratio is None and all(change.ratio is None for change in explained.changes)
    assert "its share is not known" in " ".join(sentences(explained))


def test_axes_that_cannot_change_alone_change_together():
    ddp = measurement(on=Layout(engine="ddp", dp_replicate=4), tokens_per_s=20000.0)
    explained = difference(FIRST, ddp, KNOWN_GPU)
    names = [set(change.names) for change in explained.changes]
    assert set.union(*names) == {"engine", "zero_stage", "dp_replicate", "dp_shard"}
    assert any({"dp_replicate", "dp_shard"} <= name for name in names)  # eight or sixteen devices lie between
    assert all(change.ratio is not None for change in explained.changes)


def test_recipes_and_numbers_of_devices_may_differ():
    recipe = dataclasses.replace(RECIPE, seq_len=1024)
    other = measurement(on=layout(dp_shard=2), recipe=recipe, tokens_per_s=21000.0)
    explained = difference(
        FIRST, other, (KNOWN_GPU[0], header("b", cluster=dataclasses.replace(H200, devices_per_node=2)))
    )
    assert [change.names for change in explained.changes] == [("seq_len",), ("dp_shard",)]
    assert all(change.source == "predicted" for change in explained.changes)
    assert explained.surroundings[0].names == ("devices",)


def test_the_surroundings_are_listed_once_each():
    newer = dataclasses.replace(CONDITIONS, versions={"python": "3.11", "torch": "9.9"}, commit="89abcde")
    slower = dataclasses.replace(
        FIRST, tokens_per_s=36000.0, conditions=newer, matmul_peak_tflops=600.0, sm_clock_mhz=(1200.0,),
        held_back=("power cap",), last_micro_step_s=0.3, others_gib=(22.8,), sdpa_kernel="math",
    )  # fmt: skip
    before = dataclasses.replace(
        FIRST, sm_clock_mhz=(1500.0,), last_micro_step_s=0.1, others_gib=(0.0,), sdpa_kernel="flash"
    )
    explained = difference(before, slower, MADE_UP)
    lines = sentences(explained)
    assert not explained.changes and "Recipe, layout and batch point are the same." in lines
    assert "Also torch: 0.0 to 9.9." in lines and "Also commit: 0123456 to 89abcde." in lines
    assert "Also matmul peak: 700 to 600 TFLOP/s a device." in lines
    assert "Also clock of the slowest GPU: 1,500 to 1,200 MHz." in lines
    assert "Also clocks lowered by: nothing to power cap." in lines
    assert "Also torch's kernel of sdpa: flash to math." in lines
    assert "Also GPU memory of other processes: 0 to 22.8 GiB." in lines
    assert any("the last micro-step" in line and "200 ms more" in line for line in lines)
    assert any(line.startswith("Unexplained: 10.0% slower, 100% of the difference.") for line in lines)


def test_a_warning_that_workers_of_one_alone_were_given_is_listed():
    """Checks a case from practice: a team learned of another version by a warning of c10d."""

    def warned(*texts: str) -> Measurement:
        return dataclasses.replace(FIRST, conditions=dataclasses.replace(CONDITIONS, warnings=texts))

    both, new = "UserWarning: an old one", "FutureWarning: c10d: a private function will be removed."
    lines = sentences(difference(warned(both), warned(both, new), MADE_UP))
    assert [line for line in lines if "warning to workers" in line] == [
        f"Also a warning to workers of the second alone: {new}"
    ]
    assert not any("warning to workers" in sentence for sentence in sentences(difference(FIRST, warned(new), MADE_UP)))


def test_a_measurement_without_a_speed_is_told_by_its_outcome():
    lines = sentences(difference(FIRST, oom(micro_batch=2), KNOWN_GPU))
    assert lines[0].startswith("One of the two has no speed:") and "oom (the optimizer step asked" in lines[0]


@pytest.mark.parametrize(("id_prefix", "reason"), [("zzzz", "no measurement's id begins"), ("", "has no winner")])
def test_a_measurement_that_is_not_there_is_refused(id_prefix: str, reason: str):
    with pytest.raises(InputError, match=reason):
        measurement_by_prefix([FIRST], None, id_prefix)


def test_a_measurement_is_named_by_the_beginning_of_its_id():
    measured: list[Measurement] = [FIRST, SECOND]
    assert measurement_by_prefix(measured, None, SECOND.id[:6]) is SECOND
    assert measurement_by_prefix(measured, FIRST, "") is FIRST
