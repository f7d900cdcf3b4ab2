"""What cannot run here, in one sentence before anything starts, without torch; the driver records `skipped`."""

from collections.abc import Iterator

from trainers.cluster import Cluster
from trainers.layout import Layout
from trainers.recipe import Recipe
from trainers.spec import ModelSpec


def refusal(recipe: Recipe, layout: Layout, cluster: Cluster) -> str | None:
    """Why `recipe` cannot run on `layout` on all devices of `cluster`, in one sentence; None when it can."""
    reasons = (*_of_cluster(recipe, layout, cluster), *_of_engine(recipe, layout), *_of_model(recipe.model))
    return reasons[0] if reasons else None


def standing_refusal(recipe: Recipe, layout: Layout, num_devices: int) -> str | None:
    """Why `recipe` cannot run on `layout` on `num_devices` of whatever kind, in one sentence; None where it may."""
    reasons = (*_of_degrees(layout, num_devices), *_of_engine(recipe, layout))
    return reasons[0] if reasons else None


def model_refusal(spec: ModelSpec) -> str | None:
    """Why transformers has no such model, in one sentence; None when it has."""
    return next(_of_model(spec), None)


def _of_degrees(layout: Layout, num_devices: int) -> Iterator[str]:
    if layout.world_size != num_devices:
        yield (
            f"the layout's degrees multiply to {layout.world_size} devices, the cluster has {num_devices}:"
            " choose degrees that take all of them"
        )


def _of_cluster(recipe: Recipe, layout: Layout, cluster: Cluster) -> Iterator[str]:
    yield from _of_degrees(layout, cluster.num_devices)
    precision = recipe.compute_precision
    if cluster.device_kind == "cpu":
        if precision == "fp16":
            yield "DeepSpeed has no fp16 on a CPU and torch no fast one: choose bf16 or fp32"
        if precision == "tf32":
            yield "TF32 is a mode of CUDA devices, the cluster has CPUs: choose fp32 or bf16"
        if layout.offload != "none":
            yield f"offload {layout.offload} moves states to host memory, where a CPU's are already: choose none"
    elif precision in ("bf16", "tf32") and (cluster.capability or (0, 0)) < (8, 0):
        got = ".".join(map(str, cluster.capability)) if cluster.capability else "unknown"
        other = "fp16" if precision == "bf16" else "fp32"
        yield f"{precision} needs CUDA compute capability 8.0, that of {cluster.device} is {got}: choose {other}"


def _of_engine(recipe: Recipe, layout: Layout) -> Iterator[str]:
    """What runs on no devices whatever."""
    yield from _of_recipe(recipe, layout)
    if layout.offload != "none":
        yield from _of_offload(recipe, layout)
    yield from _of_layout(recipe, layout)


def _of_recipe(recipe: Recipe, layout: Layout) -> Iterator[str]:
    if recipe.optimizer == "adafactor" and layout.engine == "fsdp":
        yield (
            "transformers' Adafactor mixes plain tensors with FSDP2's sharded ones and fails there:"
            " choose engine ddp, or deepspeed at stage 0"
        )
    if recipe.optimizer == "adafactor" and layout.engine == "deepspeed" and layout.zero_stage > 0:
        yield (
            f"DeepSpeed ZeRO-{layout.zero_stage} cuts weights into flat shards, over which Adafactor factors nothing"
            " and is another algorithm: choose engine ddp, or deepspeed at stage 0"
        )
    if recipe.state_precision == "bf16" and recipe.compute_precision != "bf16":
        yield (
            f"bf16 states go with bf16 products, got compute_precision {recipe.compute_precision}:"
            " choose compute_precision bf16 or state_precision fp32"
        )
    if recipe.state_precision == "bf16" and recipe.optimizer == "adafactor":
        yield "transformers' Adafactor keeps its states in fp32, never in bf16: choose state_precision fp32 or adamw"
    if recipe.state_precision == "bf16" and layout.engine == "deepspeed" and layout.zero_stage == 0:
        yield (
            "DeepSpeed stage 0 in bf16 always keeps fp32 master weights and states:"
            " choose zero_stage 1, 2 or 3, engine ddp or fsdp, or state_precision fp32"
        )
    if recipe.compression != "none":
        yield from _of_compression(recipe, layout)


def _of_offload(recipe: Recipe, layout: Layout) -> Iterator[str]:
    offload, stage = layout.offload, layout.zero_stage
    if layout.engine == "ddp" or (layout.engine == "deepspeed" and stage == 0):
        what = "DDP" if layout.engine == "ddp" else "DeepSpeed stage 0"
        yield f"{what} keeps everything on the device, got offload {offload}: choose none, or an engine that shards"
    if layout.engine == "fsdp" and offload == "optimizer":
        yield "FSDP2 offloads weights and gradients along with the states, got offload optimizer: choose all or none"
    if layout.engine == "fsdp" and recipe.compute_precision == "fp16":
        yield (
            "an fp16 loss scale is kept on the device, FSDP2's offloaded gradients are not:"
            " choose compute_precision bf16 or offload none"
        )
    if layout.engine == "deepspeed" and recipe.state_precision == "bf16":
        yield (
            "DeepSpeed keeps offloaded states in bf16 with its own compiled CPU Adam alone, which is not used here:"
            " choose state_precision fp32, engine fsdp, or offload none"
        )
    if layout.engine == "deepspeed" and 0 < stage < 3 and offload == "all":
        yield f"DeepSpeed offloads parameters at stage 3 alone, got offload all at stage {stage}: choose optimizer"


def _of_compression(recipe: Recipe, layout: Layout) -> Iterator[str]:
    if layout.engine != "ddp":
        yield (
            f"gradients are compressed by hooks that DDP alone has, got compression {recipe.compression} with"
            f" {layout.engine}: choose engine ddp or compression none"
        )
    if recipe.compression == "bf16" and recipe.state_precision == "bf16":
        yield "bf16 states exchange bf16 gradients already: choose compression none or state_precision fp32"
    if recipe.powersgd_rank and recipe.compute_precision == "fp16":
        yield (
            "an fp16 gradient that overflows would stay in PowerSGD's error feedback for ever:"
            " choose compute_precision bf16 or fp32, or compression bf16 or none"
        )
    # One data-parallel rank asked for "every" has "last" here: it exchanges nothing, and both words mean the same.
    if recipe.powersgd_rank and layout.grad_sync == "every":
        yield (
            "PowerSGD at every micro-step approximates other sums than at the last one, which is another recipe:"
            " choose grad_sync last"
        )


def _of_layout(recipe: Recipe, layout: Layout) -> Iterator[str]:
    for axis in ("tp", "pp", "cp"):
        if getattr(layout, axis) > 1:
            yield f"no engine has {axis} yet, got {axis} {getattr(layout, axis)}: set it to 1"
    if layout.prefetch >= recipe.model.num_layers:
        yield (
            f"prefetch {layout.prefetch} reaches beyond the {recipe.model.num_layers} blocks of {recipe.model.name}:"
            " choose less"
        )
    if layout.reshard and (layout.reshard >= layout.dp_shard or layout.dp_shard % layout.reshard):
        yield (
            f"reshard must divide dp_shard and be less, got reshard {layout.reshard} with dp_shard {layout.dp_shard}:"
            " choose another, or 0"
        )
    if recipe.model.num_layers <= layout.checkpoint_every // 2:
        yield (
            f"checkpointing {layout.checkpointing} of {recipe.model.num_layers} blocks is that of a smaller distance:"
            f" choose {'full' if recipe.model.num_layers == 1 else 'every_2'}"
        )
    yield from _of_kernels(layout)
    whole_sums = recipe.compute_precision == "bf16" and recipe.state_precision == "fp32" and layout.offload == "none"
    if layout.overlap != "default" and layout.zero_stage == 1 and whole_sums:
        yield (
            "DeepSpeed stage 1 in bf16 with fp32 states reduces all gradients after the backward pass, got overlap"
            f" {layout.overlap}: choose default, or another zero_stage"
        )
    if layout.bucket_mib and layout.engine == "fsdp":
        yield f"FSDP2 reduces a block at a time and has no buckets, got bucket_mib {layout.bucket_mib}: set it to 0"
    if layout.bucket_mib and layout.engine == "deepspeed" and layout.zero_stage == 0:
        yield f"DeepSpeed stage 0 has buckets of one fixed size, got bucket_mib {layout.bucket_mib}: set it to 0"


def _of_kernels(layout: Layout) -> Iterator[str]:
    if layout.compile != "none" and layout.engine == "deepspeed" and layout.zero_stage == 3:
        yield (
            "ZeRO-3 gathers each module's parameters by hooks that cannot be compiled, got compile"
            f" {layout.compile}: choose none, another zero_stage, or engine fsdp at stage 3"
        )
    if layout.compile == "model" and layout.engine == "fsdp":
        yield "FSDP2 gathers each block's parameters between blocks, got compile model: choose block"
    if layout.compile == "model" and (layout.attention == "flex" or layout.loss == "chunked"):
        yield (
            f"a model compiled whole has sdpa or eager attention and the plain loss, got {layout.attention} and"
            f" {layout.loss}: choose compile block"
        )
    if layout.activation_budget < 1 and layout.compile == "none":
        yield (
            "an activation budget is for a compiler to keep, got compile none:"
            f" choose compile block or another checkpointing than {layout.checkpointing}"
        )
    if layout.checkpointing == "selective" and layout.attention == "flex" and layout.compile == "none":
        yield (
            "selective checkpointing cannot look into FlexAttention, which is compiled by itself where blocks are not:"
            " choose compile block, another attention or another checkpointing"
        )


def _of_model(spec: ModelSpec) -> Iterator[str]:
    kind = spec.architecture
    if spec.config:
        return  # a configuration that transformers reads describes a model that transformers has
    if kind == "bloom" and not spec.embedding_norm:
        yield f"transformers has no bloom without a norm after the embedding, {spec.name} asks for one"
    if kind != "bloom" and spec.embedding_norm:
        yield f"transformers has no {kind} with a norm after the embedding, {spec.name} asks for one: use bloom"
    if kind == "bloom" and spec.ffn_size != 4 * spec.hidden_size:
        yield (
            f"bloom in transformers has ffn_size 4 x hidden_size, {4 * spec.hidden_size} for {spec.name},"
            f" got {spec.ffn_size}"
        )
    if kind != "llama" and spec.num_kv_heads != spec.num_heads:
        yield (
            f"transformers has no {kind} with fewer key/value heads than heads,"
            f" {spec.name} asks for {spec.num_kv_heads} of {spec.num_heads}: use llama"
        )
