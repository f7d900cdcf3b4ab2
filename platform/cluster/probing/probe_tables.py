"""Shows a probe to people and programs, beside the datasheets' figures."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from rich.console import Console
from rich.table import Table

from platform.cluster.probing.choices import choice_sentences, disagreements
from platform.cluster.probing.findings import LAGS, laggards
from platform.common.errors import InputError
from platform.common.json_form import with_fields_of
from platform.common.text import figure
from platform.cost_model.hardware import ClusterSpec, from_cluster
from trainers.records.probe import Collective, Probe, Scope
from trainers.spec.codec import to_json

SCOPES: Mapping[Scope, str] = {
    "part": "neighbours in a node",
    "node": "inside a node",
    "cluster": "whole cluster",
    "pair": "two nodes",
}


@with_fields_of(Collective)
class RatedCollectiveForm(TypedDict):
    """One collective of one group, as measured by its slowest rank."""

    algorithm_gb_per_s: float
    """The tensor's bytes over the time, in GB/s."""
    bus_gb_per_s: float
    """Bandwidth of a link, in GB/s."""
    bus_gbit_per_s: float
    """Bandwidth of a link, in Gbit/s."""


@with_fields_of(Probe)
class JudgedProbeForm(TypedDict):
    """The results of a probe of a cluster."""

    collectives: list[RatedCollectiveForm]
    """Collectives by group, operation and size."""
    theory: dict[str, Any]
    """The catalogue's TFLOP/s by precision, and GB/s of a copy and of each group's links; empty if unknown."""
    lagging: list[str]
    """Lagging devices and nodes, a clause each."""
    disagreements: list[str]
    """Ways in which the communication library's choice is worse than the hosts' adapters allow, a sentence each."""
    file: str
    """The file that stores the probe."""


def theory(probe: Probe) -> ClusterSpec | None:
    """Returns the catalogue's figures for the probed cluster; None if its device is unknown."""
    try:
        return from_cluster(probe.cluster)
    except InputError:
        return None


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


def _of(value: float, peak: float | None) -> str:
    return "-" if not peak else f"{100 * value / peak:.0f} % of {figure(peak)}"


def _peaks(probe: Probe) -> Mapping[str, Any]:
    spec = theory(probe)
    if spec is None:
        return {}
    return {
        "tflops": spec.device.tflops,
        "copy_gb_per_s": spec.device.bandwidth_gb_per_s,
        "part": spec.intra_peak_gb_per_s,
        "node": spec.intra_peak_gb_per_s,
        # In any ring a node sends at most what its ports carry, and a device receives at most what its link carries.
        "cluster": min(spec.intra_peak_gb_per_s, spec.inter_peak_gb_per_s),
        "pair": min(spec.intra_peak_gb_per_s, spec.inter_peak_gb_per_s),
    }


def to_object(probe: Probe, path: Path) -> dict[str, Any]:
    """Returns the object of `--json`: the probe with derived figures."""
    peaks = _peaks(probe)
    return {
        **to_json(probe),
        "collectives": [
            {
                **to_json(collective),
                "algorithm_gb_per_s": collective.algorithm_gb_per_s,
                "bus_gb_per_s": collective.bus_gb_per_s,
                "bus_gbit_per_s": 8 * collective.bus_gb_per_s,
            }
            for collective in probe.collectives
        ],
        "theory": {name: dict(value) if isinstance(value, Mapping) else value for name, value in peaks.items()},
        "lagging": list(laggards(probe)),
        "disagreements": list(disagreements(probe)),
        "file": str(path),
    }


def show(probe: Probe, path: Path, console: Console) -> None:

    def print_line(text: str) -> None:
        console.print(text, highlight=False, markup=False)

    peaks = _peaks(probe)
    software = ", ".join(f"{name} {version}" for name, version in probe.software.items())
    print_line(f"{probe.cluster.label} ({software}), fingerprint {probe.fingerprint}, {probe.seconds:.0f} s")
    if not peaks:
        print_line(f"The catalogue does not know {probe.cluster.device}: nothing to compare with.")
    if probe.cut_short:
        print_line("Time ended before all was measured: what is missing below is missing.")
    print_line("\nSquare matrix products, TFLOP/s of the median device")
    console.print(_products(probe, peaks.get("tflops", {})), highlight=False)
    copied = _median([device.copy_gb_per_s for device in probe.devices])
    print_line(
        f"\nCopies within a device: {figure(copied)} GB/s ({figure(8 * copied)} Gbit/s),"
        f" {_of(copied, peaks.get('copy_gb_per_s'))}"
    )
    contexts = [device.context_gib for device in probe.devices if device.context_gib is not None]
    outside = [device.outside_gib for device in probe.devices if device.outside_gib is not None]
    if contexts:
        print_line(
            f"A bare context takes {min(contexts):.2f} GiB ({1024 * min(contexts):,.0f} MiB) of a device,"
            f" {max(outside):.2f} GiB with what libraries and communicators added by the end"
        )
    if probe.collectives:
        print_line("\nCollectives, algorithm and bus bandwidth as in nccl-tests, of the slowest group")
        for scope, label in SCOPES.items():
            of_scope = [collective for collective in probe.collectives if collective.scope == scope]
            if of_scope:
                nodes = f", {len(probe.nodes)} nodes" if scope == "cluster" else ""
                print_line(f"{label}, {of_scope[0].ranks} devices{nodes}")
                console.print(_collectives(of_scope, peaks.get(scope)), highlight=False)
    else:
        print_line("\nOne device: there is nothing to communicate with.")
    for sentence in choice_sentences(probe):
        print_line(sentence)
    for sentence in disagreements(probe):
        print_line(f"Disagree: {sentence}")
    lagging = laggards(probe)
    print_line("" if lagging else f"\nNo device or node is more than {100 * LAGS:.0f} % below the median.")
    for clause in lagging:
        print_line(f"Lags: {clause}")
    print_line(
        f"Saved as {path}: `platform.plan SPACE --cluster ray` and the order of `platform.search` use it from now on."
    )


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    return table


def _products(probe: Probe, tflops: Mapping[str, float]) -> Table:
    by_precision: dict[str, dict[int, list[float]]] = {}
    for device in probe.devices:
        for product in device.products:
            by_precision.setdefault(product.precision, {}).setdefault(product.size, []).append(product.tflops)
    sizes = sorted({size for by_size in by_precision.values() for size in by_size})
    table = _table("precision", *map(str, sizes), "best of the datasheet's")
    for precision, by_size in by_precision.items():
        rates = {size: _median(values) for size, values in by_size.items()}
        cells = [figure(rates[size]) if size in rates else "-" for size in sizes]
        table.add_row(precision, *cells, _of(max(rates.values()), tflops.get(precision)))
    return table


def _collectives(measured: Sequence[Collective], peak: float | None) -> Table:
    """Returns the slowest group's row for each operation and size."""
    slowest: dict[tuple[str, int], Collective] = {}
    for collective in measured:
        key = (collective.operation, collective.num_bytes)
        slowest[key] = max(collective, slowest.get(key, collective), key=lambda group: group.seconds)
    table = _table("  operation", "size", "ms", "alg. GB/s", "bus GB/s", "Gbit/s", "of the link")
    for collective in slowest.values():
        table.add_row(
            f"  {collective.operation.replace('_', '-')}",
            _size(collective.num_bytes),
            figure(1e3 * collective.seconds),
            figure(collective.algorithm_gb_per_s),
            figure(collective.bus_gb_per_s),
            figure(8 * collective.bus_gb_per_s),
            _of(collective.bus_gb_per_s, peak),
        )
    return table


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:g} MiB" if num_bytes >= 2**20 else f"{num_bytes / 2**10:g} KiB"
