"""The engines behind one interface, and what is asked of them without building one.

A new engine is a folder here with `runtime.py` (how it runs) and `rules.py` (what it accepts), one line in `_REGISTRY`
and one line in the contract test. An engine outside this project is named by the import path of its rules.
"""

import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainers.marks.step import Marks, StepResult
from trainers.spec.axis import axes_of
from trainers.spec.engines.rules import EngineRules
from trainers.startup import import_stubs

if TYPE_CHECKING:
    import torch

    from trainers.distributed.state import Counters, StateTensor
    from trainers.models.model import Model
    from trainers.spec.batch import BatchPoint
    from trainers.spec.layout import Layout
    from trainers.spec.recipe import Recipe

_REGISTRY = {
    "ddp": "trainers.spec.engines.ddp:ENGINE",
    "fsdp": "trainers.spec.engines.fsdp:ENGINE",
    "deepspeed": "trainers.spec.engines.deepspeed:ENGINE",
}
_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class Engine(Protocol):
    """One model laid out on the ranks of the default process group, ready to train.

    Made by `create` on every rank at once. No method but `close`, `in_effect`, `num_skipped_steps` and
    `named_full_weights` syncs the host with the device unless the engine's library does so itself.
    """

    def __init__(self, recipe: "Recipe", layout: "Layout", device: "torch.device") -> None:
        """Builds the model on the meta device, lays it out and fills the weights (see `trainers.models.weights`)."""
        ...

    @property
    def models(self) -> "Sequence[Model]":
        """The model as it was built, whose modules are those that run; for a pipeline, the stages of this rank."""
        ...

    @property
    def marks_micro_steps(self) -> bool:
        """Whether a step marks each of its micro-steps. Otherwise its schedule interleaves them and is timed whole."""
        ...

    def step(self, micro_batches: "Sequence[torch.Tensor]", marks: Marks) -> StepResult:
        """Runs one optimizer step over this rank's micro-batches; marks the phases as they begin.

        Each of `micro_batches` is int64 [micro_batch, seq_len + 1] on the device, the same on all ranks that share a
        data-parallel coordinate; under a document or prefix mask some have a flag (`trainers.data.flags`). The
        gradient is that of the mean loss over all micro-batches and data-parallel ranks, clipped. The result is this
        rank's alone: no collective is added for it, the caller combines ranks.
        """
        ...

    def set_learning_rate(self, learning_rate: float) -> None:
        """Sets the learning rate from the next optimizer step on."""
        ...

    def num_skipped_steps(self) -> int:
        """Returns how many optimizer steps were skipped so far because fp16 gradients overflowed."""
        ...

    def logits(self, tokens: "torch.Tensor") -> "torch.Tensor":
        """Returns the logits [batch, seq_len, vocab] of int64 [batch, seq_len] tokens, without gradient; a
        collective.
        """
        ...

    def loss(self, tokens: "torch.Tensor") -> "torch.Tensor":
        """Returns the mean loss of this rank's int64 [batch, seq_len + 1] tokens, without gradient, 0-dim fp32; a
        collective.
        """
        ...

    def training_state(self) -> "Mapping[str, StateTensor]":
        """Returns master weights and optimizer states by canonical key, those parts that this rank holds, as live
        memory.

        States that the first optimizer step would create are created. See `trainers.distributed.state`.
        """
        ...

    def counters(self) -> "Counters":
        """Returns the numbers of the optimizer that belong to its states."""
        ...

    def adopt(self, counters: "Counters") -> None:
        """Continues from what was written into `training_state`, and from these counters; a collective.

        Call it before the first step. Steps after it are those that the saved engine would have made.
        """
        ...

    def in_effect(self) -> Mapping[str, Any]:
        """Returns what the engine really runs, read back from its own objects, under the names of Layout and Recipe.

        `mismatches` compares it with what was asked for. None stands for a value that is unknown before a step has run.
        """
        ...

    def named_full_weights(self) -> Iterator[tuple[str, "torch.Tensor"]]:
        """Returns an iterator over the whole master weights by name in the plain transformers model.

        It is a collective: call it on all ranks.
        """
        ...

    def close(self) -> None:
        """Releases hooks and buffers; the process group stays."""
        ...


def names() -> tuple[str, ...]:
    """Returns the names of this project's engines."""
    return tuple(_REGISTRY)


def registered() -> tuple[EngineRules, ...]:
    """Returns the rules of this project's engines."""
    return tuple(rules_of(name) for name in _REGISTRY)


def packages() -> tuple[str, ...]:
    """Returns the packages beyond torch and transformers that this project's engines need."""
    return tuple(dict.fromkeys(package for rules in registered() for package in rules.packages))


def config(recipe: "Recipe", layout: "Layout", batch: "BatchPoint") -> dict[str, Any]:
    """Returns the point's configuration in the format of its engine; empty where the engine has none."""
    return _attribute(path)(recipe, layout, batch) if (path := layout.rules.config) else {}


def is_path(name: str) -> bool:
    """Returns whether `name` is the import path of an engine outside this project, importable or not."""
    return _PATH.fullmatch(name) is not None


@functools.cache
def rules_of(name: str) -> EngineRules:
    """Returns the rules of the engine of that name. Imports nothing from outside this project: a journal may come from
    someone else.

    The rules of an engine named by its import path follow from the path; its module is asked only for what may run
    (`refusals`).

    Raises:
        ValueError: neither a name nor an import path.
    """
    if name in _REGISTRY:
        return _attribute(_REGISTRY[name])
    if not is_path(name):
        raise ValueError(
            f"engine must be one of {', '.join(_REGISTRY)}, or the import path of one of your own"
            f" (package.module:NAME), got {name!r}"
        )
    return _Outside(name=name, title=name, runtime="", grad_syncs={})


@functools.cache
def imported_rules(name: str) -> EngineRules:
    """Returns the engine's own rules: those of `rules_of`, or those that an import path leads to.

    Raises:
        ValueError: no such engine, or one that cannot be imported here.
    """
    rules = rules_of(name)
    if not isinstance(rules, _Outside):
        return rules
    try:
        rules = _attribute(name)
    except Exception as error:  # the user's module: whatever it raises is told in one sentence
        raise ValueError(f"engine {name} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(rules, EngineRules):
        raise ValueError(f"engine {name} is no trainers.spec.engines.rules.EngineRules, got {type(rules).__name__}")
    if rules.name != name:
        raise ValueError(f"engine {name} has rules of another name ({rules.name}): set name to the import path")
    return rules


def engines_with(axis: str) -> str:
    """Returns the engines of this project that have `axis`, with their stages, such as "fsdp and of deepspeed at stage
    3".
    """
    names: list[str] = []
    for rules in registered():
        stages = rules.stages_with(axis)
        span = f"stages {stages[0]} to {stages[-1]}" if len(stages) > 1 else f"stage {stages[0]}" if stages else ""
        if stages:
            names.append(rules.name if stages == rules.stages else f"{rules.name} at {span}")
    return " and of ".join(names)


def source_hash(name: str) -> str:
    """Returns 12 hex digits of SHA-256 over the source of an engine outside this project: its rules' module and its
    runtime's.

    Raises:
        ValueError: the engine cannot be imported, or its source cannot be found.
    """
    rules = imported_rules(name)
    digest = hashlib.sha256()
    for module in sorted({path.partition(":")[0] for path in (name, rules.runtime)}):
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None or not Path(spec.origin).is_file():
            raise ValueError(f"engine {name} cannot be used: the source of module {module} cannot be found")
        digest.update(Path(spec.origin).read_bytes())
    return digest.hexdigest()[:12]


def create_engine(recipe: "Recipe", layout: "Layout", device: "torch.device") -> Engine:
    """Returns the engine that `layout` names, built. Imports only that engine's library.

    Raises:
        ValueError: no such engine.
    """
    return engine_class(layout.engine)(recipe, layout, device)


def engine_class(name: str) -> type[Engine]:
    """Returns the class of that engine; imports its library, which may take seconds.

    Raises:
        ValueError: no such engine, or one that cannot be imported here.
    """
    rules = imported_rules(name)
    with import_stubs.imports():
        return _attribute(rules.runtime)


def _attribute(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Outside(EngineRules):
    """Rules in place of an engine outside this project, imported or not: its layouts can be read and reported
    everywhere.
    """

    def chooses_sync(self, layout: "Layout") -> bool:
        return layout.data_parallel > 1

    def contradictions(self, layout: "Layout") -> Iterator[str]:
        return iter(())  # they stand among the refusals

    def refusals(self, recipe: "Recipe", layout: "Layout") -> Iterator[str]:
        try:
            rules = imported_rules(self.name)
        except ValueError as error:
            yield str(error)
            return
        yield from rules.contradictions(layout)
        yield from rules.refusals(recipe, layout)


def mismatches(in_effect: Mapping[str, Any], recipe: "Recipe", layout: "Layout", *, grad_accum: int) -> list[str]:
    """Returns a sentence for each difference between what an engine runs and what was requested; empty where there is
    none.
    """
    expected: dict[str, Any] = {
        "world_size": layout.world_size,
        "grad_accum": grad_accum,
        "compute_precision": recipe.compute_precision,
        "product_sums": "fp32",
        "state_precision": recipe.state_precision,
        "optimizer": recipe.optimizer,
        "learning_rate": recipe.learning_rate,
        "weight_decay": recipe.weight_decay,
    }
    for name, declared in axes_of(type(layout)).items():
        is_compared = declared.read_back == "if known" and name in in_effect
        if declared.read_back == "always" or layout.is_set(name) or is_compared:
            expected[name] = getattr(layout, name)
    if recipe.optimizer == "adamw":
        expected |= {name: getattr(recipe, name) for name in ("beta1", "beta2", "epsilon")} | {"fused": True}
    # Gradients travel and are added up in the states' type, where an engine has a setting for it.
    sums = ("reduce_precision", "accumulation_precision")
    expected |= {name: recipe.state_precision for name in sums if name in in_effect}
    if recipe.compression != "none" or "compression" in in_effect:  # engines without it have nothing to read back
        expected["compression"] = recipe.compression
    if recipe.attention_mask != "causal" or "attention_mask" in in_effect:
        expected["attention_mask"] = recipe.attention_mask
    untold = [name for name in expected if name not in in_effect]
    wrong = [
        f"{name} in effect is {in_effect[name]}, the layout or recipe asks for {value}"
        for name, value in expected.items()
        if name in in_effect and in_effect[name] is not None and in_effect[name] != value
    ]
    return [f"the engine does not report its {name}, {expected[name]} was requested" for name in untold] + wrong
