"""Properties of random layouts on several nodes, beside a count of every rank's bytes."""

import dataclasses
import functools
import random
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from platform.cost_model.columns import Array, Columns
from platform.cost_model.engines import ENGINES
from platform.cost_model.features import from_points, joined
from platform.cost_model.hardware import find_cluster
from platform.cost_model.links import groups_at_a_node, spans_nodes
from platform.cost_model.step_time import StepTime, boundary_bytes, residual_bytes, step_time
from tests.cost_model.points import GPT_39B
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

COUNT = 2000
GBPS = 1e9 / 8
ENGINE_STAGES = (("ddp", 0), ("fsdp", 2), ("fsdp", 3), ("deepspeed", 0), ("deepspeed", 1), ("deepspeed", 3))
PER_NODE = (1, 2, 3, 4, 6, 8)
SPEEDS = tuple(GBPS * value for value in (0.1, 1.0, 10.0, 50.0, 100.0, 400.0, 3200.0))
MODELS = tuple(
    dataclasses.replace(GPT_39B, num_layers=96, hidden_size=3072, num_heads=96, num_kv_heads=96, tied_embeddings=tied)
    for tied in (False, True)
)
Nodes = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """A random layout on nodes of `per_node` devices."""

    layout: Layout
    per_node: int
    batch: BatchPoint

    def nodes(self) -> Nodes:
        """Returns the node of each rank, by its coordinates in (pp, dp_replicate, dp_shard, cp, tp)."""
        layout = self.layout
        shape = (layout.pp, layout.dp_replicate, layout.dp_shard, layout.cp, layout.tp)
        return (np.arange(layout.world_size) // self.per_node).reshape(shape)


def _random_layout(dice: random.Random, devices: int) -> Layout:
    degrees = dict.fromkeys(("pp", "dp_replicate", "dp_shard", "cp", "tp"), 1)
    for prime in (2, 3):
        while devices % prime == 0:
            devices //= prime
            degrees[dice.choice(tuple(degrees))] *= prime
    engine, stage = dice.choice(ENGINE_STAGES)
    if 96 % degrees["pp"]:
        degrees["dp_replicate"] *= degrees.pop("pp")
    if engine != "fsdp":
        data = degrees.pop("dp_replicate") * degrees.pop("dp_shard")
        degrees["dp_shard" if stage else "dp_replicate"] = data
    virtual = dice.choice((1, 2)) if engine != "deepspeed" and 1 < degrees.get("pp", 1) <= 48 else 1
    return Layout(
        engine=engine,
        zero_stage=stage,
        grad_sync="every" if engine == "deepspeed" and stage >= 2 else "last",
        schedule="interleaved" if virtual > 1 else "1f1b",
        virtual=virtual,
        checkpointing=dice.choice(("none", "full")),
        **degrees,
    )


@functools.cache
def _rows() -> tuple[_Row, ...]:
    dice = random.Random(17)
    rows = [
        _Row(
            layout=_random_layout(dice, dice.choice((1, 2, 2, 3, 4, 6, 8, 12, 16)) * per_node),
            per_node=per_node,
            batch=BatchPoint(micro_batch=dice.choice((1, 2, 4)), grad_accum=dice.choice((1, 2, 8, 32))),
        )
        for per_node in (dice.choice(PER_NODE) for _ in range(COUNT))
    ]
    return tuple(sorted(rows, key=lambda row: row.per_node))


@functools.cache
def _columns() -> Columns:
    """Returns the columns of `_rows`, with tied and untied embeddings, and as Megatron-LM's where it has such a row."""
    recipes = [Recipe(model=model, seq_len=2048, global_batch=512) for model in MODELS]
    parts = [
        from_points(
            [
                (recipes[number % 2], row.layout, row.batch)
                for number, row in enumerate(_rows())
                if row.per_node == per_node
            ],
            find_cluster(f"2x{per_node}xH100"),
        )
        for per_node in PER_NODE
    ]
    columns = joined(parts)
    dice = np.random.default_rng(17)
    published = (columns.engine == ENGINES.index("deepspeed")) & (columns.zero_stage < 2)
    megatron = published & (dice.random(COUNT) < 0.5)
    return _with(
        columns,
        engine=np.where(megatron, float(ENGINES.index("megatron")), columns.engine),
        own_mesh=np.where(published, 0.0, columns.own_mesh),
        sequence_parallel=np.where(published, dice.integers(0, 2, COUNT), columns.sequence_parallel),
    )


def _with(columns: Columns, **values: Array) -> Columns:
    return Columns.of({**columns.arrays(), **values})


def _step(columns: Columns) -> StepTime:
    """Returns the step of every row, one engine at a time."""
    parts: dict[str, Array] = {field.name: np.empty(COUNT) for field in dataclasses.fields(StepTime)}
    for code in np.unique(columns.engine):
        rows = np.flatnonzero(columns.engine == code)
        step = step_time(columns.take(rows))
        for name, values in parts.items():
            values[rows] = getattr(step, name)
    return StepTime(**parts)


def _by_engine(columns: Columns) -> dict[str, Array]:
    """Returns the bytes (of a sent stage's output, of the residual stream) of every row."""
    parts = {"boundary": np.empty(COUNT), "residual": np.empty(COUNT)}
    for code in np.unique(columns.engine):
        rows = np.flatnonzero(columns.engine == code)
        parts["boundary"][rows] = boundary_bytes(columns.take(rows))
        parts["residual"][rows] = residual_bytes(columns.take(rows))
    return parts


def _at(speed: float) -> Columns:
    return _with(_columns(), inter_bandwidth=np.full(COUNT, speed))


@functools.cache
def _step_at(speed: float) -> StepTime:
    return _step(_at(speed))


def _groups(nodes: Nodes, axes: tuple[int, ...]) -> Nodes:
    """Returns the nodes of the members of each group along `axes`, a row a group."""
    return np.moveaxis(nodes, axes, range(-len(axes), 0)).reshape(-1, int(np.prod([nodes.shape[i] for i in axes])))


DATA, SHARD, REPLICAS, CONTEXT, TENSOR = (1, 2, 3), (2, 3), (1,), (3,), (4,)


def _spans(axes: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    groups = (_groups(row.nodes(), axes) for row in _rows())
    return np.array([bool((members != members[:, :1]).any()) for members in groups])


def _received(nodes: Nodes, axes: tuple[int, ...]) -> float:
    """Returns the whole tensors that the node which receives most takes in, where each member of each group along
    `axes` has one part of its group's tensor, and every node with a member needs all parts.
    """
    members = _groups(nodes, axes)
    size = members.shape[1]
    inside = np.stack([(members == node).sum(axis=1) for node in range(int(nodes.max()) + 1)])
    return float(np.where(inside > 0, (size - inside) / size, 0.0).sum(axis=1).max())


def _sent(nodes: Nodes, virtual: int) -> int:
    """Returns the values that the node which sends most sends for a micro-batch to neighbouring stages, activations and
    gradients, as many a rank and virtual stage.
    """
    before, after = nodes[:-1].ravel(), nodes[1:].ravel()
    leaves = before != after
    counts = np.bincount(before[leaves], minlength=1) if leaves.any() else np.zeros(1, dtype=np.int64)
    back = np.bincount(after[leaves], minlength=1) if leaves.any() else np.zeros(1, dtype=np.int64)
    total = np.zeros(int(nodes.max()) + 1, dtype=np.int64)
    total[: len(counts)] += counts
    total[: len(back)] += back
    return virtual * int(total.max())


@functools.cache
def _bytes_over_the_cut() -> Array:
    """Returns the bytes that one node has to take in or send in a step, by the widest exchange of each row: a node's
    ports carry no more than their bandwidth in one direction. Values are counted where the mathematics needs them on
    another node, whatever the algorithm; what recomputation and a ring's detours add is left out.
    """
    c, sizes, rows = _columns(), _by_engine(_columns()), _rows()

    def received(axes: tuple[int, ...]) -> Array:
        return np.array([_received(row.nodes(), axes) for row in rows])

    fewest = np.where(c.pp > 1, np.minimum(c.first_blocks, c.last_blocks), c.layers)
    sent = np.array([_sent(row.nodes(), row.layout.virtual) for row in rows], dtype=np.float64)
    handed_on = c.grad_accum * sent * np.where(c.own_mesh > 0, sizes["residual"], sizes["boundary"]) / c.tp
    tensor = 2 * received(TENSOR) * c.grad_accum * fewest * sizes["boundary"]
    keys = c.micro_batch * c.seq_len * 2 * c.kv_width / c.tp * c.compute_bytes
    context = received(CONTEXT) * c.grad_accum * fewest * keys
    gradients = fewest * c.layer_parameters / c.tp * c.gradient_bytes
    is_fsdp = c.engine == ENGINES.index("fsdp")
    sharded = np.maximum(received(SHARD), received(REPLICAS) / c.shard)
    data = np.where(is_fsdp, sharded, received(DATA)) * gradients
    return np.max([handed_on, tensor, context, data], axis=0)


def _is_wide() -> npt.NDArray[np.bool_]:
    return np.array([row.layout.world_size > row.per_node for row in _rows()])


@pytest.mark.parametrize("speed", SPEEDS)
def test_no_step_is_faster_than_its_bytes_over_the_cut_between_nodes(speed: float) -> None:
    seconds = _bytes_over_the_cut() / speed
    total = _step_at(speed).total_s
    worst = int(np.argmin(total / np.maximum(seconds, 1e-12)))
    assert total[worst] >= seconds[worst] * (1 - 1e-9), _rows()[worst]
    # The bound is no trifle: on a slow network the cut takes most of the step in the median.
    if speed == SPEEDS[0]:
        assert np.median((seconds / total)[_is_wide()]) > 0.3


@pytest.mark.parametrize(
    ("link", "values"),
    [
        ("inter_bandwidth", SPEEDS),
        ("intra_bandwidth", tuple(1e9 * value for value in (1, 20, 100, 400))),
        ("group_bandwidth", (*SPEEDS, np.inf)),
        ("inter_latency", (1e-3, 1e-4, 1e-5, 0.0)),
        ("intra_latency", (1e-3, 1e-4, 1e-5, 0.0)),
        ("inter_hop", (1e-3, 1e-4, 1e-5, 0.0)),
    ],
)
def test_no_step_gets_slower_when_a_link_gets_faster(link: str, values: tuple[float, ...]) -> None:
    slower = _step(_with(_columns(), **{link: np.full(COUNT, values[0])})).total_s
    for value in values[1:]:
        faster = _step(_with(_columns(), **{link: np.full(COUNT, value)})).total_s
        worst = int(np.argmax(faster / slower))
        assert faster[worst] <= slower[worst] * (1 + 1e-9), _rows()[worst]
        slower = faster


def test_a_step_depends_on_the_network_just_where_ranks_stand_on_several_nodes() -> None:
    slow, fast = _step_at(SPEEDS[0]), _step_at(100 * GBPS)
    wide = _is_wide()
    assert np.all(slow.total_s[wide] > fast.total_s[wide])
    assert np.array_equal(slow.total_s[~wide], fast.total_s[~wide])
    assert 0.02 < np.mean(~wide) < 0.5


def test_each_kind_of_parallelism_depends_on_the_network_just_where_its_groups_span_nodes() -> None:
    slow, fast = _step_at(SPEEDS[0]), _step_at(100 * GBPS)
    columns, wide = _columns(), _is_wide()
    assert np.array_equal(slow.pipeline_s != fast.pipeline_s, wide & (columns.pp > 1))
    tied = wide & (columns.pp > 1) & (columns.tied > 0)
    assert np.array_equal(slow.data_s != fast.data_s, _spans(DATA) | tied)
    # Which stage of a pipeline is the slowest depends on its links too.
    alone = columns.pp == 1
    for part, axes in (("tensor_s", TENSOR), ("exchanges_s", CONTEXT)):
        differs = ~np.isclose(getattr(slow, part), getattr(fast, part), rtol=1e-9, atol=0.0)
        assert np.array_equal(differs[alone], _spans(axes)[alone])
    for kind in (_spans(DATA) & ~tied, _spans(TENSOR), _spans(CONTEXT), wide & (columns.pp > 1)):
        assert kind.sum() > 100  # the rows have all kinds


@pytest.mark.parametrize(
    ("axes", "ranks_of", "stride_of"),
    [
        (DATA, lambda c: c.dp * c.cp, lambda c: c.tp),
        (CONTEXT, lambda c: c.cp, lambda c: c.tp),
        (TENSOR, lambda c: c.tp, lambda c: np.ones(COUNT)),
    ],
)
def test_groups_at_a_node_are_those_of_its_ranks(
    axes: tuple[int, ...], ranks_of: Callable[[Columns], Array], stride_of: Callable[[Columns], Array]
) -> None:
    """Checks which groups span nodes, and that no node has ranks of more of them than share its ports."""
    c = _columns()
    ranks, stride = ranks_of(c), stride_of(c)
    spans = spans_nodes(c, ranks, stride)
    assert np.array_equal(spans, _spans(axes))
    counted = np.array([_most_groups(row.nodes(), axes) for row in _rows()])
    shared = groups_at_a_node(c, ranks, stride)
    assert np.all(counted[spans] <= shared[spans])
    aligned = spans & (ranks * stride / c.devices_per_node % 1 == 0)
    assert np.array_equal(counted[aligned], shared[aligned])


def _most_groups(nodes: Nodes, axes: tuple[int, ...]) -> int:
    """Returns the number of groups that span nodes and have a member in the same node, for the node with most."""
    members = _groups(nodes, axes)
    spanning = members[(members != members[:, :1]).any(axis=1)]
    return max((int((spanning == node).any(axis=1).sum()) for node in np.unique(nodes)), default=0)
