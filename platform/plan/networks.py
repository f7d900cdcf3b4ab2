"""Parses networks between nodes, and finds the best layout for each network."""

import dataclasses
from collections.abc import Sequence

from rich.console import Console

from platform.common.errors import InputError
from platform.cost_model.hardware import ClusterSpec, with_network
from platform.cost_model.predict import SURE
from platform.plan.sizes import AtSize, at_size
from platform.plan.tables import INTERVAL, WIDE, batch_of, chance_of, figure, interval_of, table_of
from search_spaces.space import Space

LARGEST_GBPS = 1e6
SWEPT = "node-gbps"
_SWEEP = f"--sweep goes through one option's values, as in {SWEPT}=10,25,100,400"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AtNetwork:
    """The best layout on one network, or the reason why none fits."""

    gbit_per_s: float
    """Gbit/s per node."""
    best: AtSize


def split_network(written: str) -> tuple[str, float | None]:
    """Splits `2x8xH100@400` into the cluster and the Gbit/s per node; None without a network.

    Raises:
        InputError: the text after the @ is not a network.
    """
    name, sign, network = written.rpartition("@")
    if not sign or written.endswith(".json"):
        return written, None
    value = _gbps(network)
    if value is None or not name.strip():
        raise InputError(
            f"cluster {written!r} has {network!r} behind its @: write the Gbit/s of a node there, as in 2x8xH100@400"
        )
    return name, value


def parse_sweep(written: str) -> tuple[float, ...]:
    """Returns the networks of `node-gbps=10,25,100`, Gbit/s per node.

    Raises:
        InputError: the option or a value is invalid.
    """
    name, _, values = written.partition("=")
    if name.strip().removeprefix("--") != SWEPT:
        raise InputError(f"{_SWEEP}, got {written!r}")
    networks = [_gbps(value) for value in values.split(",")]
    wrong = [value for value, network in zip(values.split(","), networks, strict=True) if network is None]
    if wrong:
        raise InputError(f"{_SWEEP}, each above 0 and at most {LARGEST_GBPS:g} Gbit/s, got {wrong[0]!r}")
    return tuple(dict.fromkeys(network for network in networks if network is not None))


def _gbps(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= LARGEST_GBPS else None


def by_network(space: Space, cluster: ClusterSpec, networks: Sequence[float]) -> tuple[AtNetwork, ...]:
    """Returns the best layout of the space's first recipe on each network.

    Raises:
        InputError: the cluster has one node and no network between nodes.
    """
    if cluster.num_nodes == 1:
        raise InputError(
            f"--sweep {SWEPT} is for several nodes, got one of {cluster.devices_per_node} x {cluster.device.name}:"
            f" write --cluster 2x{cluster.devices_per_node}x{cluster.device.name}"
        )
    return tuple(
        AtNetwork(gbit_per_s=network, best=at_size(space, space.recipe, with_network(cluster, network / 8)))
        for network in networks
    )


def show_networks(rows: Sequence[AtNetwork], tokens: float, console: Console) -> None:
    show_best("Gbit/s", [(row.gbit_per_s, row.best) for row in rows], tokens, console, about="Gbit/s: of a node")


def show_best(name: str, rows: Sequence[tuple[float, AtSize]], tokens: float, console: Console, *, about: str) -> None:
    """Prints the best layout for each value of the quantity `name`; in a narrow terminal the layouts follow below."""
    numbered = console.width < WIDE
    names = (name, "batch", "tok/s", "step s", "80 %", "days", *(() if numbered else ("layout",)))
    table = table_of(*names, first="right")
    for column in table.columns[6:]:
        column.justify = "left"
    for value, best in rows:
        table.add_row(f"{value:g}", *_figures(best, tokens), *(() if numbered else (_layout(best),)))
    console.print(table, highlight=False)
    for value, best in rows if numbered else ():
        console.print(f"{value:>6g}  {_layout(best)}", highlight=False)
    console.print(f"{about}; batch: micro-batch x accumulated; {INTERVAL}", highlight=False)


def _figures(best: AtSize, tokens: float) -> tuple[str, ...]:
    planned = best.planned
    if planned is None:
        return ("-",) * 5
    return (
        batch_of(planned),
        figure(planned.tokens_per_s),
        figure(planned.step_s),
        interval_of(planned),
        figure(planned.days(tokens)),
    )


def _layout(best: AtSize) -> str:
    planned = best.planned
    if planned is None:
        return best.reason
    unsure = f", memory suffices with {chance_of(planned)} probability" if planned.ok_probability < SURE else ""
    return planned.layout.label + unsure
