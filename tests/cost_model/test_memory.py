"""Laws of predicted peak memory, and the lower bound below it."""

import dataclasses
import itertools
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from platform.cost_model.columns import Columns, from_rows
from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.memory import lower_bound, outside_gib, peak_memory, peak_parts
from platform.cost_model.predict import predict
from platform.validate.published_run import interpret
from platform.validate.rows import read_rows
from tests.cost_model.points import BLOOM_7B1, GPT2, GPT_39B, fsdp, point, printed_row
from trainers.measuring.ladder import HEADROOM
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

ROOT = Path(__file__).resolve().parents[2]


def peak(columns: Columns) -> float:
    return float(peak_memory(columns).allocated_gib[0])


def fits(columns: Columns) -> bool:
    return bool(predict(columns).fits[0])


LAYOUTS = [
    Layout(engine=engine, zero_stage=stage, grad_sync=sync, checkpointing=checkpointing, **degrees)  # type: ignore[arg-type]
    for (engine, stage, sync), checkpointing, degrees in itertools.product(
        [
            ("ddp", 0, "last"),
            ("fsdp", 3, "every"),
            ("fsdp", 3, "last"),
            ("fsdp", 2, "every"),
            ("deepspeed", 0, "last"),
            ("deepspeed", 1, "last"),
            ("deepspeed", 2, "every"),
            ("deepspeed", 3, "every"),
        ],
        ["none", "selective", "full"],
        [{}, {"tp": 4}],
    )
]


@pytest.mark.parametrize(
    ("precision", "adapter"), [("bf16", "none"), ("fp16", "none"), ("fp32", "none"), ("bf16", "lora_16")]
)
def test_the_floor_is_below_every_prediction(precision: str, adapter: str) -> None:
    """Checks the lower bound, which is sound only if it also lies under the model's own estimate of the whole."""
    by_engine: defaultdict[str, list[tuple[Recipe, Layout, BatchPoint]]] = defaultdict(list)
    for layout, shard, micro_batch, grad_accum, attention in itertools.product(
        LAYOUTS, (1, 8), (1, 16), (1, 4), ("eager", "sdpa")
    ):
        degrees = {"dp_shard": shard} if layout.zero_stage else {"dp_replicate": shard}
        laid = dataclasses.replace(layout, attention=attention, **degrees)
        batch = BatchPoint(micro_batch=micro_batch, grad_accum=grad_accum)
        for model in (GPT2, BLOOM_7B1):
            recipe = Recipe(
                model=model,
                seq_len=1024,
                global_batch=micro_batch * grad_accum * shard,
                compute_precision=precision,  # type: ignore[arg-type]
                adapter=adapter,  # type: ignore[arg-type]
            )
            by_engine[laid.engine].append((recipe, laid, batch))
    for points in by_engine.values():
        peaks_gib = peak_memory(from_points(points, find_cluster("8xH200"))).allocated_gib
        for (recipe, laid, batch), peak_gib in zip(points, peaks_gib, strict=True):
            assert lower_bound(recipe, laid, batch).total_gib <= peak_gib * 1.0001, (
                f"{recipe.model.name} {laid} {batch}"
            )


def test_memory_grows_with_the_micro_batch() -> None:
    for layout in LAYOUTS:
        peaks = [peak(point(layout, cluster="8xH200", micro_batch=size, grad_accum=2)) for size in (1, 2, 4, 8)]
        assert peaks == sorted(peaks)


def test_states_by_stage_are_the_zero_papers() -> None:
    """Checks that each stage shards more of the 16 bytes that a parameter takes in all (arXiv 1910.02054, figure 1)."""
    n = BLOOM_7B1.num_parameters / 2**30
    held = {
        stage: peak_parts(
            point(
                Layout(engine="deepspeed", zero_stage=stage, dp_shard=8, grad_sync="last" if stage < 2 else "every"),
                cluster="8xH200",
                grad_accum=2,
            )
        )
        for stage in (1, 2, 3)
    }
    assert float(held[1].states[0]) == pytest.approx(n * (2 + 12 / 8))
    assert float(held[2].states[0]) == pytest.approx(n * (2 + 12 / 8))
    assert float(held[3].states[0]) == pytest.approx(n * 14 / 8)
    assert float(held[1].gradients[0]) > float(held[2].gradients[0])


@pytest.mark.parametrize(
    ("engine", "stage", "micro_batch", "measured_gib"),
    [
        ("ddp", 0, 1, 124.4), ("ddp", 0, 2, 130.2), ("fsdp", 3, 1, 113.8), ("fsdp", 2, 1, 124.8),
        ("deepspeed", 0, 1, 120.6), ("deepspeed", 0, 2, 122.6), ("deepspeed", 1, 1, 138.0),
        ("deepspeed", 2, 1, 126.2), ("deepspeed", 2, 2, 131.1), ("deepspeed", 3, 1, 128.1),
    ],
)  # fmt: skip
def test_bloom_with_full_checkpointing_on_one_h200(
    engine: str, stage: int, micro_batch: int, measured_gib: float
) -> None:
    """Compares predictions with the allocated peaks of docs/measurements."""
    sync = "every" if engine == "deepspeed" and stage >= 2 else "last"
    layout = Layout(engine=engine, zero_stage=stage, grad_sync=sync, checkpointing="full")  # type: ignore[arg-type]
    memory = peak_memory(point(layout, cluster="H200", micro_batch=micro_batch, grad_accum=512 // micro_batch))
    assert float(memory.allocated_gib[0]) == pytest.approx(measured_gib, rel=0.02)


def test_a_pipelines_first_stage_holds_most_micro_batches_and_the_last_the_logits() -> None:
    deep = Layout(engine="deepspeed", zero_stage=1, tp=8, pp=8, checkpointing="full")
    assert float(peak_memory(point(deep, cluster="8x8xA100", model=GPT_39B, grad_accum=64)).binding_rank[0]) == 0
    wide_vocabulary = dataclasses.replace(GPT_39B, vocab_size=1_000_000)
    columns = point(
        dataclasses.replace(deep, pp=2), cluster="2x8xA100", model=wide_vocabulary, micro_batch=16, grad_accum=2
    )
    memory = peak_memory(columns)
    assert float(memory.binding_rank[0]) == 2
    assert float(memory.first_device_gib[0]) < float(memory.device_gib[0])
    assert float(memory.first_allocated_gib[0]) < float(memory.allocated_gib[0])


def test_what_tensor_parallelism_divides_depends_on_the_stack() -> None:
    """Checks that norms, residual and dropout stay whole without sequence parallelism, and that a loss without a kernel
    of its own gathers the logits.
    """
    row = printed_row()
    row |= {"tp": "8", "dp": "4", "grad_accum": "8", "iter_time_s": "3", "activation_ckpt": "none"}
    kinds = {
        "split": {"software": "megatron-core", "seq_parallel": "yes", "attention_kernel": "flash2"},
        "whole": {"software": "megatron-core", "seq_parallel": "no", "attention_kernel": "flash2"},
        "gathers": {"software": "aleph-alpha", "seq_parallel": "yes", "attention_kernel": "flash2"},
    }
    held = {name: from_rows([interpret({**row, **kind}).values]) for name, kind in kinds.items()}
    assert peak(held["whole"]) > 1.3 * peak(held["split"])
    assert held["gathers"].logit_bytes > 8 * held["split"].logit_bytes


def test_a_copy_of_attentions_output_is_saved_for_more_than_one_sequence() -> None:
    """Checks the bytes of nanotron's copy: two a value of attention's width, none where the copy is a view."""
    row = printed_row()
    row |= {"tp": "1", "dp": "32", "iter_time_s": "3", "activation_ckpt": "none", "software": "nanotron"}
    for micro_batch in (1, 2):
        values = interpret({**row, "micro_batch": f"{micro_batch}", "grad_accum": f"{16 // micro_batch}"}).values
        more = [
            peak_parts(from_rows([{**values, "copies_attention": copies_attention}])).activations[0]
            for copies_attention in (1.0, 0.0)
        ]
        tokens = micro_batch * values["seq_len"] * values["layers"]
        copies = 2 * tokens * values["attention_width"] / 2**30 * (micro_batch > 1)
        assert more[0] - more[1] == pytest.approx(copies)


def test_what_comes_and_goes_wastes_more_of_the_allocators_memory() -> None:
    """Checks the share that is lost beside the tensors: 4 % of states, 8 % of activations, 2 % of both where segments
    expand.
    """
    row = printed_row()
    row |= {"tp": "1", "dp": "32", "grad_accum": "1", "micro_batch": "16", "iter_time_s": "3"}

    def lost(checkpointing: str, **changes: float) -> float:
        values = {**interpret({**row, "activation_ckpt": checkpointing}).values, **changes}
        memory = peak_memory(from_rows([values]))
        return float(memory.needed_gib[0] - outside_gib(values)) / float(memory.allocated_gib[0]) - 1

    assert 0.04 < lost("full") < lost("none") < 0.08
    assert lost("none", rounding=0.02, transient_rounding=0.02) == pytest.approx(0.02)
    of_this_project = point(fsdp(), cluster="8xA100").software
    assert of_this_project.rounding == of_this_project.transient_rounding == 0.02


def test_flat_copies_of_the_step_find_no_room_among_cached_activations() -> None:
    """Checks that the step's flat copies need memory of their own beside cached activations. With Megatron-DeepSpeed's
    GPT 200B under ZeRO-1 over 1 and 2 replicas of 80 A100, nvidia-smi showed 73 and 51 GB.
    """
    layout = Layout(engine="deepspeed", zero_stage=1, dp_shard=2, tp=8, pp=4, checkpointing="full")
    columns = point(layout, cluster="8x8xA100", model=GPT_39B, micro_batch=4, grad_accum=8, compute_precision="fp16")
    summed = dataclasses.replace(columns, gradient_bytes=np.array([2.0]))
    peak = peak_memory(summed)
    assert (peak.binding_rank[0], peak.phase[0]) == (0, 1)
    copies = (2 + 4) / 2 * (12 * columns.layer_parameters[0] + columns.embedding_parameters[0]) / 8 / 2**30
    outside = float(peak.device_gib[0] - 1.1 * (peak.allocated_gib[0] + copies))
    assert 0 < outside < 5
    # fp32 sums stand in one flat tensor already; `BF16_Optimizer` casts the table's gradient to add it to them.
    full_peak = peak_memory(columns)
    cast = 51200 * 8192 / 8 * 4 / 2**30
    assert float(full_peak.device_gib[0] - 1.1 * (full_peak.allocated_gib[0] + cast)) == pytest.approx(outside)


def test_chunks_compilers_and_fused_attention_save_what_they_should() -> None:
    plain = peak(point(fsdp(), cluster="H200", micro_batch=4))
    assert peak(point(fsdp(attention="flex"), cluster="H200", micro_batch=4)) < plain - 50
    assert peak(point(fsdp(loss="chunked"), cluster="H200", micro_batch=4)) < plain - 5
    assert peak(point(fsdp(compile="model"), cluster="H200", micro_batch=4)) < plain


def test_a_compiled_block_under_autocast_saves_the_casts_of_its_weights() -> None:
    """Checks that the block saves casts of its four weights, at 2 bytes a value, as AOTAutograd's partitioner does for
    a BLOOM block (torch 2.13, on a CPU).
    """
    casts = 30 * 12 * 4096**2 * 2 / 2**30
    layout = Layout(engine="ddp", attention="flex", loss="chunked", compile="block")
    saves = point(layout, cluster="H200", micro_batch=2, grad_accum=256)
    pure = dataclasses.replace(saves, engine=np.array([1.0]), zero_stage=np.array([3.0]))
    saved_bytes = peak_parts(saves).copies[0] - peak_parts(pure).copies[0]
    assert float(saved_bytes) == pytest.approx(casts, rel=0.2)
    # One H200 ran out of memory here; with selective checkpointing, which casts again, the same fitted at 125.5 GiB.
    assert not fits(saves)
    again = point(dataclasses.replace(layout, checkpointing="selective"), cluster="H200", micro_batch=2, grad_accum=256)
    assert peak(again) == pytest.approx(125.5, rel=0.02) and fits(again)


@pytest.mark.parametrize(
    ("layout", "micro_batch", "measured_gib"),
    [
        # Compiled under autocast eager attention saves its 16-bit scores besides the probabilities.
        (Layout(engine="ddp", loss="chunked", compile="block"), 128, 118.5),
        (Layout(engine="ddp", compile="block"), 64, 94.7),
        (fsdp(loss="chunked", compile="block"), 128, 78.9),
        # Not compiled a chunk's logits stand in 16 bits and twice in 32.
        (Layout(engine="ddp", attention="sdpa", loss="chunked"), 16, 21.8),
        (fsdp(attention="sdpa", loss="chunked"), 16, 17.7),
        (fsdp(attention="sdpa", loss="chunked"), 128, 75.8),
        (fsdp(attention="sdpa", loss="chunked", compile="block"), 128, 43.0),
    ],
)
def test_gpt2_on_one_h200(layout: Layout, micro_batch: int, measured_gib: float) -> None:
    """Compares predictions with the allocated peaks of docs/measurements/gpt2-exhaustive-1xH200.csv."""
    columns = point(
        layout, cluster="H200", model=GPT2, seq_len=1024, micro_batch=micro_batch, grad_accum=512 // micro_batch
    )
    assert peak(columns) == pytest.approx(measured_gib, rel=0.025)


def test_a_compiled_block_saves_the_scores_where_its_softmax_is_wider() -> None:
    """Checks the bytes a score against AOTAutograd's partitioner (torch 2.13, on a CPU), which saves 2 bytes a value:
    the scores' product and the probabilities in GPT-2's block under autocast and in BLOOM's in bf16, and the
    probabilities alone in GPT-2's in bf16.
    """

    def per_score(layout: Layout, model: ModelSpec) -> float:
        eager, sdpa = (
            point(
                dataclasses.replace(layout, attention=attention, loss="chunked"),  # type: ignore[arg-type]
                cluster="H200",
                model=model,
                seq_len=1024,
                micro_batch=64,
            )
            for attention in ("eager", "flex")
        )
        saved_bytes = float(peak_parts(eager).activations[0] - peak_parts(sdpa).activations[0]) * 2**30
        return saved_bytes / (64 * model.num_layers * model.num_heads * 1024**2)

    autocast = Layout(engine="ddp", compile="block")
    assert per_score(autocast, GPT2) == pytest.approx(4)
    assert per_score(fsdp(compile="block"), GPT2) == pytest.approx(2)
    assert per_score(fsdp(compile="block"), BLOOM_7B1) == pytest.approx(4)
    assert per_score(dataclasses.replace(autocast, compile="none"), GPT2) == pytest.approx(6)


def test_zero_3_holds_one_gradient_not_a_blocks() -> None:
    """Checks the copies of the 530B model of arXiv 2104.04473, table 2, of which a block's gradients would take 9.4
    GiB.
    """
    wide = dataclasses.replace(GPT_39B, hidden_size=20480, num_heads=128, num_layers=105, ffn_size=81920)
    layout = Layout(engine="deepspeed", zero_stage=3, grad_sync="every", dp_shard=640, checkpointing="full")
    copies = float(peak_parts(point(layout, cluster="80x8xA100", model=wide, micro_batch=4)).copies[0])
    largest = 20480 * 81920 * 2 / 2**30
    assert 3 * largest < copies < 3 * largest + 2


def test_parts_add_up_to_the_peak() -> None:
    columns = point(fsdp(dp_shard=8), cluster="8xH200", micro_batch=2, grad_accum=2)
    assert float(peak_parts(columns).total[0]) == pytest.approx(peak(columns))
    assert np.all(peak_memory(columns).device_gib > peak_memory(columns).needed_gib)


def test_what_pools_cannot_share_is_what_thrashed_on_h200() -> None:
    """Checks every measured row of FSDP2 whose gradient sums are whole until the last micro-step: 7 on one device, 14
    on four.
    """
    tables = (ROOT / "docs" / "measurements").glob("bloom7b*.csv")
    rows = [row for table in tables for row in read_rows(table) if row["engine"] == "fsdp" and row["peak_reserved_gib"]]
    runs = [interpret(row) for row in rows if row["grad_sync"] == "last"]
    columns = from_rows([run.values for run in runs])
    memory = peak_memory(columns)
    thrashed = np.array([run.row["outcome"] == "thrash" for run in runs])
    assert len(runs) >= 19 and 0 < thrashed.sum() < len(runs)
    assert np.array_equal(memory.pooled_gib > HEADROOM * columns.capacity_gib, thrashed)
    assert (memory.needed_gib < columns.capacity_gib).all(), "none of them is too large to run"
