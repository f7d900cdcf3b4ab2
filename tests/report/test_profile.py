"""The parts of a step's time: the table beside the prediction, the rows and the JSON."""

import dataclasses

import pytest

from platform.report.console import rendered
from platform.report.profile import EXPOSED, parts_of, profile_json, profile_parts, profile_rows
from platform.study.history import History
from platform.study.result.result import StudyResult
from tests.samples import CLUSTER, header, layout, measurement, profile
from trainers.records.journal import Line, Measured, Profile
from trainers.spec.cluster import Cluster

H200 = dataclasses.replace(CLUSTER, device="NVIDIA H200", device_memory_gib=139.8)
BEST = measurement()
OTHER = measurement(on=layout(checkpointing="full"), tokens_per_s=1000.0)
AT = "2026-01-01T00:00:00+00:00"


def result(*profiles: Profile, cluster: Cluster = CLUSTER) -> StudyResult:
    entries: list[Line] = [header(at=AT, cluster=cluster)]
    entries += [Measured(at=AT, measurement=point) for point in (BEST, OTHER)]
    return StudyResult.of(
        History([*entries, *(dataclasses.replace(trial_profile, at=AT) for trial_profile in profiles)])
    )


def test_the_parts_add_up_and_each_line_is_there() -> None:
    parts = {part.name: part for part in parts_of(profile())}
    counted = [part for part in parts.values() if not part.parent and not part.beside and part.name != "a step"]
    assert sum(part.measured_s for part in counted) == pytest.approx(parts["a step"].measured_s) == pytest.approx(0.1)
    assert sum(part.measured_s for part in parts.values() if part.parent == "compute") == pytest.approx(
        parts["compute"].measured_s
    )
    assert parts["communication, hidden"].beside and parts["communication, hidden"].measured_s == 0.02


def test_exposed_communication_is_shown_by_the_mesh_axes_that_have_some() -> None:
    sums = dataclasses.replace(profile().sums, exposed_tp_s=0.004, exposed_pp_s=0.005, exposed_dp_s=0.001)
    parts = [part for part in parts_of(profile(sums=sums)) if part.parent == EXPOSED]
    assert [part.name for part in parts] == ["tensor parallelism", "pipeline, its bubble included", "data parallelism"]
    assert sum(part.measured_s for part in parts) == pytest.approx(sums.communication_exposed_s)
    table = rendered(profile_parts(result(profile(sums=sums))), width=120)
    place = table.index(EXPOSED)
    assert place < table.index("tensor parallelism") < table.index("idle")


def test_the_table_shows_shares_beside_those_predicted() -> None:
    table = rendered(profile_parts(result(profile(OTHER), profile(), cluster=H200)), width=120)
    lines = {line.split("  ")[0].strip() or line.strip().split("  ")[0]: line.split() for line in table.splitlines()}
    assert lines["- matmul"][-2:] == ["40.0", "40.0%"], "nothing is predicted of it"
    assert lines["compute"][1:3] == ["70.0", "70.0%"] and len(lines["compute"]) == 5
    assert lines["a step"][3] == lines["a step"][-1] == "100.0%"
    predicted = [float(lines[name][-1].rstrip("%")) for name in ("compute", "optimizer", "communication, exposed")]
    assert predicted[0] > 50 and predicted[2] > 0 and sum(predicted) <= 100.1
    assert "from 3 micro-steps each" in table and "trace-t2.json.gz (5.2 MiB)" in table
    assert table.count("Where its step goes") == 1, "the winner's, not the other's"


def test_an_unknown_device_has_no_prediction() -> None:
    table = rendered(profile_parts(result(profile())), width=120)
    assert "predicted" not in table and "matmul" in table


def test_a_trace_that_was_too_large_is_told() -> None:
    table = rendered(profile_parts(result(profile(trace="", trace_mib=70.4))), width=120)
    assert "The trace had 70 MiB and was not kept." in table


def test_without_a_profile_nothing_is_shown() -> None:
    empty = result()
    assert rendered(profile_parts(empty), width=120) == "" and profile_rows(empty) == []
    assert profile_json(empty.measured[0], empty.header) is None


def test_json_and_rows_tell_the_same() -> None:
    of_winner = result(profile(), cluster=H200)
    shown = profile_json(of_winner.measured[0], of_winner.header)
    assert shown is not None and shown["predicted"] is not None
    assert (shown["matmul_s"], shown["wall_s"], shown["trace"]) == (0.04, pytest.approx(0.1), "trace-t2.json.gz")
    rows = {row["part"]: row for row in profile_rows(result(profile(), cluster=H200))}
    assert rows["matmul"]["ms"] == pytest.approx(40) and rows["matmul"]["of"] == "compute"
    assert rows["a step"]["predicted_ms"] == pytest.approx(1e3 * shown["predicted"]["total_s"])
