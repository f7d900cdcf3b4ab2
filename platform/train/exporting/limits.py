"""Parts of a layout or recipe that another program does not support: refused without a substitute, else listed."""

from collections.abc import Iterator
from typing import Literal

from trainers.records.training import TrainingPlan
from trainers.spec.architectures import architecture_of
from trainers.spec.axis import axes_of
from trainers.spec.engines.engine_axis import axes_of_engine
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import MODEL_PARALLEL

Program = Literal["accelerate", "deepspeed"]

_IN_ITS_PLACE = {
    "attention": "transformers' own {attention} attention",
    "mlp": "feed-forward blocks as transformers has them",
    "experts": "experts as transformers computes them by default",
    "loss": "a loss over all logits at once, which takes more memory",
    "compile": "nothing is compiled",
    "checkpointing": "every block is checkpointed, which takes more time",
    "offload": "nothing lies in host memory, which takes more of the devices'",
    "bucket_mib": "buckets of the program's own size",
}
"""The substitute if the program does not support an axis of all engines, by axis."""


def refusal(plan: TrainingPlan, program: Program) -> str | None:
    """Returns why the program cannot train the plan, as one sentence; None if it can."""
    first, *others = plan.phases
    if others:
        return f"{program} has one batch in a training, got {len(plan.phases)} phases: export it --to torchrun"
    layout, model = first.layout, plan.recipe.model
    if layout.above_one(MODEL_PARALLEL):
        return f"{program} splits no model as {layout.degrees} does: export it --to torchrun"
    if plan.recipe.attention_mask != "causal":
        return f"{program} makes no {plan.recipe.attention_mask} attention masks: export it --to torchrun"
    if plan.recipe.adapter_rank:
        return f"the export for {program} trains whole models, got {plan.recipe.adapter}: export it --to torchrun"
    if plan.recipe.trained_tokens != "all":
        return f"{program} takes the loss of all tokens, the recipe of marked ones: export it --to torchrun"
    if (kind := plan.recipe.balance_loss) != "none":
        return f"{program} has no balance loss over a step's tokens, got {kind}: export it --to torchrun"
    if layout.is_hybrid:
        return f"the export for {program} has no {layout.replicas}: export it --to torchrun"
    if (layout.engine == "deepspeed") != (program == "deepspeed"):
        other = "deepspeed" if layout.engine == "deepspeed" else "accelerate"
        return f"a layout of {layout.rules.title} is not one of {program}: export it --to {other}"
    if model.embedding_norm and not architecture_of(model.architecture).embedding_norm:
        return f"transformers' {model.architecture} has no norm after the embedding, got {model.name} with one"
    return None


def attention_name(plan: TrainingPlan) -> str:
    """Returns transformers' `attn_implementation` that is closest to the layout's attention."""
    layout, family = plan.phases[0].layout, architecture_of(plan.recipe.model.architecture)
    if layout.attention == "eager" or family.position == "alibi" or family.attention_sinks:
        return "eager"
    return "sdpa"


def not_carried(plan: TrainingPlan, program: Program) -> Iterator[str]:
    """Yields a line for each part of the plan that the program does differently, with the substitute."""
    layout, recipe = plan.phases[0].layout, plan.recipe
    carried = _carried(layout, program)
    in_its_place = _IN_ITS_PLACE | {
        name: axis.elsewhere for name, axis in axes_of_engine(layout.engine).items() if axis.elsewhere
    }
    for name, declared in axes_of(Layout).items():
        if name == "attention":
            if (nearest := attention_name(plan)) != layout.attention:
                yield f"{layout.attention} attention: {_IN_ITS_PLACE[name].format(attention=nearest)} in its place"
        elif layout.is_set(name) and name in in_its_place and name not in carried:
            yield f"{declared.words(getattr(layout, name))}: {in_its_place[name]}"
    if recipe.compression != "none":
        yield f"{recipe.compression} compression: gradients are exchanged whole, which is another recipe"
    if recipe.float8_scaling:
        yield f"{recipe.compute_precision} compute: {recipe.activation_precision} in its place, which is another recipe"
    half = recipe.activation_precision in ("bf16", "fp16")
    if layout.engine == "fsdp" and half and recipe.state_precision == "fp32":
        yield f"sums of gradients over ranks in fp32: accelerate's FSDP2 sums them in {recipe.activation_precision}"
    if recipe.data_order != "file":
        yield f"data order {recipe.data_order}: sequences come in the order of the files"
    if not plan.initial_weights:
        yield "first weights drawn by name: transformers draws its own (--start-from gives both the same)"
    yield "held-out losses and MLflow: the script only trains"
    yield f"checkpoints in the canonical form: they are {program}'s own, for as many ranks"


def _carried(layout: Layout, program: Program) -> set[str]:
    """Returns the axes that the program implements as the layout asks."""
    axes = {"grad_sync"} | ({"checkpointing"} if layout.checkpointing == "full" else set())
    if program == "deepspeed":
        return axes | {"offload", "bucket_mib"}
    axes |= {"bucket_mib"} | ({"compile"} if layout.compile == "model" else set())
    return axes | ({"offload"} if layout.offload == "all" else set())
