"""`Rules`: what an engine accepts and refuses, its names, and which of a layout's axes it has. Without torch."""

import dataclasses
import functools
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from trainers.spec.axis import axes_of
from trainers.spec.cluster import Cluster
from trainers.spec.engines.engine_axis import axes_of_engine
from trainers.spec.layout_axes import CUTTING, MODEL_PARALLEL, GradSync, LayoutAxes
from trainers.spec.recipe import Recipe
from trainers.spec.stages import stages_of

REGISTRY = {
    "ddp": "trainers.spec.engines.ddp:ENGINE",
    "fsdp": "trainers.spec.engines.fsdp:ENGINE",
    "deepspeed": "trainers.spec.engines.deepspeed:ENGINE",
}
"""The import path of each engine's rules by its name. They import this module, so it names them and imports none."""
PREDICTED = {"megatron": "trainers.spec.engines.megatron:ENGINE"}
"""The same for engines of other software, of which layouts are predicted and never run here."""
OF_WORKLOADS = {
    "command": "trainers.spec.engines.workloads:COMMAND",
    "function": "trainers.spec.engines.workloads:FUNCTION",
}
"""The same for what runs a training of the user's own, which `--set` does not name."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EngineRules:
    """The rules of one engine. Everything that decides what may run, or what it is called, uses them.

    The engine lacks what is not stated; a subclass may refuse more, with its own reasons. `contradictions` are
    combinations that the engine can never mean: no such `Layout` can be created. `refusals` are combinations that it
    cannot run, each with a way out.
    """

    name: str
    """The value of `Layout.engine`: the name in the registry, or the import path "package.module:NAME" of the rules."""
    title: str
    """Its name in sentences."""
    runtime: str
    """Import path "package.module:Class" of the `trainers.engines.base.Stepper`; its import may take seconds."""
    grad_syncs: Mapping[int, tuple[GradSync, ...]]
    """Possible moments of gradient reduction by ZeRO stage; the engine lacks the stages that are missing."""
    axes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict[str, tuple[int, ...]])
    """Mesh axes that some engines use, with the ZeRO stages at which this one does; for the engine's own see
    `trainers.spec.engines.engine_axis`.
    """
    model_parallel: tuple[str, ...] = ()
    """The degrees that split the model and that the engine supports."""
    has_compression: bool = False
    """Whether it exchanges compressed gradients."""
    has_attention_masks: bool = False
    """Whether it trains under document and prefix masks, by the flags of tokens (`trainers.data.flags`)."""
    has_float8: bool = False
    """Whether linear layers may compute in FP8."""
    has_adapters: bool = False
    """Whether it trains adapters beside frozen weights."""
    has_balance: bool = False
    """Whether it makes routers even by the tokens of a step (`Recipe.balance_loss`)."""
    complexity_rank: int = 3
    """Rank of the engine by its distance from a plain training loop: the numerics gate's reference has the least."""
    packages: tuple[str, ...] = ()
    """Packages beyond torch and transformers whose versions its figures depend on."""
    runs_workloads: bool = False
    """Whether it runs a training of the user's own, whose `flags` alone are known of a layout."""
    is_preloaded: bool = False
    """Whether processes that wait for a trial import it ahead; its import must not start CUDA."""
    costs: str = ""
    """Import path "package.module:NAME" of the cost model's `EngineCosts`, for an engine outside this project."""
    config_name: str = ""
    """Name of a JSON file with a winner's configuration in the engine's own format, for its users; empty for none."""
    config: str = ""
    """Import path "package.module:function" that makes it from recipe, layout and batch point; without torch."""

    @property
    def stages(self) -> tuple[int, ...]:
        """The values that `zero_stage` may have."""
        return tuple(self.grad_syncs)

    def stages_with(self, axis: str) -> tuple[int, ...]:
        """Returns the ZeRO stages at which this engine has an axis that others may lack."""
        own_axes = axes_of_engine(self.name)
        return own_axes[axis].stages if axis in own_axes else self.axes.get(axis, ())

    def chooses_sync(self, layout: LayoutAxes) -> bool:
        """Returns whether `grad_sync` distinguishes layouts of this engine and stage."""
        return len(self.grad_syncs.get(layout.zero_stage, ())) > 1 and layout.data_parallel > 1

    def label(self, layout: LayoutAxes) -> str:
        """Returns engine and stage for people, in a word or two."""
        return f"{self.title} stage {layout.zero_stage}" if layout.zero_stage else self.title

    def sharding(self, layout: LayoutAxes) -> str:
        """Returns what is sharded and how, in a few letters."""
        return f"stage {layout.zero_stage}" if layout.zero_stage else "none"

    def strategy(self, layout: LayoutAxes) -> str:
        """Returns the published tables' word for what is sharded."""
        return f"zero{layout.zero_stage}" if layout.zero_stage else "ddp"

    def note(self, layout: LayoutAxes) -> str:
        """Returns what the measurement table's notes add where `strategy` is ambiguous; "" for nothing."""
        return ""

    def contradictions(self, layout: LayoutAxes) -> Iterator[str]:
        """Yields a sentence for each thing in `layout` that this engine can never mean."""
        if layout.zero_stage not in self.grad_syncs:
            stages = ", ".join(map(str, self.stages))
            yield f"zero_stage of {self.name} must be one of {stages}, got {layout.zero_stage}"
            return
        if layout.zero_stage == 0 and layout.dp_shard > 1:
            yield f"{self.name} at stage 0 shards nothing: dp_shard must be 1, got {layout.dp_shard}"
        if layout.grad_sync not in (syncs := self.grad_syncs[layout.zero_stage]):
            yield self.wrong_sync(layout, syncs[0])
        if layout.cp_exchange != "gather" and layout.cp == 1:
            yield f"cp_exchange {layout.cp_exchange} is of sequences that ranks share out, got cp 1: choose gather"
        for axis in axes_of_engine(self.name).values():
            yield from axis.contradictions(layout)

    def wrong_sync(self, layout: LayoutAxes, required: str) -> str:
        """Returns the sentence about a `grad_sync` that is not the `required` one of this engine at this stage."""
        return f"{self.label(layout)} has grad_sync {required!r} alone, got {layout.grad_sync!r}"

    def refusals(self, recipe: Recipe, layout: LayoutAxes) -> Iterator[str]:
        """Yields a sentence for each reason why this engine cannot run `recipe` on `layout`, on any devices."""
        for axis, degree in layout.above_one(MODEL_PARALLEL).items():
            if axis not in self.model_parallel:
                yield f"{self.lacks_axis(axis)}, got {axis} {degree}: set it to 1"
        if recipe.compression != "none" and not self.has_compression:
            with_hooks = [rules for rules in registered() if rules.has_compression]
            who = " and ".join(rules.title for rules in with_hooks) or "no engine"
            choice = "".join(f"engine {rules.name} or " for rules in with_hooks)
            yield (
                f"gradients are compressed by hooks that {who} alone has, got compression {recipe.compression} with"
                f" {layout.engine}: choose {choice}compression none"
            )
        if recipe.attention_mask != "causal" and not self.has_attention_masks:
            yield (
                f"{self.title} knows no other than a causal attention mask, got attention_mask {recipe.attention_mask}:"
                " choose causal, or an engine of this project"
            )
        if recipe.trained_tokens != "all" and not self.has_attention_masks:
            yield (
                f"{self.title} takes the mean loss over all tokens, got trained_tokens {recipe.trained_tokens}: choose"
                " all, or an engine of this project"
            )
        if recipe.float8_scaling and not self.has_float8:
            yield f"{self.lacks_float8()}, got {recipe.compute_precision}: choose engine ddp or fsdp, or bf16"
        if recipe.adapter_rank and not self.has_adapters:
            yield (
                f"{self.title} trains every parameter of a model, got adapter {recipe.adapter}: choose engine ddp or"
                " fsdp, or adapter none"
            )
        if recipe.balance_loss != "none" and not self.has_balance:
            yield (
                f"{self.title} does not count a step's tokens by expert, got balance_loss {recipe.balance_loss}: choose"
                " engine ddp or fsdp, or balance_loss none"
            )
        if layout.bucket_mib and (reason := self.lacks_buckets(layout)):
            yield f"{reason}, got bucket_mib {layout.bucket_mib}: set it to 0"
        if layout.offload != "none" and (lacking := self.keeps_on_device(layout)):
            yield (
                f"{lacking} keeps everything on the device, got offload {layout.offload}:"
                " choose none, or an engine that shards"
            )
        for axis in axes_of_engine(self.name).values():
            yield from axis.refusals(recipe, layout)

    def needs(self, layout: LayoutAxes, cluster: Cluster) -> Iterator[str]:
        """Yields a sentence for each of the engine's axes that these devices cannot run at the layout's value."""
        for axis in axes_of_engine(self.name).values():
            yield from axis.needs(layout, cluster)

    def depth_refusals(self, recipe: Recipe, layout: LayoutAxes) -> Iterator[str]:
        """Yields a sentence for each axis that counts more blocks than the model or the smallest stage has."""
        for name, declared in axes_of(type(layout)).items():
            if not declared.counts_blocks or not (value := getattr(layout, name)):
                continue
            blocks = min(len(stage.blocks) for stage in stages_of(recipe, layout))
            if value >= blocks:
                cut = layout.in_words(layout.above_one(CUTTING["depth"]))
                whose = f"a stage of {recipe.model.name} at {cut}" if cut else recipe.model.name
                yield f"{name} {value} reaches beyond the {blocks} blocks of {whose}: choose less"

    def lacks_axis(self, axis: str) -> str:
        """Returns why there is no such degree, as a clause."""
        return f"{self.title} has no {axis}"

    def lacks_float8(self) -> str:
        """Returns why no linear layer computes in FP8, as a clause."""
        return f"{self.title} has no linear layers in FP8"

    def lacks_buckets(self, layout: LayoutAxes) -> str:
        """Returns why no size of gradient buckets can be set, as a clause; "" where it can."""
        return f"{self.title} has no buckets of a size to be set"

    def keeps_on_device(self, layout: LayoutAxes) -> str:
        """Returns what keeps all of its states on the device, as a subject; "" where this layout can offload."""
        return self.title


def engines_having(axis: str) -> str:
    """Returns the engines of this project that have the degree, as a clause."""
    names = [rules.name for rules in registered() if axis in rules.model_parallel]
    return f"engines {' and '.join(names)} have it" if len(names) > 1 else f"engine {names[0]} has it" if names else ""


@functools.cache
def registered() -> tuple[EngineRules, ...]:
    """Returns the rules of this project's engines."""
    return tuple(attribute(path) for path in REGISTRY.values())


def attribute(path: str) -> Any:
    """Returns what an import path "package.module:NAME" leads to."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
