"""`Layout`: all settings of a training that must not change its mathematics, except how the batch is divided."""

import dataclasses
import functools
import math
from collections.abc import Iterator

from trainers.spec.axis import axes_of, choices_of
from trainers.spec.codec import identity, shortened
from trainers.spec.engines import engines_with, rules_of
from trainers.spec.engines.engine_axis import instead_of
from trainers.spec.engines.rules import EngineRules
from trainers.spec.layout_axes import MODEL_PARALLEL, LayoutAxes
from trainers.spec.recipe import Recipe
from trainers.spec.stages import schedule_contradictions

LARGEST = 10**6
"""Largest degree, and largest bucket in MiB; a larger value is taken for a typing error."""


@dataclasses.dataclass(frozen=True, kw_only=True)  # no slots: cached properties are kept beside the fields
class Layout(LayoutAxes):
    """One way to run a recipe on devices. A change of any field needs a new process group or model.

    Raises:
        ValueError: a name is unknown, a number is out of bounds, or the engine does not allow the combination.
    """

    def __post_init__(self) -> None:
        for name, choices in choices_of(Layout).items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        for name, declared in axes_of(Layout).items():
            if declared.least is None:
                continue
            if (value := getattr(self, name)) < declared.least:
                bound = f"be at least {declared.least}" if declared.least else "not be negative"
                raise ValueError(f"{name} must {bound}, got {value}")
            if value > LARGEST:
                raise ValueError(f"{name} must be at most 10^6, got {shortened(value)}")
        if self.flags and not self.rules.runs_workloads:
            raise ValueError(
                f"flags are the axes of a user's own training, got flags {shortened(self.flags)} with {self.engine}"
            )
        for sentence in (*self.rules.contradictions(self), *self._missing_axes(), *schedule_contradictions(self)):
            raise ValueError(sentence)

    def _missing_axes(self) -> Iterator[str]:
        """Yields a sentence for each axis that is set although the engine lacks it at this sharding stage."""
        for name, declared in axes_of(Layout).items():
            if not declared.of_some_engines or not self.is_set(name):
                continue
            if self.zero_stage not in self.rules.stages_with(name):
                yield (
                    f"{name} is an axis of {engines_with(name)}, got {name} {getattr(self, name)} with"
                    f" {self.engine} at stage {self.zero_stage}{instead_of(name, self.engine)}"
                )

    @functools.cached_property
    def id(self) -> str:
        return _identity(self)

    @property
    def rules(self) -> EngineRules:
        return rules_of(self.engine)

    @property
    def unknown(self) -> frozenset[str]:
        """Axes whose value is unknown, because the user's workload decides it; no view shows them."""
        return _UNKNOWN if self.rules.runs_workloads else frozenset()

    @property
    def complexity_rank(self) -> tuple[int, ...]:
        """Measures of the distance from a plain training loop, the most important first; smaller is simpler."""
        split = math.prod(self.above_one(MODEL_PARALLEL).values())
        states = (int(self.offload != "none"), int(self.checkpointing != "none"))
        return (split, *states, self.rules.complexity_rank, self.zero_stage)

    def hardware_flops_per_token(self, recipe: Recipe, *, keys_per_query: float) -> float:
        """Returns the FLOPs that devices perform for a token of `recipe`, including recomputation, at `keys_per_query`
        keys per query on average.
        """
        model = recipe.model
        hardware = model.hardware_flops_per_token(recipe.seq_len, self.checkpointing, keys_per_query=keys_per_query)
        if not recipe.adapter_rank:
            return hardware
        repeats = self.checkpoint_every and self.checkpointing != "selective"
        repeated = -(-model.num_layers // self.checkpoint_every) if repeats else 0
        frozen = model.flops_per_token(recipe.seq_len, keys_per_query=keys_per_query)
        others = recipe.flops_per_token(keys_per_query=keys_per_query) - frozen
        return hardware + others + 2.0 * repeated * recipe.adapters_per_layer

    @property
    def degrees(self) -> str:
        """The degrees of the mesh as text; empty if a workload decides them."""
        return "" if self.unknown else super().degrees

    @property
    def query_parts(self) -> int:
        """Number of parts into which ranks cut a sequence's queries in attention; 1 if ranks exchange heads."""
        return 1 if self.cp_exchange == "all_to_all" else self.parts("tokens")

    @functools.cached_property
    def label(self) -> str:
        """A short line for people, without fields at their default."""
        parts = [self.rules.label(self), self.replicas, *self.axis_labels().values()]
        return ", ".join(part for part in parts if part)

    def axis_labels(self, *columns: str) -> dict[str, str]:
        labels = super().axis_labels(*columns)
        return {name: words for name, words in labels.items() if name not in self.unknown}

    @property
    def memory_order(self) -> tuple[int, ...]:
        """Smaller where full checkpointing and sharding leave less in memory."""
        return int(self.checkpointing != "full"), -self.zero_stage

    def _is_shown(self, axis: str) -> bool:
        """Returns whether labels name the value of `axis`; `grad_sync` only if the engine has both modes and there is
        more than one rank.
        """
        return self.rules.chooses_sync(self) if axis == "grad_sync" else super()._is_shown(axis)


_UNKNOWN = frozenset(axes_of(Layout)) - {"engine", "flags"}
# Called at every measurement of a study, which has ten thousand of them over some thousand layouts.
_identity = functools.lru_cache(maxsize=1 << 16)(identity)
