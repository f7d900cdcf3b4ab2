"""Rows far from evidence have intervals at least as wide as published runs of their kind are off."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from benchmarks import distant_errors
from platform.cost_model.columns import Array, Columns
from platform.cost_model.evidence import DISTANT_SIGMA, all_degrees, device_sigma, least_sigma, many_nodes
from platform.cost_model.features import from_points, joined
from platform.cost_model.hardware import ClusterSpec, calibrated_families, device_names, find_cluster, find_device
from platform.cost_model.predict import Prediction, predict
from tests.cost_model.points import GPT_39B
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

RECIPE = Recipe(model=dataclasses.replace(GPT_39B, num_layers=32, hidden_size=4096), seq_len=2048, global_batch=4096)
HALF = 1.28155
"""Deviations of a normal distribution to each end of an interval of 80 %."""


def columns_on(cluster: ClusterSpec) -> Columns:
    """Returns the rows of layouts of many degrees on all devices of `cluster`."""
    layouts = [
        Layout(engine="fsdp", zero_stage=3, tp=tp, pp=pp, cp=cp, dp_shard=cluster.num_devices // (tp * pp * cp))
        for tp, pp, cp in itertools.product((1, 2, 4, 8), (1, 2, 4), (1, 2, 4))
        if cluster.num_devices % (tp * pp * cp) == 0
    ]
    return from_points([(RECIPE, layout, BatchPoint(micro_batch=1, grad_accum=8)) for layout in layouts], cluster)


def log_widths(prediction: Prediction) -> Array:
    """Returns the log of (upper end / median) of each row."""
    return np.log(prediction.high_s / prediction.step.total_s)


def test_rows_far_from_evidence_are_as_wide_as_published_ones_are_off() -> None:
    columns = joined([columns_on(find_cluster(f"{nodes}x8xH100")) for nodes in (1, 8, 9, 16, 1024)])
    widths, nodes, degrees = log_widths(predict(columns)), many_nodes(columns), all_degrees(columns)
    assert nodes.any() and (~nodes).any() and (nodes & degrees).any() and (degrees & ~nodes).any()
    assert np.all(widths[nodes] >= HALF * DISTANT_SIGMA["nodes"] - 1e-6)
    assert np.all(widths[degrees] >= HALF * DISTANT_SIGMA["degrees"] - 1e-6)
    assert widths[~nodes & ~degrees].min() < HALF * min(DISTANT_SIGMA.values()), "near ones may be narrower"


def test_more_distance_from_evidence_never_narrows_an_interval() -> None:
    """Changes nothing in a row but how far it is: fewer devices a node, whatever they cost, and the device's family."""
    columns = columns_on(find_cluster("8x8xH100"))
    least = least_sigma(columns)
    for per_node in (4.0, 2.0, 1.0):
        closer = least
        least = least_sigma(Columns.of({**columns.arrays(), "devices_per_node": np.asarray(per_node)}))
        assert np.all(least >= closer)
    for axis in ("tp", "pp", "cp"):
        assert np.all(least_sigma(Columns.of({**columns.arrays(), axis: getattr(columns, axis) * 2})) >= closer)
    cluster = find_cluster("2x8xH100")
    near, far = (
        log_widths(predict(columns_on(dataclasses.replace(cluster, device=device))))
        for device in (cluster.device, dataclasses.replace(cluster.device, architecture="of no run"))
    )
    assert np.all(far > near) and np.all(far >= HALF * DISTANT_SIGMA["family"] - 1e-6)


@pytest.mark.parametrize("name", device_names())
def test_a_device_of_a_family_without_runs_is_at_least_as_uncertain_as_its_kind(name: str) -> None:
    device = find_device(name)
    unknown = dataclasses.replace(device, architecture="of no run")
    assert device_sigma(unknown) == max(device.sigma, DISTANT_SIGMA["family"]) >= device_sigma(device) >= device.sigma
    if device.architecture not in calibrated_families():
        assert device_sigma(device) >= DISTANT_SIGMA["family"]


def test_the_kinds_deviations_are_what_their_command_measures() -> None:
    measured = distant_errors.measured()
    assert measured.keys() == DISTANT_SIGMA.keys()
    for kind, (sigma, count) in measured.items():
        assert DISTANT_SIGMA[kind] == pytest.approx(sigma, rel=0.1) and count >= 2, kind
    before = find_device("A100-80GB")
    with distant_errors.rates_of_others("Ampere"):
        assert find_device("A100-80GB").matmul_share != before.matmul_share
    assert find_device("A100-80GB") == before and math.isfinite(sum(DISTANT_SIGMA.values()))
