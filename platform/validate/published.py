"""Reads a published row's columns, with the stack's usual settings for missing facts."""

import math
from typing import Any

from platform.cost_model import constants
from platform.cost_model.column_groups import ROUNDING, SHARPNESS, STEP_HOST_S
from platform.cost_model.features import PREFETCH, UNFUSED_NORM_BYTES, UNFUSED_NORM_PASSES, TrainingWork
from platform.cost_model.hardware import ClusterSpec
from platform.cost_model.host import COUNTED_SIGMA, FUSED_LAUNCHES, MODULE_BACKWARD_S, MODULE_LAUNCH_S
from platform.cost_model.kernels import activation_passes, inner_copies, logit_bytes, loss_kind, pads_vocabulary
from platform.cost_model.stack_columns import STACK_HOST, stack_costs
from platform.cost_model.stacks import fact, flash_ratio, has, matmul_ratio
from platform.validate.cells import Row, choice, number, within_node
from platform.validate.row_software import data_parallelism_of, software_of
from trainers.spec.architectures import architecture_of
from trainers.spec.architectures.architecture import Architecture
from trainers.spec.model import ModelSpec

FLASH_RATE = constants.words("published", "FLASH_RATE")
HOPPER_RATE = constants.words("published", "HOPPER_RATE")
EAGER_SOFTMAX_S = constants.number("published", "EAGER_SOFTMAX_S")
UNFUSED_LAUNCHES = constants.words("published", "UNFUSED_LAUNCHES")
FUSED_ATTENTION = ("flash1", "flash2", "flash3", "flash4", "sdpa", "flex", "te")
_STATES = (("adafactor", 0.0), ("lion", 1.0), ("muon", 1.0), ("sgd", 1.0))
"""fp32 states per parameter besides its master copy for optimizers other than Adam (a momentum, or factored)."""
_PRECISIONS = {"mxfp8": "fp8", **{name: name for name in ("fp8", "bf16", "fp16", "tf32", "fp32")}}
"""Types of matrix products and their names in this project."""


def precision_of(row: Row) -> tuple[str, float, float]:
    """Returns (precision of products, bytes of master states, bytes of a summed gradient)."""
    stated = row.get("matmul_precision") or row["precision"]
    compute = _PRECISIONS.get(stated)
    if compute is None:
        raise ValueError(f"precision {stated!r} is not known" if stated else "precision not stated")
    state = 2.0 if row.get("state_precision") == "bf16" else 4.0
    return compute, state, 4.0 if row.get("gradient_precision") == "fp32" else 2.0


def is_flash(row: Row, cluster: ClusterSpec) -> bool:
    """Returns whether attention is fused: as stated, else as usual for the software, or for devices newer than A100."""
    if row.get("attention_kernel"):
        return row["attention_kernel"] in FUSED_ATTENTION
    if row.get("flash_attention") or row.get("attention"):
        return row.get("flash_attention") == "yes" or row.get("attention") in ("sdpa", "flex")
    device = cluster.device.name[:4]
    usual = device != "V100" and (fact(software_of(row), "flash", False) or data_parallelism_of(row) == "fsdp")
    return usual or device not in ("V100", "A100")


def compile_of(row: Row) -> str:
    """Returns the parts given to torch.compile as a value of the layout's axis. "yes" becomes the parts that the
    software compiles, or whole blocks if unknown.
    """
    stated = row.get("compile", "")
    return str(fact(software_of(row), "compiles", "block")) if stated.lower() == "yes" else stated or "none"


def stack_features(row: Row, work: TrainingWork, cluster: ClusterSpec, split: float) -> dict[str, float]:
    """Returns the features of the row's software, which replace those of this project's engines.

    Every engine of this project reduces and sums in the states' type. Stacks with fused attention are newer than
    DeepSpeed 0.6.
    """
    engine, of_this_project = data_parallelism_of(row), bool(row.get("engine"))
    software = software_of(row)
    model, flash = work.model, is_flash(row, cluster)
    searched = of_this_project and not row.get("bare_loop")
    _, state_bytes, low_gradient_bytes = precision_of(row)
    whole_sums = has(engine, "sums_in_states_type") or searched
    usual_sums = state_bytes if whole_sums else max(low_gradient_bytes, work.compute_bytes)
    fused = compile_of(row) != "none" if of_this_project else row.get("eager") != "yes"
    loss = loss_of(row, flash)
    stepwise = work.modules.stepwise_activation if work.modules else None
    lacks = unfused_of(row) if fused and not of_this_project else ()
    mlp: dict[str, Any] = {
        "gated": model.gated,
        "fused": fused and "mlp" not in lacks,
        "mlp": row.get("mlp") or "plain",
    }
    joined = of_this_project and model.num_experts > 0
    forward, backward = activation_passes(stepwise, joined=joined, casts=work.precision == "fp8", **mlp)
    features = {
        **stack_costs(software, row.get("tp_overlap", ""), row.get("dp_overlap", ""), row.get("cp_comm", "")),
        "rate_sigma": 0.0 if of_this_project else matmul_ratio(software, cluster.device.architecture)[1],
        **_host_costs(row, fused=fused),
        "vocab": _vocabulary(row, model.vocab_size, split),
        **_pace(software, engine, split),
        "sequence_parallel": float(splits_sequence(row, split)),
        "saves_gathered": float(of_this_project),
        "own_mesh": float(of_this_project),
        "checkpoint_blocks": number(row, "checkpoint_blocks") or 1.0,
        "checkpoint_device_share": checkpoint_device_share(row, split),
        "repeats_core_alone": float(fact(software, "repeats_core_alone", False)),
        "fused": float(fused),
        "fused_softmax": float(fused),
        "eager_softmax": float(row.get("attention_kernel") == "eager" and fact(software, "softmax_in_fp32", False)),
        "unfused_norm_passes": UNFUSED_NORM_PASSES * ("norm" in lacks),
        "unfused_norm_bytes": UNFUSED_NORM_BYTES * ("norm" in lacks),
        "rotary": float(model.position == "rotary") * (2.0 if "rope" in lacks else 1.0),
        "inner_copies": inner_copies(stepwise, **mlp),
        "activation_forward": forward,
        "activation_backward": backward,
        **_loss_bytes(row, loss, work, split),
        "pads_vocabulary": float(pads_vocabulary(loss) or row.get("loss") in ("chunked", "quack")),
        "rounding": ROUNDING["expandable" if searched else "blocks"],
        "transient_rounding": ROUNDING["expandable" if searched else _pieces(row, split)],
        "hidden_gathers": PREFETCH["current" if of_this_project or flash else "2021"],
        "reduces_whole": float(of_this_project or flash),
        "dropout": float(not of_this_project and not flash),
        "blocking": float(row.get("launch_blocking") == "yes"),
        "gradient_bytes": low_gradient_bytes
        if row.get("gradient_precision")
        else float(fact(software, "reduced_bytes", usual_sums)),
    }
    if not row.get("attention"):
        features["flash"] = _flash_rate(row, cluster) if flash else 0.0
    if parameters := fact(software, "bucket_parameters", 0):
        features |= {"bucket_bytes": parameters * features["gradient_bytes"], "fixed_buckets": 1.0}
    if row.get("bucket_sizes") == "auto":  # the Hugging Face Trainer's "auto" bucket holds hidden_size^2 elements
        features["bucket_bytes"] = model.hidden_size**2 * 2.0
    return features


def _flash_rate(row: Row, cluster: ClusterSpec) -> float:
    """Returns the rate of the row's fused attention divided by the rate in `cluster`, which already includes the
    software's own kernel if it has one.
    """
    software, kernel, architecture = software_of(row), row.get("attention_kernel", ""), cluster.device.architecture
    ratio = flash_ratio(software, architecture)
    if ratio is not None and kernel in ("", fact(software, "flash_kernel", "")):
        return 1.0
    rate = HOPPER_RATE.get(kernel) if architecture == "Hopper" else None
    return (rate or FLASH_RATE.get(kernel, 1.0)) / (ratio or 1.0)


def _host_costs(row: Row, *, fused: bool) -> dict[str, float]:
    """Returns the `STACK_HOST` columns: zero if launches are counted, else the measured host time of the stack or,
    without one, an estimate from the number of kernels with its deviation.
    """
    software = software_of(row)
    if not fused or row.get("engine") or not fact(software, "by_modules", False):
        return dict.fromkeys(STACK_HOST, 0.0)
    costs = stack_costs(software)
    kernels = FUSED_LAUNCHES + sum(UNFUSED_LAUNCHES[name] for name in unfused_of(row))
    # For shapes that the stack's fused softmax does not support, the passes move as many bytes in several modules.
    softmax = EAGER_SOFTMAX_S if row.get("attention_kernel") == "eager" else 0.0
    return {
        **{name: costs[name] for name in STACK_HOST},
        "host_sigma": 0.0 if costs["block_host"] else COUNTED_SIGMA,
        "block_host": (costs["block_host"] or kernels * MODULE_LAUNCH_S) + softmax,
        "block_host_backward": (costs["block_host_backward"] or 2 * kernels * MODULE_BACKWARD_S) + softmax,
    }


def _pace(software: str, engine: str, split: float) -> dict[str, float]:
    """Returns the columns on how the host and the device wait for each other. DeepSpeed's engine runs the passes of
    Megatron-LM's modules without Megatron-LM's timers and optimizer.
    """
    waits = engine == "megatron" and bool(fact(software, "waits_each_pass", False))
    sharpness = float(fact(software, "tensor_sharpness", SHARPNESS)) if waits and split > 1 else SHARPNESS
    stepping = float(fact(software, "step_host_s", STEP_HOST_S)) if engine == "megatron" else STEP_HOST_S
    return {"waits_each_pass": float(waits), "sharpness": sharpness, "step_host": stepping}


def _pieces(row: Row, split: float) -> str:
    """Returns the key of `ROUNDING` for temporary tensors of a step. Some stacks free the buffers of tensor-parallel
    collectives late, among saved block tensors of many sizes if blocks are not recomputed.
    """
    late = split > 1 and row["activation_ckpt"] != "full" and fact(software_of(row), "frees_late", False)
    return "late_blocks" if late else "transient_blocks"


def _loss_bytes(row: Row, loss: str, work: TrainingWork, split: float) -> dict[str, float]:
    """Returns the columns of the bytes that the loss holds and moves, per logit of this rank's share.

    If a stack gathers logits over tensor parallelism, every rank also holds the other ranks' logits, as received and
    concatenated. A chunked loss holds the logits of one chunk, and the gradient of the hidden states in fp32 and in its
    own type.
    """
    software, model = software_of(row), work.model
    logit = logit_bytes(loss, work.compute_bytes, split=split > 1 and bool(row.get("engine")))
    if split > 1 and fact(software, "gathers_logits", False):
        logit = (logit + 2 * work.compute_bytes) * split
    moved = 0.0 if loss == "fused" else float(fact(software, "loss_moved_bytes", 0.0))
    chunks = number(row, "loss_chunks") or float(fact(software, "loss_chunks", 1))
    if chunks == 1:
        return {"logit_bytes": logit, "loss_moved": moved}
    gradient = (4.0 + work.compute_bytes) * model.hidden_size * split / model.vocab_size
    return {"logit_bytes": logit / chunks + gradient, "loss_moved": moved or 2 * logit}


def splits_sequence(row: Row, split: float) -> bool:
    """Returns whether tensor parallelism also splits the sequence: as stated, else as usual for the software."""
    if row.get("seq_parallel"):
        return row["seq_parallel"] == "yes"
    return split > 1 and (bool(row.get("engine")) or float(fact(software_of(row), "sequence_parallel", False)) > 0.5)


def unfused_of(row: Row) -> tuple[str, ...]:
    """Returns which of norm, rope and mlp run as several kernels in the stack and are not stated as fused."""
    fused = row.get("fused", "").split(";")
    return tuple(name for name in fact(software_of(row), "unfused", ()) if name not in fused)


def loss_of(row: Row, flash: bool) -> str:
    """Returns the kind of loss. Rows of this project state it. Other stacks use torch's loss ("kept"), or their own
    together with fused attention; a loss that they compile with the model runs as torch's if nothing is compiled.
    """
    if row.get("engine"):
        if row.get("loss") == "chunked" and row.get("bare_loop"):
            return "kept"
        return loss_kind(row.get("loss") or "plain", row.get("compile") or "none")
    if flash and "loss" in row.get("fused", "").split(";"):
        return "fused"
    uncompiled = fact(software_of(row), "compiles", "none") != "none" and row.get("eager") == "yes"
    return fact(software_of(row), "loss", "kept") if flash and not uncompiled else "kept"


def modules_of(row: Row) -> Architecture | None:
    """Returns the row's architecture if transformers' modules run; None for other modules."""
    if not (row.get("engine") or row.get("eager") == "yes"):
        return None
    return architecture_of(row["architecture"]) if row.get("architecture") else None


def checkpoint_device_share(row: Row, split: float) -> float:
    """Returns the share of saved checkpoint data that stays on the device. Inputs may be sharded over the
    tensor-parallel ranks, or offloaded to the host.
    """
    share = float(fact(software_of(row), "selective_share", 1.0))
    if row["activation_ckpt"] == "selective" and share < 1:
        return share
    return {"host": 0.0, "split": 1 / split}.get(choice(row, "checkpoint_inputs", ("device", "split", "host")), 1.0)


def padded(vocab_size: int, split: float) -> float:
    """Returns the vocabulary size padded as by Megatron-LM and others (`--make-vocab-size-divisible-by 128`)."""
    return vocab_size if vocab_size % 8 == 0 else math.ceil(vocab_size / (128 * split)) * 128 * split


def _vocabulary(row: Row, vocab_size: int, split: float) -> float:
    """Returns the vocabulary size over all tensor-parallel ranks: as stated, unchanged for modules of transformers,
    else padded or rounded down to a multiple of the ranks.
    """
    if stated := number(row, "padded_vocab"):
        return stated
    if row.get("engine") or row.get("eager") == "yes":
        return vocab_size
    is_padded = fact(software_of(row), "pads_vocabulary_in_node", True) or not within_node(row)
    return padded(vocab_size, split) if is_padded else vocab_size // split * split


def moments_of(row: Row, model: ModelSpec, stages: float) -> float:
    """Returns the number of fp32 states per parameter besides the master copy, on the first stage.

    The 8-bit optimizer holds two states of one byte each, except fp32 states for the embedding (bitsandbytes,
    `StableEmbedding`).
    """
    stated = row.get("optimizer", "")
    if stated != "adam8bit":
        return next((states for name, states in _STATES if name in stated.lower()), 2.0)
    blocks = (model.num_parameters - model.embedding_parameters) / stages
    return 0.5 + 1.5 * model.embedding_parameters / (model.embedding_parameters + blocks)


def sharing_ranks(row: Row, dp: float) -> float | None:
    """Returns the number of ranks that share one copy of the sharded states; None if the row does not state it.

    Raises:
        ValueError: the number does not divide the data-parallel ranks.
    """
    stated = number(row, "zero_group")
    if stated is None:
        return None
    if stated < 1 or dp % stated:
        raise ValueError(f"zero_group {stated:g} does not divide dp {dp:g}")
    return stated
