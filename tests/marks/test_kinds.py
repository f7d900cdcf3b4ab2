"""Kinds of work by the names of kernels and ranges.

The names of CUDA kernels are as torch, cuBLAS, NCCL and Inductor write them; the kernels were not run here.
"""

import pytest

from trainers.marks.kinds import ATTENTION, EXCHANGE, LOSS, MICRO_STEP, OPTIMIZER_STEP, axis_of, computes, kind_of
from trainers.records.sums import Kind

BACKWARD = "autograd::engine::evaluate_function: "


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NTT", "matmul"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute", "matmul"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8>", "matmul"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>", "matmul"),
        ("triton_tem_fused_addmm_3", "matmul"),
        (
            "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, cutlass::bfloat16_t>>",
            "attention",
        ),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6_64x128x64", "attention"),
        ("triton_tem_fused_flex_attention_backward_2", "attention"),
        ("triton_per_fused__softmax_add_5", "attention"),
        ("triton_red_fused__log_softmax__to_copy_1", "loss"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>", "optimizer"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<uint4, 2>", "other"),
        ("triton_poi_fused_gelu_2", "other"),
        ("Memcpy DtoD (Device -> Device)", "other"),
    ],
)
def test_a_kernel_by_its_name_alone(kernel: str, kind: Kind) -> None:
    assert kind_of(kernel, ()) == kind


@pytest.mark.parametrize(
    ("around", "kind"),
    [
        ((MICRO_STEP, ATTENTION, "aten::linear", "aten::addmm"), "matmul"),
        ((MICRO_STEP, ATTENTION, "aten::bmm"), "attention"),
        ((MICRO_STEP, ATTENTION, "aten::add"), "attention"),
        ((MICRO_STEP, "aten::baddbmm"), "attention"),
        ((MICRO_STEP, LOSS, "aten::linear", "aten::mm"), "loss"),
        ((MICRO_STEP, "_ChunkedCrossEntropy", "aten::mm"), "loss"),
        ((MICRO_STEP, BACKWARD + "NllLossBackward0", "NllLossBackward0", "aten::nll_loss_backward"), "loss"),
        ((MICRO_STEP, "aten::linear", "aten::to", "aten::copy_"), "other"),
        ((MICRO_STEP, BACKWARD + "AddmmBackward0", "AddmmBackward0", "aten::layer_norm"), "other"),
        ((OPTIMIZER_STEP, "aten::_foreach_norm"), "optimizer"),
        ((OPTIMIZER_STEP, "Optimizer.step#AdamW.step", "aten::mm"), "optimizer"),
    ],
)
def test_where_it_was_launched_counts_before_its_name(around: tuple[str, ...], kind: Kind) -> None:
    assert kind_of("void at::native::elementwise_kernel<128, 4>", around) == kind


def test_a_collective_is_one_wherever_it_was_launched() -> None:
    assert kind_of("ncclDevKernel_AllReduce_Sum_f32_RING_LL", (OPTIMIZER_STEP, "c10d::allreduce_")) == "communication"
    assert kind_of("aten::div_", ("gloo:all_reduce", "aten::div_")) == "communication"
    assert kind_of("c10d::_allgather_base_", (f"{EXCHANGE}tp", "c10d::_allgather_base_")) == "communication"


@pytest.mark.parametrize(
    ("kernel", "around", "description", "axis"),
    [
        ("ncclDevKernel_AllGather_RING_LL", (MICRO_STEP,), "tp", "tp"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", (MICRO_STEP,), "dp_shard+cp", "dp"),
        ("ncclDevKernel_AllGather_RING_LL", (MICRO_STEP, f"{EXCHANGE}tp"), "cp", "cp"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", (OPTIMIZER_STEP,), "pp+tp", "dp"),
        ("ncclDevKernel_SendRecv", (MICRO_STEP,), "pp", "pp"),
        ("gloo:recv", (MICRO_STEP, "gloo:recv"), "", "pp"),
        ("ncclDevKernel_SendRecv", (MICRO_STEP,), "ep", "ep"),
        ("ncclDevKernel_SendRecv", (MICRO_STEP, f"{EXCHANGE}ep"), "default_pg", "ep"),
        ("gloo:all_to_all", (f"{EXCHANGE}ep", "gloo:all_to_all"), "", "ep"),
        ("gloo:all_gather", (MICRO_STEP, f"{EXCHANGE}cp", "gloo:all_gather"), "", "cp"),
        ("gloo:all_reduce", (MICRO_STEP, "gloo:all_reduce"), "", "dp"),
        ("gloo:all_reduce", (f"{EXCHANGE}default_pg", "gloo:all_reduce"), "", "tp"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", (MICRO_STEP,), "default_pg", "tp"),
    ],
)
def test_communication_goes_along_the_axis_of_its_process_group(
    kernel: str, around: tuple[str, ...], description: str, axis: str
) -> None:
    """Checks the axis of a collective; the group of all ranks has the layout's axes, here tensor parallelism alone."""
    assert axis_of(kernel, around, description, default="tp") == axis


def test_gradients_and_attention_share_the_group_of_all_ranks_where_only_sequences_are_cut() -> None:
    reduced = axis_of("ncclDevKernel_AllReduce_Sum_f32_RING_LL", (MICRO_STEP,), "default_pg", default="cp")
    gathered = axis_of("ncclDevKernel_AllGather", (f"{EXCHANGE}default_pg",), "default_pg", default="cp")
    assert (reduced, gathered) == ("dp", "cp")


def test_a_backward_pass_is_of_the_kind_of_its_forward_one() -> None:
    around = (MICRO_STEP, BACKWARD + "ToCopyBackward0", "ToCopyBackward0", "aten::copy_")
    assert kind_of("x", around) == "other"
    assert kind_of("x", around, forward=(MICRO_STEP, LOSS, "aten::to")) == "loss"
    assert kind_of("x", around, forward=(MICRO_STEP, ATTENTION, "aten::to")) == "attention"
    assert kind_of("x", (*around[:-1], "aten::mm"), forward=(MICRO_STEP, ATTENTION, "aten::addmm")) == "matmul"


def test_what_only_stands_around_work_is_none() -> None:
    for frame in (
        *("autograd::engine::evaluate_function: MmBackward0", "torch::autograd::AccumulateGrad", "MmBackward0"),
        *("c10d::_allgather_base_", "_c10d_functional::wait_tensor", "FSDP::all_gather (transformer.h.0)"),
        *("Torch-Compiled Region: 0/0", "DistributedDataParallel.forward", MICRO_STEP),
    ):
        assert not computes(frame), frame
    for work in ("aten::copy_", "fsdp::all_gather_copy_in", "## Call CompiledFxGraph fpv2a3 ##"):
        assert computes(work), work
