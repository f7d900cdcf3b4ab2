"""Models, layouts and clusters of the tests of refusals."""

import dataclasses
from typing import Any

from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

GPT2 = ModelSpec(
    name="gpt2", architecture="gpt2", num_layers=2, hidden_size=32, num_heads=4, vocab_size=97, max_positions=64
)
BLOOM = ModelSpec(name="bloom", architecture="bloom", num_layers=2, hidden_size=32, num_heads=4, vocab_size=97)
MOE = ModelSpec(
    name="moe", architecture="mixtral", num_layers=2, hidden_size=32, num_heads=4, vocab_size=97, num_experts=4,
    experts_per_token=2,
)  # fmt: skip
EVEN_MOE = dataclasses.replace(MOE, vocab_size=96)
LAYOUT = Layout(engine="fsdp", zero_stage=3, dp_shard=2, attention="sdpa")
RECIPE = Recipe(model=GPT2, seq_len=32, global_batch=8)
GPUS = Cluster(device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8, capability=(9, 0), devices_per_node=2)
CPUS = Cluster(device_kind="cpu", device="a processor", device_memory_gib=4, devices_per_node=2)
DDP: dict[str, Any] = {"engine": "ddp", "zero_stage": 0, "dp_shard": 1, "dp_replicate": 2}
GRAPHS: dict[str, Any] = {**DDP, "cuda_graphs": "on"}
OSS = dataclasses.replace(MOE, name="gpt_oss", architecture="gpt_oss")
GROUPED_BLOCKS: dict[str, Any] = {"experts": "grouped", "compile": "block"}
SHARED_OUT: dict[str, Any] = {"experts": "grouped", "ep": 2}
ZERO_1 = {"engine": "deepspeed", "zero_stage": 1}
OLD = dataclasses.replace(GPUS, device="Tesla V100", capability=(7, 0))
FLOAT8 = dataclasses.replace(RECIPE, model=BLOOM, compute_precision="fp8_tensorwise")
