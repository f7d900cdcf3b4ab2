"""Rows of studies whose runs differ from what their software does by default."""

import pytest

from platform.cost_model import stacks
from platform.cost_model.column_groups import STEP_HOST_S
from platform.cost_model.columns import from_rows
from platform.cost_model.host import SHARPNESS
from platform.cost_model.predict import predict
from platform.validate.evaluation import merged
from platform.validate.facts import normalized
from platform.validate.published_run import PublishedRun, interpret

VTRAIN = {
    "source": "vTrain measured data (Megatron-DeepSpeed, MICRO 2024)", "model": "GPT", "layers": "16",
    "hidden": "2048", "heads": "16", "vocab": "50257", "seq_len": "1024", "gpu": "A100-SXM4", "nodes": "1",
    "gpus": "8", "tp": "1", "pp": "1", "dp": "8", "strategy": "ddp", "micro_batch": "2", "grad_accum": "4",
    "activation_ckpt": "full", "precision": "fp16", "flash_attention": "no",
    "iter_time_s": "0.4", "status": "ok", "derived": "vocab;activation_ckpt(config files);software",
    "software": "megatron-deepspeed", "attention_kernel": "fused_softmax", "fused": "norm;mlp;optimizer",
}  # fmt: skip


def _run(**changes: str) -> PublishedRun:
    return interpret(normalized({**VTRAIN, **changes}))


def test_recomputation_of_a_simulator_s_configuration_is_left_out_where_the_run_fits_without() -> None:
    run = _run()
    assert run.values["full_checkpointing"] == 0 and any("simulator" in assumption for assumption in run.assumed)
    assert _run(nodes="").values == run.values
    assert [_run(micro_batch=micro_batch).values["full_checkpointing"] for micro_batch in ("16", "32")] == [0, 1]
    assert _run(micro_batch="32").values["selective_checkpointing"] == 0


def test_a_model_is_recomputed_in_all_runs_or_in_none() -> None:
    runs = [_run(micro_batch=micro_batch) for micro_batch in ("2", "32")]
    other = _run(layers="8")
    assert [run.values["full_checkpointing"] for run in merged([*runs, other])] == [1, 1, 0]
    assert [run.values["full_checkpointing"] for run in merged([runs[0], other])] == [0, 0]


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": "8", "gpus": "64", "dp": "64"},
        {"derived": "vocab"},
        {"source": "Megatron-DeepSpeed"},
    ],
)
def test_other_recomputation_stays_as_stated(changes: dict[str, str]) -> None:
    run = _run(**changes)
    assert run.values["full_checkpointing"] == 1 and not run.assumed


def test_words_that_are_not_padded_are_divided_among_the_ranks() -> None:
    assert [_run(tp=tp, dp=str(8 // int(tp))).values["vocab"] for tp in ("1", "2", "8")] == [50257, 50256, 50256]
    assert _run(source="Megatron-DeepSpeed").values["vocab"] == 50304
    assert _run(nodes="8", gpus="64", dp="64").values["vocab"] == 50304
    with stacks.without("vtrain_part.csv"):
        assert _run().values["vocab"] == 50304 and _run().values["full_checkpointing"] == 1


def test_ranks_under_megatrons_timers_wait_each_pass_and_softer_with_tensor_parallelism() -> None:
    wide = {"tp": "4", "dp": "2"}
    for changes, waits, sharpness in (
        ({}, 1, SHARPNESS),
        (wide, 1, 2.2),
        ({**wide, "strategy": "zero1"}, 0, SHARPNESS),  # DeepSpeed's engine runs the passes
        ({**wide, "software": "megatron-core"}, 0, SHARPNESS),
        ({**wide, "software": "nanotron"}, 0, SHARPNESS),
    ):
        values = _run(**changes).values
        assert (values["waits_each_pass"], values["sharpness"]) == (waits, sharpness), changes


def test_megatrons_own_optimizer_launches_few_kernels() -> None:
    for changes, seconds in (
        ({}, 0.0002),
        ({"strategy": "zero1"}, STEP_HOST_S),  # DeepSpeed's
        ({"software": "nanotron"}, STEP_HOST_S),
    ):
        assert _run(**changes).values["step_host"] == seconds, changes
    with stacks.without("vtrain_part.csv"):
        assert _run().values["step_host"] == STEP_HOST_S


def test_a_pipeline_of_nanotron_does_not_start_without_its_warm_up() -> None:
    layout = {"software": "nanotron", "pp": "4", "dp": "2", "micro_batch": "1", "activation_ckpt": "none"}

    def fits(**changes: str) -> float:
        return float(predict(from_rows([_run(**{**layout, **changes}).values])).fit_probability[0])

    assert fits(grad_accum="3") > 0.9
    assert fits(grad_accum="2") == 0
    assert fits(grad_accum="2", software="megatron-lm") > 0.9
    assert fits(grad_accum="1", pp="2", dp="4") > 0.9


def test_hooks_hold_torchs_buckets_without_zero() -> None:
    def held_gib(**changes: str) -> float:
        values = _run(**{"software": "nanotron", "activation_ckpt": "none", "micro_batch": "1", **changes}).values
        return float(predict(from_rows([values])).memory.allocated_gib[0])

    parameters = _run().model.num_parameters
    alone, beside = held_gib(dp="1", gpus="1", nodes="1"), held_gib()
    assert beside - alone == pytest.approx(2 * parameters / 2**30, rel=0.02)
    assert held_gib(software="megatron-lm") == pytest.approx(held_gib(software="megatron-lm", dp="1", gpus="1"))


ALEPH_ALPHA = {
    **VTRAIN, "source": "Aleph Alpha (arXiv 2311.05610) run sheets", "software": "other", "strategy": "zero1",
    "attention_kernel": "flash2", "flash_attention": "yes", "nodes": "8", "gpus": "64", "dp": "64", "derived": "",
}  # fmt: skip


def test_aleph_alphas_stage_1_all_reduces_whole_gradients_in_fp32() -> None:
    """Checks the bytes a parameter over a slow network: 2 x 4 are all-reduced and 2 gathered, where others scatter 2
    and gather 2.
    """

    def data_s(**changes: str) -> float:
        values = {**_run(**{**ALEPH_ALPHA, **changes}).values, "inter_bandwidth": 1e8}
        return float(predict(from_rows([values])).step.data_s[0])

    assert data_s() / data_s(source="another") == pytest.approx((8 + 2) / (2 + 2), rel=0.05)
    assert data_s(strategy="ddp") == pytest.approx(data_s(strategy="ddp", source="another"), rel=0.05)


def test_what_was_read_in_code_stays_where_the_table_is_left_out() -> None:
    with stacks.without("aleph_alpha_30b.csv"):
        assert stacks.fact("aleph-alpha", "gathers_logits", False)
        assert stacks.fact("aleph-alpha", "all_reduced_bytes", 0.0) == 4
