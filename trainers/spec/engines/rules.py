"""`EngineRules`: the trainings that an engine accepts and refuses, its names, and the axes that it has. Imports no
torch.
"""

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
"""Import path of each engine's rules. Only named here, because these modules import this one."""
PREDICTED = {"megatron": "trainers.spec.engines.megatron:ENGINE"}
"""Import paths of the rules of other software's engines, whose layouts are predicted and never run."""
OF_WORKLOADS = {
    "command": "trainers.spec.engines.workloads:COMMAND",
    "function": "trainers.spec.engines.workloads:FUNCTION",
}
"""Import paths of the rules for a user's own training; `--set` does not offer them."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EngineRules:
    """The rules of one engine, for all code that decides which trainings may run or how an engine is named.

    An engine lacks every feature that is not stated here; a subclass may refuse more. `contradictions` are combinations
    that have no meaning, so the `Layout` cannot be created. `refusals` are combinations that the engine cannot run;
    each states an alternative.
    """

    name: str
    """Value of `Layout.engine`: the name in the registry, or the import path "package.module:NAME" of the rules."""
    title: str
    """Its name in sentences."""
    runtime: str
    """Import path "package.module:Class" of the `Stepper`; importing it may take seconds."""
    grad_syncs: Mapping[int, tuple[GradSync, ...]]
    """Possible times of gradient reduction by ZeRO stage; the engine lacks stages that are not listed."""
    axes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict[str, tuple[int, ...]])
    """Axes of the mesh that the engine uses, with the ZeRO stages at which it does; for an engine's own axes see
    `trainers.spec.engines.engine_axis`.
    """
    model_parallel: tuple[str, ...] = ()
    """Degrees that split the model and that the engine supports."""
    has_compression: bool = False
    """Whether it can exchange compressed gradients."""
    has_attention_masks: bool = False
    """Whether it trains under document and prefix masks, from the flags of tokens (`trainers.data.flags`)."""
    has_float8: bool = False
    """Whether linear layers may compute in FP8."""
    has_adapters: bool = False
    """Whether it trains adapters beside frozen weights."""
    has_host_moments: bool = False
    """Whether AdamW's moments may be in host memory while the device steps."""
    has_balance: bool = False
    """Whether it balances routers by the tokens of a step (`Recipe.balance_loss`)."""
    complexity_rank: int = 3
    """The engine's distance from a plain training loop; the numerics gate takes its reference from the engine with the
    least.
    """
    packages: tuple[str, ...] = ()
    """Packages beyond torch and transformers whose versions affect its measurements."""
    runs_workloads: bool = False
    """Whether it runs a user's own training, of whose layout only `flags` is known."""
    is_preloaded: bool = False
    """Whether processes that wait for a trial import it in advance; its import must not initialise CUDA."""
    costs: str = ""
    """Import path "package.module:NAME" of the cost model's `EngineCosts`, for an engine outside this project."""
    config_name: str = ""
    """Name of a JSON file with a winner's configuration in the engine's own format; empty for none."""
    config: str = ""
    """Import path "package.module:function" that makes this configuration from recipe, layout and batch point, without
    torch.
    """

    @property
    def stages(self) -> tuple[int, ...]:
        """Possible values of `zero_stage`."""
        return tuple(self.grad_syncs)

    def stages_with(self, axis: str) -> tuple[int, ...]:
        """Returns the ZeRO stages at which this engine has an axis that other engines may lack."""
        own_axes = axes_of_engine(self.name)
        return own_axes[axis].stages if axis in own_axes else self.axes.get(axis, ())

    def chooses_sync(self, layout: LayoutAxes) -> bool:
        """Returns whether `grad_sync` distinguishes layouts of this engine and stage."""
        return len(self.grad_syncs.get(layout.zero_stage, ())) > 1 and layout.data_parallel > 1

    def label(self, layout: LayoutAxes) -> str:
        """Returns engine and stage for people, in a word or two."""
        return f"{self.title} stage {layout.zero_stage}" if layout.zero_stage else self.title

    def sharding(self, layout: LayoutAxes) -> str:
        """Returns the sharded states and the kind of sharding, in a few letters."""
        return f"stage {layout.zero_stage}" if layout.zero_stage else "none"

    def strategy(self, layout: LayoutAxes) -> str:
        """Returns the published tables' word for the kind of sharding."""
        return f"zero{layout.zero_stage}" if layout.zero_stage else "ddp"

    def note(self, layout: LayoutAxes) -> str:
        """Returns a note for the measurement table if `strategy` is ambiguous, else ""."""
        return ""

    def contradictions(self, layout: LayoutAxes) -> Iterator[str]:
        """Yields a sentence for each contradiction of `layout` with itself in this engine."""
        if layout.zero_stage not in self.grad_syncs:
            stages = ", ".join(map(str, self.stages))
            yield f"zero_stage of {self.name} must be one of {stages}, got {layout.zero_stage}"
            return
        if layout.zero_stage == 0 and layout.dp_shard > 1:
            yield f"{self.name} at stage 0 shards nothing: dp_shard must be 1, got {layout.dp_shard}"
        if layout.grad_sync not in (syncs := self.grad_syncs[layout.zero_stage]):
            yield self.wrong_sync(layout, syncs[0])
        if layout.cp_exchange != "gather" and layout.cp == 1:
            yield f"cp_exchange {layout.cp_exchange} needs cp 2 or more, got cp 1: choose gather"
        for axis in axes_of_engine(self.name).values():
            yield from axis.contradictions(layout)

    def wrong_sync(self, layout: LayoutAxes, required: str) -> str:
        """Returns the sentence on a `grad_sync` other than the `required` one of this engine and stage."""
        return f"{self.label(layout)} has grad_sync {required!r} alone, got {layout.grad_sync!r}"

    def refusals(self, recipe: Recipe, layout: LayoutAxes) -> Iterator[str]:
        """Yields the reasons why this engine cannot run `recipe` on `layout`, on any devices."""
        for axis, degree in layout.above_one(MODEL_PARALLEL).items():
            if axis not in self.model_parallel:
                yield f"{self.lacks_axis(axis)}, got {axis} {degree}: set it to 1"
        if recipe.compression != "none" and not self.has_compression:
            with_hooks = [rules for rules in registered() if rules.has_compression]
            who = " and ".join(rules.title for rules in with_hooks) or "no engine"
            choice = "".join(f"engine {rules.name} or " for rules in with_hooks)
            yield (
                f"only {who} compresses gradients, got compression {recipe.compression} with"
                f" {layout.engine}: choose {choice}compression none"
            )
        if recipe.attention_mask != "causal" and not self.has_attention_masks:
            yield (
                f"{self.title} supports only a causal attention mask, got attention_mask {recipe.attention_mask}:"
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
        if layout.offload == "moments":
            yield from self._moments_refusals(recipe)
        elif layout.offload != "none" and (lacking := self.keeps_on_device(layout)):
            streamed = "none, moments" if self.has_host_moments else "none"
            yield (
                f"{lacking} keeps everything on the device, got offload {layout.offload}:"
                f" choose {streamed}, or an engine that shards"
            )
        for axis in axes_of_engine(self.name).values():
            yield from axis.refusals(recipe, layout)

    def _moments_refusals(self, recipe: Recipe) -> Iterator[str]:
        """Yields the reasons why moments in host memory cannot pass through this engine's steps."""
        if not self.has_host_moments:
            yield (
                f"{self.title} passes no moments in host memory through the device's step, got offload moments: choose"
                " engine ddp or fsdp, or another offload"
            )
        if recipe.optimizer != "adamw":
            yield f"{recipe.optimizer} has no moments to hold in host memory, got offload moments: choose adamw or none"
        if recipe.compute_precision == "fp16":
            yield (
                "an fp16 step may be skipped, which the device knows after moments have passed through it, got offload"
                " moments: choose compute_precision bf16 or offload none"
            )

    def needs(self, layout: LayoutAxes, cluster: Cluster) -> Iterator[str]:
        """Yields a sentence for each of the engine's axes whose value the devices of `cluster` cannot run."""
        for axis in axes_of_engine(self.name).values():
            yield from axis.needs(layout, cluster)

    def depth_refusals(self, recipe: Recipe, layout: LayoutAxes) -> Iterator[str]:
        """Yields a sentence for each axis that counts no fewer blocks than the model or its smallest stage has."""
        for name, declared in axes_of(type(layout)).items():
            if not declared.counts_blocks or not (value := getattr(layout, name)):
                continue
            blocks = min(len(stage.blocks) for stage in stages_of(recipe, layout))
            if value >= blocks:
                cut = layout.in_words(layout.above_one(CUTTING["depth"]))
                whose = f"a stage of {recipe.model.name} at {cut}" if cut else recipe.model.name
                yield f"{name} {value} reaches beyond the {blocks} blocks of {whose}: choose less"

    def lacks_axis(self, axis: str) -> str:
        """Returns the reason, as a clause, why the engine lacks the degree `axis`."""
        return f"{self.title} has no {axis}"

    def lacks_float8(self) -> str:
        """Returns the reason, as a clause, why no linear layer computes in FP8."""
        return f"{self.title} has no linear layers in FP8"

    def lacks_buckets(self, layout: LayoutAxes) -> str:
        """Returns the reason, as a clause, why the size of gradient buckets cannot be set; "" if it can."""
        return f"{self.title} has no bucket size to set"

    def keeps_on_device(self, layout: LayoutAxes) -> str:
        """Returns the subject of a sentence if this layout keeps all states on the device; "" if it can offload."""
        return self.title


def engines_having(axis: str) -> str:
    """Returns a clause naming this project's engines that have the degree."""
    names = [rules.name for rules in registered() if axis in rules.model_parallel]
    return f"engines {' and '.join(names)} have it" if len(names) > 1 else f"engine {names[0]} has it" if names else ""


@functools.cache
def registered() -> tuple[EngineRules, ...]:
    return tuple(attribute(path) for path in REGISTRY.values())


def attribute(path: str) -> Any:
    """Returns the object at an import path "package.module:NAME"."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
