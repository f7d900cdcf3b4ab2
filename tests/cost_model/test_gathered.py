"""Inputs that sequence parallelism gathers, and what communication's streams free late: as printed, as must fit."""

import pytest

from platform.cost_model.columns import from_rows
from platform.cost_model.memory import peak_memory, peak_parts
from platform.validate.published_run import interpret
from tests.cost_model.points import printed_row


def test_a_pipelines_first_passes_hold_gathered_inputs_though_its_host_is_behind() -> None:
    """Checks the share of gathered inputs that a stack keeps where the device waits: all but two micro-batches of those
    in flight.
    """
    row = printed_row()
    row |= {"tp": "8", "dp": "1", "micro_batch": "1", "grad_accum": "64", "global_batch": "64", "iter_time_s": "3"}
    row |= {"software": "nanotron", "gpu": "H100-SXM-80GB", "activation_ckpt": "none", "source": ""}

    def held_gib(pp: int, **changes: float) -> float:
        values = interpret({**row, "pp": f"{pp}", "nodes": f"{pp}", "gpus": f"{8 * pp}"}).values
        return float(peak_parts(from_rows([{**values, "block_host": 1.0, **changes}])).activations[0])

    for pp in (2, 4, 8):
        free, all_held = held_gib(pp, keeps_gathered=0.0), held_gib(pp, saves_gathered=1.0)
        assert held_gib(pp) - free == pytest.approx((1 - 2 / pp) * (all_held - free), rel=1e-6, abs=1e-9)
        assert held_gib(pp, block_host=0.0, block_host_backward=0.0, host_pipe=0.0) == pytest.approx(all_held)


def test_the_allocator_gets_half_of_what_a_stream_holds_back_before_it_fails() -> None:
    """Checks what must fit beside what is printed, where a stack's stream holds all gathered inputs, or none of them:
    half in both.
    """
    row = printed_row()
    row |= {"tp": "8", "dp": "1", "pp": "2", "nodes": "2", "gpus": "16", "micro_batch": "4", "grad_accum": "16"}
    row |= {"software": "nanotron", "gpu": "H100-SXM-80GB", "activation_ckpt": "none", "source": ""}
    values = interpret({**row, "global_batch": "64", "iter_time_s": "3"}).values

    def peaks(**changes: float) -> tuple[float, float]:
        peak = peak_memory(from_rows([{**values, **changes}]))
        return float(peak.allocated_gib[0]), float(peak.needed_gib[0])

    freed, needed_freed = peaks(keeps_gathered=0.0)
    saved, needed_saved = peaks(keeps_gathered=0.0, saves_gathered=1.0)
    ahead, behind = peaks(block_host=0.0, block_host_backward=0.0, host_pipe=0.0), peaks(block_host=1.0)
    assert ahead[0] == pytest.approx(saved) and behind[0] == pytest.approx(freed) and saved > freed + 1
    assert ahead[1] == pytest.approx(behind[1]) == pytest.approx((needed_freed + needed_saved) / 2)


def test_tensors_freed_late_leave_gaps_under_tensor_parallelism_without_recomputation() -> None:
    row = printed_row()
    row |= {"source": "", "iter_time_s": "3", "dp": "", "grad_accum": ""}

    def gaps(**changes: str) -> float:
        return interpret({**row, **changes}).values["transient_rounding"]

    usual = gaps(tp="1", activation_ckpt="none", software="nanotron")
    assert gaps(tp="2", activation_ckpt="none", software="nanotron") > 2 * usual
    assert gaps(tp="2", activation_ckpt="full", software="nanotron") == usual
    assert gaps(tp="2", activation_ckpt="none", software="megatron-core") == usual
