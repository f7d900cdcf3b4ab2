"""Prints the peak memory in GiB of FSDP2 training runs, by torch's fake-tensor tracker. A script: it makes a fake
process group for the whole process.

    PYTHONPATH=. python tests/cost_model/track_memory.py '[{"model": {...}, "world_size": 8, "seq_len": 512, ...}]'
"""

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, BloomConfig, GPT2Config

from trainers.kernels.head import causal_lm_loss
from trainers.spec.codec import from_json
from trainers.spec.model import ModelSpec


def _config(spec: ModelSpec) -> BloomConfig | GPT2Config:
    sizes: dict[str, Any] = {"vocab_size": spec.vocab_size, "hidden_size": spec.hidden_size}
    sizes |= {"n_layer": spec.num_layers, "n_head": spec.num_heads}
    if spec.architecture == "bloom":
        return BloomConfig(**sizes, hidden_dropout=0.0, attention_dropout=0.0)
    off: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2Config(**sizes, n_positions=spec.max_positions, **off)


def peak_gib(case: dict[str, Any]) -> float:
    """Returns the peak in GiB of an optimizer step of `grad_accum` micro-steps, each of which reduces gradients."""
    mesh = init_device_mesh("cpu", (case["world_size"],))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with FakeTensorMode(), torch.device("cpu"):
        config = _config(from_json(ModelSpec, case["model"]))
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=case["attention"])
        model.train()
        if case["checkpointing"] == "full":
            model.gradient_checkpointing_enable({"use_reentrant": False})
        for block in model.transformer.h:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False, fused=True)
        tokens = torch.zeros(case["micro_batch"], case["seq_len"], dtype=torch.int64)

        def step(tracker: FSDPMemTracker | None = None) -> None:
            for _ in range(case["grad_accum"]):
                causal_lm_loss(model(tokens, use_cache=False).logits, tokens).backward()
                if tracker is not None:
                    tracker.reset_mod_stats()
            optimizer.step()
            optimizer.zero_grad()

        step()  # the first iteration also counts what sharding propagation allocates
        tracker = FSDPMemTracker(model, optimizer)
        tracker.track_inputs((tokens,))
        with tracker:
            step(tracker)
        (snapshot,) = tracker.get_tracker_snapshot("peak").values()
        return float(snapshot["Total"]) / 2**30


def main() -> None:
    """Prints one JSON list: the cases' peaks in GiB."""
    cases = json.loads(sys.argv[1])
    peaks: list[float] = []
    for case in cases:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["world_size"])
        peaks.append(peak_gib(case))
        dist.destroy_process_group()
    print(json.dumps(peaks))


if __name__ == "__main__":
    main()
