"""Facts of a stack, and words of a row, change predictions."""

import numpy as np
import pytest

from platform.cost_model.columns import Columns, from_rows
from platform.cost_model.engines import megatron
from platform.cost_model.engines.exchange import slowdown
from platform.cost_model.links import Ring
from platform.cost_model.predict import predict
from platform.cost_model.stalls import stall_chance
from platform.validate.evaluation import score_table
from platform.validate.facts import normalized
from platform.validate.metrics import disturbed
from platform.validate.published_run import PublishedRun, interpret
from tests.cost_model.points import changed
from tests.validate.test_readings import NEMO


def run_of(**changes: str) -> PublishedRun:
    """Returns the run of a row without a pipeline, which states all."""
    return interpret(normalized({**NEMO, "pp": "1", "dp": "8", "vp": "1", "global_batch": "64", **changes}))


def columns_of(**changes: str) -> Columns:
    """Returns the columns of `run_of`."""
    return from_rows([run_of(**changes).values])


def data_s(**changes: str) -> float:
    """Returns the exposed seconds of data parallelism."""
    return float(predict(columns_of(**changes)).step.data_s[0])


def wide(ranks: int, **changes: str) -> dict[str, str]:
    """Returns the changes for that many data-parallel ranks without other degrees."""
    size = {"gpus": f"{ranks}", "nodes": f"{ranks // 8}", "tp": "1", "dp": f"{ranks}", "grad_accum": "4"}
    return {**size, "global_batch": f"{4 * ranks}", **changes}


def test_an_exchange_hides_where_the_stack_or_the_row_says_so() -> None:
    hidden, shown = (data_s(dp_overlap=word) for word in ("yes", "no"))
    assert hidden < 0.5 * shown
    assert data_s(source="NeMo 25.02") == pytest.approx(hidden)
    assert data_s(notes="overlap_grad_reduce: off") == pytest.approx(shown)
    # Beside a short micro-step it shows: the last bucket, and all that the pass does not cover.
    short, long = (data_s(**wide(64, dp_overlap="yes", seq_len=length, node_gbps="100")) for length in ("128", "32768"))
    assert short > 1.2 * long


def test_hidden_exchanges_between_nodes_slow_compute_less_than_those_inside() -> None:
    c = columns_of()
    inside, between = (
        slowdown(c, Ring.of(c, np.asarray(ranks), stride=stride)) for ranks, stride in ((8.0, 1), (8.0, 8))
    )
    assert float(inside[0]) == pytest.approx(0.35) and 16 / 132 < float(between[0]) < 0.2


@pytest.mark.parametrize("units", [1.0, 40.0])
def test_a_device_of_few_units_loses_no_more_to_a_collective_than_others(units: float) -> None:
    c = changed(columns_of(), units=units)
    assert float(slowdown(c, Ring.of(c, np.asarray(8.0), stride=1))[0]) == pytest.approx(0.35)


def test_owners_that_broadcast_their_parts_cost_by_ranks_and_fewer_owners_less() -> None:
    internevo = {"software": "internevo"}
    all_own, eight_own = (data_s(**wide(1024, **internevo, zero_group=group)) for group in ("1024", "8"))
    gathered = data_s(**wide(1024, dp_overlap="no"))
    assert all_own > 3 * eight_own and all_own > 2 * gathered
    # Twice as many owners: twice as many messages over twice as many hops.
    assert all_own > 2.5 * data_s(**wide(512, **internevo, zero_group="512"))


def test_buckets_of_a_stated_size_do_not_grow_with_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def exposed_s(software: str) -> tuple[float, float]:
        row = wide(1024, software=software, dp_overlap="yes", node_gbps="100", zero_group="8")
        usual = data_s(**row)
        with monkeypatch.context() as patch:
            patch.setattr(megatron, "BUCKET_PARAMETERS", 1e4)
            return usual, data_s(**row)

    usual, small = exposed_s("internevo")
    assert usual == small
    usual, small = exposed_s("megatron-core")
    assert usual != small


def test_a_stated_type_of_gradients_sets_their_bytes() -> None:
    stated = {word: run_of(gradient_precision=word).values["gradient_bytes"] for word in ("bf16", "fp16", "fp32")}
    assert stated == {"bf16": 2, "fp16": 2, "fp32": 4}


def test_a_stated_kernel_wins_over_the_stack_s_own() -> None:
    usual, stated, older = (columns_of(attention_kernel=kernel).flash.item() for kernel in ("te", "flash2", "flash1"))
    assert usual == 1.0 and stated == pytest.approx(1 / 1.38) and older < stated


def test_megatron_core_of_2024_has_neither_the_rates_nor_the_kernel_of_later_years() -> None:
    now, then = columns_of(), columns_of(source="FlagPerf, 2024")
    assert then.matmul_flops < now.matmul_flops and then.flash_flops < now.flash_flops
    assert then.software.rate_sigma > now.software.rate_sigma == 0


def test_gathered_casts_are_shared_and_held_in_one_byte() -> None:
    times = {tp: predict(columns_of(precision="fp8", tp=tp, dp="8", gpus=f"{8 * int(tp)}", nodes=tp)) for tp in "18"}
    bf16 = predict(columns_of(tp="8"))
    assert times["8"].step.tensor_s < bf16.step.tensor_s and times["1"].step.tensor_s == 0
    assert times["8"].memory.allocated_gib < bf16.memory.allocated_gib
    tensorwise, rowwise = (columns_of(precision="fp8", notes=word).matmul_flops for word in ("", "rowwise scaling"))
    assert rowwise == pytest.approx(0.8 * tensorwise)


def test_heads_are_exchanged_once_and_a_ring_merges_its_parts() -> None:
    cut = {"tp": "1", "cp": "8", "seq_len": "65536", "software": "other", "notes": "", "dp_overlap": "no"}
    ring, heads = (predict(columns_of(**cut, cp_comm=word)).step.total_s for word in ("ring", "all_to_all"))
    assert heads < ring
    eager = predict(columns_of(**{**cut, "software": "torchtitan", "strategy": "fsdp", "compile": "block"}))
    c = columns_of(**{**cut, "software": "torchtitan", "strategy": "fsdp", "compile": "block", "cp_comm": "all_to_all"})
    assert eager.step.total_s > predict(c).step.total_s


def test_data_parallelism_over_nodes_stalls_less_often_than_a_pipeline() -> None:
    nanotron = {"software": "nanotron", "activation_ckpt": "none"}
    alone = stall_chance(columns_of(**nanotron)).item()
    piped = stall_chance(columns_of(**nanotron, pp="2", dp="4", grad_accum="16")).item()
    within = stall_chance(columns_of(**nanotron, gpus="8", nodes="1", dp="1", global_batch="8")).item()
    assert 0 == within < alone < piped


def test_sums_and_logits_that_a_stack_does_not_share_are_held_whole() -> None:
    def held(software: str, **changes: str) -> float:
        row = {"software": software, "strategy": "fsdp", "state_precision": "bf16", "activation_ckpt": "full"}
        return float(predict(columns_of(**row, **changes)).memory.allocated_gib[0])

    forge = {"source": "KempnerForge"}
    parameters = run_of().model.num_parameters
    assert held("other", **forge) - held("torchtitan") > 2 * parameters / 8 / 2**30 * 0.9
    assert run_of(software="other", **forge).row["software"] == "kempnerforge"


def test_rows_whose_twin_of_another_stage_is_far_slower_are_no_part_of_regret() -> None:
    rows = [(stage, seconds) for stage, seconds in (("ddp", "3"), ("zero1", "9"))]
    rows += [("ddp", "3"), ("zero1", "3.2")]
    batches = ("1", "1", "2", "2")
    runs = [
        run_of(strategy=stage, iter_time_s=seconds, micro_batch=batch, grad_accum=f"{8 // int(batch)}")
        for (stage, seconds), batch in zip(rows, batches, strict=True)
    ]
    assert disturbed(score_table(runs), range(4)) == {0, 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"pp": "2", "dp": "4", "grad_accum": "16", "vp": "2"},
        {"grad_sync": "every"},
        {"activation_ckpt": "full", "checkpoint_blocks": "4"},
        {"compression": "powersgd_4"},
        {"strategy": "ddp"},
    ],
)
def test_rows_that_differ_in_more_than_the_stage_or_not_in_it_are_no_twins(changes: dict[str, str]) -> None:
    usual = {name: value for name, value in changes.items() if name in ("pp", "dp", "grad_accum", "activation_ckpt")}
    first = run_of(**usual, strategy="ddp", iter_time_s="3")
    second = run_of(**{**usual, "strategy": "zero1", "iter_time_s": "9", **changes})
    twin = run_of(**usual, strategy="zero1", iter_time_s="9")
    assert disturbed(score_table([first, twin]), range(2)) == {0, 1}
    assert not disturbed(score_table([first, second]), range(2))
