"""Published training runs with degrees and speed, for the comparison with plans.

Speeds are tokens per second and device. `recalled` marks figures quoted from memory of the source. MPT and OPT are
represented by GPT-2 of their shapes; the global batches of llm-foundry's and torchtitan's rows have several
micro-batches.
"""

import dataclasses
from typing import Any

LLAMA3: dict[str, Any] = {"model_type": "llama", "vocab_size": 128_256, "num_key_value_heads": 8}
LLAMA3_8B = {
    **LLAMA3, "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 14_336
}  # fmt: skip
LLAMA3_70B = {
    **LLAMA3, "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "intermediate_size": 28_672
}  # fmt: skip
LLAMA3_405B = {
    **LLAMA3, "num_hidden_layers": 126, "hidden_size": 16_384, "num_attention_heads": 128, "intermediate_size": 53_248
}  # fmt: skip
QWEN3_8B = {
    "model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096, "num_attention_heads": 32, "head_dim": 128,
    "num_key_value_heads": 8, "intermediate_size": 12_288, "vocab_size": 151_936, "max_position_embeddings": 40_960,
}  # fmt: skip
BLOOM_176B = {"model_type": "bloom", "n_layer": 70, "hidden_size": 14_336, "n_head": 112, "vocab_size": 250_880}


def _gpt(layers: int, width: int, heads: int, vocabulary: int = 50_304) -> dict[str, Any]:
    return {
        "model_type": "gpt2", "n_layer": layers, "n_embd": width, "n_head": heads, "vocab_size": vocabulary,
        "n_positions": 2048,
    }  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """A run as its source states it."""

    source: str
    config: dict[str, Any]
    cluster: str
    software: str
    seq_len: int
    global_batch: int
    tokens_per_s: float
    """Tokens per second and device."""
    degrees: dict[str, Any]
    """Values of `--set`: the published layout; tp, pp and cp are 1 unless stated."""
    recalled: bool = False


RUNS = {
    "Llama-3 8B, 8 H100, torchtitan": PublishedRun(
        source="torchtitan's benchmarks, llama3 H100 202412: 8 GPUs of 96 GB and 500 W, batch 2, selective, compiled",
        config=LLAMA3_8B,
        cluster="8xH100-96GB",
        software="torchtitan",
        seq_len=8192,
        global_batch=16,
        tokens_per_s=6667,
        degrees={"zero_stage": 3, "checkpointing": "selective", "micro_batch": 2},
    ),
    "Llama-3 8B, 8 H100, NeMo": PublishedRun(
        source="NVIDIA's NeMo performance summary, Llama-3 8B pre-training in bf16: cp 2, micro-batch 1",
        config=LLAMA3_8B,
        cluster="8xH100",
        software="megatron-core",
        seq_len=8192,
        global_batch=128,
        tokens_per_s=10_682,
        degrees={"zero_stage": 1, "cp": 2, "micro_batch": 1},
    ),
    "Llama-3 70B, 64 H100, NeMo": PublishedRun(
        source="NVIDIA's NeMo performance summary, Llama-3 70B in bf16: tp 4, pp 4, cp 2, virtual 5, micro-batch 1",
        config=LLAMA3_70B,
        cluster="8x8xH100",
        software="megatron-core",
        seq_len=8192,
        global_batch=128,
        tokens_per_s=1118,
        degrees={"zero_stage": 1, "tp": 4, "pp": 4, "cp": 2, "virtual": 5, "micro_batch": 1},
    ),
    "Llama-3.1 405B, 1,024 H100, NeMo": PublishedRun(
        source="NVIDIA's NeMo performance summary, Llama-3.1 405B in bf16: tp 8, pp 8, cp 2, virtual 8, micro-batch 1",
        config=LLAMA3_405B,
        cluster="128x8xH100",
        software="megatron-core",
        seq_len=8192,
        global_batch=512,
        tokens_per_s=206.5,
        degrees={"zero_stage": 1, "tp": 8, "pp": 8, "cp": 2, "virtual": 8, "micro_batch": 1},
    ),
    "Llama-3 405B, 8,192 H100, Meta": PublishedRun(
        source="arXiv 2407.21783, table 4: tp 8, pp 16, dp 64, 430 TFLOP/s a GPU",
        config=LLAMA3_405B,
        cluster="1024x8xH100",
        software="other",
        seq_len=8192,
        global_batch=2048,
        tokens_per_s=169.5,
        degrees={"zero_stage": 3, "tp": 8, "pp": 16, "micro_batch": 1},
    ),
    "GPT-3 175B, 1,024 A100, Megatron-LM": PublishedRun(
        source="arXiv 2104.04473, section 5.1: tp 8, pp 16, 140 TFLOP/s a GPU, recomputation",
        config=_gpt(96, 12_288, 96, 51_200),
        cluster="128xdgx-a100",
        software="megatron-lm",
        seq_len=2048,
        global_batch=1536,
        tokens_per_s=96,
        degrees={"zero_stage": 0, "tp": 8, "pp": 16, "checkpointing": "full", "micro_batch": 1},
    ),
    "MPT-7B, 8 A100, llm-foundry": PublishedRun(
        source="llm-foundry's benchmark tables: MPT-7B at 2,048, micro-batch 6, no recomputation; here a GPT-2",
        config=_gpt(32, 4096, 32),
        cluster="8xA100-80GB",
        software="llm-foundry",
        seq_len=2048,
        global_batch=960,
        tokens_per_s=4641,
        degrees={"zero_stage": 3, "checkpointing": "none", "micro_batch": 6},
    ),
    "MPT-30B, 128 H100, llm-foundry": PublishedRun(
        source="llm-foundry's benchmark tables: MPT-30B at 2,048, micro-batch 8, full recomputation",
        config=_gpt(48, 7168, 56),
        cluster="16x8xH100",
        software="llm-foundry",
        seq_len=2048,
        global_batch=2048,
        tokens_per_s=2199,
        degrees={"zero_stage": 3, "checkpointing": "full", "micro_batch": 8},
    ),
    "BLOOM-176B, 384 A100, Megatron-DeepSpeed": PublishedRun(
        source="arXiv 2211.05100, section 3.4: tp 4, pp 12, dp 8, ZeRO-1, micro-batch 2, recomputation, 105 s a step",
        config=BLOOM_176B,
        cluster="48x8xA100-80GB",
        software="megatron-deepspeed",
        seq_len=2048,
        global_batch=2048,
        tokens_per_s=103.8,
        degrees={"zero_stage": 1, "tp": 4, "pp": 12, "checkpointing": "full", "micro_batch": 2},
    ),
    "Qwen3 8B, 4 B200, torchtitan": PublishedRun(
        source="torchtitan, 2026: micro-batch 16, compiled",
        config=QWEN3_8B,
        cluster="4xB200",
        software="torchtitan",
        seq_len=4096,
        global_batch=64,
        tokens_per_s=20_913,
        degrees={
            "zero_stage": 3,
            "checkpointing": "selective",
            "micro_batch": 16,
        },
    ),
    "OPT-175B, 992 A100, metaseq": PublishedRun(
        source="arXiv 2205.01068, section 2.5: FSDP, tp 8, 147 TFLOP/s a GPU",
        recalled=True,
        config=_gpt(96, 12_288, 96),
        cluster="124x8xA100-80GB",
        software="other",
        seq_len=2048,
        global_batch=992,
        tokens_per_s=137,
        degrees={"zero_stage": 3, "tp": 8, "micro_batch": 8},
    ),
}
