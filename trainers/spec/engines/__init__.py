"""The rules of all engines; no engine is built and torch is not imported.

A new engine is a file here (its `EngineRules`), a file in `trainers/engines` (how it runs), a line in
`trainers.spec.engines.rules.REGISTRY` and a line in the contract test. An engine outside this project is named by the
import path of its rules.
"""

import dataclasses
import functools
import hashlib
import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainers.spec.axis import axes_of, defaults_of
from trainers.spec.engines.rules import OF_WORKLOADS, PREDICTED, REGISTRY, EngineRules, attribute, registered
from trainers.spec.layout_axes import LayoutAxes
from trainers.spec.recipe import Recipe

__all__ = [
    "engines_with", "imported_rules", "is_path", "mismatches", "names", "packages", "predicted", "registered",
    "rules_of", "source_hash",
]  # fmt: skip

_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
WRITTEN = ("journal.jsonl", "scaling.json", "training.json")
"""Files of studies and trainings. A folder with one of them may come from somebody else, and so may a module beside it.
"""


def names() -> tuple[str, ...]:
    return tuple(REGISTRY)


def predicted() -> tuple[str, ...]:
    """Returns the names of other software's engines, for which layouts are predicted and never run."""
    return tuple(PREDICTED)


def packages() -> tuple[str, ...]:
    """Returns the packages that this project's engines need beyond torch and transformers."""
    return tuple(dict.fromkeys(package for rules in registered() for package in rules.packages))


def is_path(name: str) -> bool:
    """Returns whether `name` has the form of an import path to an engine outside this project; nothing is imported."""
    return _PATH.fullmatch(name) is not None


@functools.cache
def rules_of(name: str) -> EngineRules:
    """Returns the rules of the named engine. Imports nothing from outside this project, because a journal may come from
    somebody else.

    For an engine named by its import path, the rules follow from the path; its module is imported only to ask for
    `refusals`.

    Raises:
        ValueError: `name` is neither a known name nor an import path.
    """
    if path := REGISTRY.get(name) or PREDICTED.get(name) or OF_WORKLOADS.get(name):
        return attribute(path)
    if not is_path(name):
        raise ValueError(
            f"engine must be one of {', '.join(REGISTRY)}, or the import path of one of your own"
            f" (package.module:NAME), got {name!r}"
        )
    return ThirdPartyRules(name=name, title=name, runtime="", grad_syncs={})


@functools.cache
def imported_rules(name: str) -> EngineRules:
    """Returns the engine's own rules, imported from its path if it lies outside this project.

    Raises:
        ValueError: the engine is unknown, cannot be imported, or lies in the folder of a study or training.
    """
    rules = rules_of(name)
    if not isinstance(rules, ThirdPartyRules):
        return rules
    if (folder := next(_received(name), None)) is not None:
        raise ValueError(
            f"engine {name} is not imported out of {folder}, the folder of a study or training, whose writer may be"
            " somebody else: look at it, then move it out of there"
        )
    try:
        rules = attribute(name)
    except Exception as error:  # the user's module may raise anything; report it in one sentence
        raise ValueError(f"engine {name} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(rules, EngineRules):
        raise ValueError(f"engine {name} is no trainers.spec.engines.rules.EngineRules, got {type(rules).__name__}")
    if rules.name != name:
        raise ValueError(f"engine {name} has rules of another name ({rules.name}): set name to the import path")
    return rules


def _received(name: str) -> Iterator[Path]:
    """Yields the folders of studies and trainings that contain the module of an import path. Imports nothing."""
    first, *inner = name.partition(":")[0].split(".")
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        return  # the later import reports the reason
    places = [spec.origin] if spec and spec.origin else []
    for place in (*places, *((spec and spec.submodule_search_locations) or ())):
        for folder in Path(place, *inner).resolve().parents:
            if any((folder / written).exists() for written in WRITTEN):
                yield folder


@functools.cache
def engines_with(axis: str) -> str:
    """Returns this project's engines that have `axis`, with their stages, as text such as "fsdp and of deepspeed at
    stage 3".
    """
    names: list[str] = []
    for rules in registered():
        stages = rules.stages_with(axis)
        span = f"stages {stages[0]} to {stages[-1]}" if len(stages) > 1 else f"stage {stages[0]}" if stages else ""
        if stages:
            names.append(rules.name if stages == rules.stages else f"{rules.name} at {span}")
    return " and of ".join(names)


def source_hash(name: str) -> str:
    """Returns 12 hex digits of SHA-256 over the source files of an outside engine's rules and runtime modules.

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


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ThirdPartyRules(EngineRules):
    """Placeholder for an engine outside this project, so that its journals can be read and reported without importing
    it.
    """

    def chooses_sync(self, layout: LayoutAxes) -> bool:
        return layout.data_parallel > 1

    def contradictions(self, layout: LayoutAxes) -> Iterator[str]:
        return iter(())  # the engine's contradictions are yielded as refusals

    def refusals(self, recipe: Recipe, layout: LayoutAxes) -> Iterator[str]:
        try:
            rules = imported_rules(self.name)
        except ValueError as error:
            yield str(error)
            return
        yield from rules.contradictions(layout)
        yield from rules.refusals(recipe, layout)


def mismatches(in_effect: Mapping[str, Any], recipe: Recipe, layout: LayoutAxes, *, grad_accum: int) -> list[str]:
    """Returns a sentence for each difference between the configuration in effect and the requested one; empty if there
    is none.
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
    # Engines that can set the type report it; gradients are exchanged and summed in the states' type.
    sums = ("reduce_precision", "accumulation_precision")
    expected |= {name: recipe.state_precision for name in sums if name in in_effect}
    # Dropout must be off, because its mask would depend on how a batch is divided.
    expected |= {
        name: value for name, value in (("grad_clip", recipe.grad_clip), ("dropout", 0.0)) if name in in_effect
    }
    # Engines that cannot have one of these at another value than the default do not report it.
    readable = ("compression", "attention_mask", "trained_tokens", "routing", "balance_loss", "decay")
    for name in (*readable, "adapter", "lora_targets", "lora_alpha"):
        if getattr(recipe, name) != defaults_of(type(recipe))[name] or name in in_effect:
            expected[name] = getattr(recipe, name)
    untold = [name for name in expected if name not in in_effect]
    wrong = [
        f"{name} in effect is {in_effect[name]}, the layout or recipe asks for {value}"
        for name, value in expected.items()
        if name in in_effect and in_effect[name] is not None and in_effect[name] != value
    ]
    return [f"the engine does not report its {name}, {expected[name]} was requested" for name in untold] + wrong
