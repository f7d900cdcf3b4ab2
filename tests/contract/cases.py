"""The cases of the contract: tiny models, every engine and stage, degrees 1, 2 and 4, and faults that must show."""

import dataclasses

from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import GradSync
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

GLOBAL_BATCH, SEQ_LEN, STEPS = 8, 24, 6

# A new engine is one line here: its name, its stages, and when it may exchange gradients at each of them.
ENGINES: dict[str, dict[int, tuple[GradSync, ...]]] = {
    "ddp": {0: ("every", "last")},
    "fsdp": {2: ("every", "last"), 3: ("every", "last")},
    "deepspeed": {0: ("last",), 1: ("last",), 2: ("every",), 3: ("every",)},
}


def _tiny(name: str, architecture: str, **sizes: int) -> ModelSpec:
    # 97 rows divide by neither 2 nor 4: shards are uneven. At deviation 0.2 positions and masks weigh on the logits.
    return ModelSpec(
        name=name,
        architecture=architecture,
        num_layers=2,
        hidden_size=32,
        num_heads=4,
        vocab_size=97,
        init_std=0.2,
        **sizes,  # type: ignore[arg-type]
    )


BLOOM = _tiny("bloom", "bloom")
GPT2 = _tiny("gpt2", "gpt2", max_positions=SEQ_LEN)
NEOX = _tiny("neox", "gpt_neox", max_positions=SEQ_LEN)
LLAMA = _tiny("llama", "llama", num_kv_heads=2)
MOE = _tiny("moe", "mixtral", num_kv_heads=2, ffn_size=48, num_experts=4, experts_per_token=2)

# Each fault with the stage at which it is planted in an engine; the last stage where none is named.
FAULTS: dict[str, dict[str, int]] = {
    "mask off by one": {},
    "ALiBi left out": {},
    "dropped micro-batch": {},
    "not divided by grad_accum": {},
    # ZeRO-1 to 3 cannot step on gradients that were not reduced.
    "missing sync": {"deepspeed": 0},
    "doubled gradient": {},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One run, compared with the reference; with a `fault` the comparison must fail."""

    recipe: Recipe
    layout: Layout
    batch: BatchPoint
    fault: str = ""
    climbs: bool = False
    """Whether grad_accum changes between steps, as it does from rung to rung of a trial: `batch`, then 4, then 2."""
    heavy: bool = False
    """Whether it runs with `-m heavy` alone."""

    @property
    def steps(self) -> int:
        """The number of steps; fewer with a fault, which must show early."""
        return 4 if self.fault else STEPS

    def batch_at(self, step: int) -> BatchPoint:
        """Returns the micro-batch and the accumulation into which step `step` divides the global batch."""
        if not self.climbs or step < 2:
            return self.batch
        grad_accum = 4 if step < 4 else 2
        micro_batch = GLOBAL_BATCH // (self.layout.data_parallel * grad_accum)
        return BatchPoint.of(self.recipe, self.layout, micro_batch)

    @property
    def name(self) -> str:
        """The case's name in pytest's output."""
        recipe, batch = self.recipe, self.batch
        parts = [recipe.model.name, recipe.compute_precision, self.layout.label, f"accum {batch.grad_accum}"]
        if self.climbs:
            parts[-1] += " then 4 then 2"
        if recipe.optimizer != "adamw":
            parts.insert(1, recipe.optimizer)
        if recipe.state_precision != "fp32":
            parts.insert(1, f"{recipe.state_precision} states")
        if recipe.compression != "none":
            parts.insert(1, recipe.compression)
        if recipe.decay != "all":
            parts.insert(1, f"decay of {recipe.decay}")
        if recipe.routing != "learned":
            parts.insert(1, f"{recipe.routing} routing")
        if recipe.attention_mask != "causal":
            parts.insert(1, f"{recipe.attention_mask} mask")
        return ", ".join([*parts, self.fault] if self.fault else parts)


def recipe(
    model: ModelSpec,
    precision: str = "fp32",
    optimizer: str = "adamw",
    states: str = "fp32",
    compression: str = "none",
) -> Recipe:
    """Returns the recipe of the contract, in which gradients are clipped and the optimizer applies weight decay."""
    return Recipe(
        model=model,
        seq_len=SEQ_LEN,
        global_batch=GLOBAL_BATCH,
        compute_precision=precision,  # type: ignore[arg-type]
        optimizer=optimizer,  # type: ignore[arg-type]
        state_precision=states,  # type: ignore[arg-type]
        compression=compression,  # type: ignore[arg-type]
        learning_rate=1e-3,
        seed=7,
    )


def layouts(world_size: int) -> list[Layout]:
    """Returns layouts of every engine and stage on `world_size` ranks, checkpointing none and full; HSDP at 4 ranks."""
    result_layouts = []
    for engine, stages in ENGINES.items():
        for stage, syncs in stages.items():
            degrees = [(1, world_size)] if stage else [(world_size, 1)]
            if engine == "fsdp" and world_size == 4:
                degrees.append((2, 2))
            for replicate, shard in degrees:
                for sync in syncs:
                    for checkpointing in ("none", "full"):
                        result_layouts.append(
                            Layout(
                                engine=engine,  # type: ignore[arg-type]
                                zero_stage=stage,
                                dp_replicate=replicate,
                                dp_shard=shard,
                                grad_sync=sync,
                                checkpointing=checkpointing,
                            )
                        )
    return result_layouts


def _kernels(world_size: int) -> list[tuple[ModelSpec, str, Layout]]:
    """Returns cases of every kernel in every kind of engine on 2 ranks, two or three kernels in a case, since none may
    change the result.

    FlexAttention has no backward pass on a CPU: sdpa runs in its place behind the same interface. The fused
    feed-forward block has torch's kernels there. Code that a compiler generates runs in a case of 1 rank.
    """
    if world_size == 1:
        block = Layout(engine="ddp", attention="flex", loss="chunked", compile="block", checkpointing="selective")
        return [(BLOOM, "fp32", block)]
    if world_size > 2:
        return []
    ddp = Layout(engine="ddp", dp_replicate=2)
    fsdp = Layout(engine="fsdp", zero_stage=3, dp_shard=2)
    zero = Layout(engine="deepspeed", zero_stage=1, dp_shard=2)
    zero_3 = dataclasses.replace(zero, zero_stage=3, grad_sync="every")
    zero_2 = dataclasses.replace(zero, zero_stage=2, grad_sync="every")
    zero_0 = dataclasses.replace(zero, zero_stage=0, dp_shard=1, dp_replicate=2)
    rows: list[tuple[ModelSpec, str, Layout, dict[str, str | int]]] = [
        (BLOOM, "fp32", ddp, {"attention": "sdpa", "loss": "chunked", "checkpointing": "selective"}),
        (GPT2, "bf16", ddp, {"attention": "flex", "mlp": "quack", "loss": "chunked", "checkpointing": "every_2"}),
        (BLOOM, "bf16", ddp, {"attention": "flex", "mlp": "quack", "compile": "block", "checkpointing": "full"}),
        (GPT2, "fp32", ddp, {"attention": "sdpa", "compile": "model"}),
        (NEOX, "fp32", ddp, {"attention": "sdpa", "loss": "chunked", "checkpointing": "every_2"}),
        (LLAMA, "fp32", fsdp, {"attention": "flex", "loss": "chunked", "checkpointing": "every_2"}),
        (LLAMA, "bf16", zero, {"attention": "eager", "loss": "chunked", "checkpointing": "full"}),
        (NEOX, "bf16", fsdp, {"attention": "flex", "compile": "block"}),
        (BLOOM, "fp32", fsdp, {"attention": "flex", "loss": "chunked", "checkpointing": "every_2"}),
        (
            GPT2,
            "bf16",
            fsdp,
            {"attention": "sdpa", "mlp": "quack", "loss": "chunked", "compile": "block", "checkpointing": "selective"},
        ),
        (BLOOM, "fp32", zero_3, {"attention": "sdpa", "loss": "chunked", "checkpointing": "every_2", "prefetch": 1}),
        (GPT2, "bf16", zero_3, {"attention": "flex", "loss": "chunked", "overlap": "off"}),
        (GPT2, "bf16", zero_0, {"attention": "sdpa", "loss": "chunked", "checkpointing": "selective"}),
        (MOE, "fp32", ddp, {"attention": "sdpa", "experts": "loop", "checkpointing": "full"}),
        (MOE, "fp32", zero_0, {"attention": "sdpa", "experts": "grouped", "checkpointing": "selective"}),
        (MOE, "fp32", zero, {"attention": "sdpa", "experts": "grouped", "loss": "chunked"}),
        (MOE, "fp32", zero_2, {"attention": "sdpa", "experts": "loop"}),
        (MOE, "fp32", zero_3, {"attention": "sdpa", "experts": "grouped", "checkpointing": "full"}),
        (
            BLOOM,
            "bf16",
            zero,
            {"attention": "flex", "mlp": "quack", "loss": "chunked", "compile": "block", "checkpointing": "budget_50"},
        ),
    ]
    return [
        (model, precision, dataclasses.replace(layout, **kernels))  # type: ignore[arg-type]
        for model, precision, layout, kernels in rows
    ]


def _memory(world_size: int) -> list[tuple[ModelSpec, str, Layout]]:
    """Returns cases of offload in each engine that has it.

    On a CPU offload moves nothing, but the optimizer steps by the code that steps on the host beside a GPU; moments
    pass through their buffers without streams.
    """
    if world_size != 2:
        return []
    fsdp = Layout(engine="fsdp", zero_stage=3, dp_shard=2, offload="all", grad_sync="every")
    zero = Layout(engine="deepspeed", zero_stage=3, dp_shard=2, offload="all", grad_sync="every")
    return [
        (BLOOM, "fp32", fsdp),
        (GPT2, "bf16", dataclasses.replace(fsdp, grad_sync="last", zero_stage=2)),
        (GPT2, "bf16", Layout(engine="ddp", dp_replicate=2, offload="moments")),
        (BLOOM, "fp32", dataclasses.replace(fsdp, grad_sync="last", offload="moments")),
        (BLOOM, "fp32", zero),
        (GPT2, "bf16", dataclasses.replace(zero, offload="optimizer", prefetch=1)),
        (BLOOM, "fp32", dataclasses.replace(zero, offload="optimizer", zero_stage=2, overlap="on")),
        (GPT2, "bf16", dataclasses.replace(zero, offload="optimizer", zero_stage=1, grad_sync="last")),
    ]


def _own_engine(world_size: int) -> list[tuple[ModelSpec, str, Layout]]:
    """Returns cases of an engine outside this project, named by its import path."""
    if world_size != 2:
        return []
    layout = Layout(engine="tests.contract.own_engine:ENGINE", dp_replicate=2)
    return [(BLOOM, "fp32", layout), (GPT2, "bf16", dataclasses.replace(layout, checkpointing="full"))]


def cases(world_size: int) -> list[Case]:
    """Returns the cases of `world_size` ranks.

    At 2 ranks these are all combinations in fp32 on BLOOM, and the faults; at 1 and 4 ranks each stage and degree.
    """
    all_cases: list[Case] = []

    def add_recipe(chosen: Recipe, layout: Layout, grad_accum: int, fault: str = "", climbs: bool = False) -> None:
        point = BatchPoint.of(chosen, layout, GLOBAL_BATCH // (world_size * grad_accum))
        all_cases.append(Case(recipe=chosen, layout=layout, batch=point, fault=fault, climbs=climbs))

    def add(
        model: ModelSpec, precision: str, layout: Layout, grad_accum: int, fault: str = "", climbs: bool = False
    ) -> None:
        add_recipe(recipe(model, precision), layout, grad_accum, fault, climbs)

    for layout in layouts(world_size):
        stages = ENGINES[layout.engine]
        main = layout.grad_sync == stages[layout.zero_stage][-1]
        plain = layout.checkpointing == "none"
        # sdpa and axes of FSDP2 ride along on GPT-2: they must not change the mathematics either.
        sdpa = dataclasses.replace(layout, attention="sdpa", prefetch=1 if layout.engine == "fsdp" else 0)
        if layout.engine == "fsdp" and layout.zero_stage == 3 and layout.dp_shard == 4:
            sdpa = dataclasses.replace(sdpa, reshard=2)
        if layout.engine == "fsdp" and layout.zero_stage == 3:
            sdpa = dataclasses.replace(sdpa, after_backward="keep")
        if world_size != 2:
            # At 4 ranks FSDP2 alone has more than at 2: hybrid shards, and parts of blocks kept between the passes.
            if main and plain and world_size == 4:
                add(BLOOM, "fp32", layout, 2)
            elif main and not plain and (world_size == 1 or layout.engine == "fsdp"):
                add(GPT2, "bf16", sdpa, 2)
            continue
        add(BLOOM, "fp32", layout, 1 if main else 2, climbs=main)
        if main:
            if plain:
                add(BLOOM, "bf16", layout, 2)
            else:
                # With so much decay it shows what it takes.
                add_recipe(dataclasses.replace(recipe(GPT2), decay="matrices", weight_decay=10.0), sdpa, 2)
        for fault, planted in FAULTS.items() if main and plain else ():
            if layout.zero_stage == planted.get(layout.engine, max(stages)):
                add(BLOOM, "fp32", layout, 2, fault)
        if main and plain and layout.zero_stage == 0:
            add_recipe(recipe(BLOOM, optimizer="adafactor"), layout, 1, climbs=True)
        if plain and layout.engine in ("ddp", "fsdp"):
            # Two parameter groups and changing rates, each in slices of its own; replayed micro-steps beside them.
            away = dataclasses.replace(layout, offload="moments", attention="sdpa")
            if layout.engine == "ddp":
                away = dataclasses.replace(away, cuda_graphs="on")
            decayed = dataclasses.replace(recipe(BLOOM), decay="matrices", weight_decay=10.0)
            add_recipe(decayed, away, 1 if main else 2, climbs=main)
            if main:
                add_recipe(decayed, away, 2, "moments left behind")
        if plain and (layout.engine, layout.zero_stage) != ("deepspeed", 0) and (main or layout.zero_stage == 3):
            add_recipe(recipe(BLOOM, "bf16", states="bf16"), layout, 2)
        if layout.engine == "ddp" and plain:
            replayed = dataclasses.replace(layout, cuda_graphs="on", attention="sdpa")
            add(BLOOM, "fp32", replayed, 1 if main else 2, climbs=main)
            for fault in ("not divided by grad_accum", "missing sync", "doubled gradient") if main else ():
                add(BLOOM, "fp32", replayed, 2, fault)
            add_recipe(recipe(BLOOM, compression="bf16"), layout, 1 if main else 2, climbs=main)
        if layout.engine == "ddp" and main and plain:
            for climbs in (False, True):
                add_recipe(recipe(BLOOM, compression="powersgd_4"), layout, 1 if climbs else 2, climbs=climbs)
    if world_size == 2:
        for model, mask, stage in ((GPT2, "document", 3), (BLOOM, "prefix", 1)):
            layout = Layout(
                engine="deepspeed", zero_stage=stage, dp_shard=2, grad_sync="every" if stage == 3 else "last"
            )
            add_recipe(dataclasses.replace(recipe(model), attention_mask=mask), layout, 2)
        # Routes are learned in fp32 alone: in bf16 some tokens go to other experts than the reference's.
        balanced = dataclasses.replace(recipe(MOE, "bf16"), routing="balanced")
        compiled = Layout(engine="ddp", dp_replicate=2, attention="sdpa", experts="grouped", compile="block")
        add_recipe(balanced, compiled, 2)
    for model, precision, layout in (*_kernels(world_size), *_memory(world_size), *_own_engine(world_size)):
        add(model, precision, layout, 2)
    return all_cases
