"""Makes the engine that a layout names, by the rules that name its class. Without torch until an engine is made."""

from typing import TYPE_CHECKING, Any

from trainers.engines.stepper import Engine, Stepper, require
from trainers.spec.batch import BatchPoint
from trainers.spec.engines import imported_rules
from trainers.spec.engines.rules import attribute
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.startup import import_stubs

if TYPE_CHECKING:
    import torch


def create_stepper(recipe: Recipe, layout: Layout, device: "torch.device") -> Stepper:
    """Returns the engine that `layout` names, built, whatever its abilities. Imports only that engine's library.

    Raises:
        ValueError: no such engine.
    """
    return engine_class(layout.engine)(recipe, layout, device)


def create_engine(recipe: Recipe, layout: Layout, device: "torch.device") -> Engine:
    """Returns the engine that `layout` names, built, ready to train.

    Raises:
        ValueError: no such engine.
        MissingAbilityError: it can be measured alone.
    """
    require(engine_class(layout.engine), Engine, "a training")  # before it is built
    return require(create_stepper(recipe, layout, device), Engine, "a training")


def engine_class(name: str) -> type[Stepper]:
    """Returns the class of that engine; imports its library, which may take seconds.

    Raises:
        ValueError: no such engine, or one that cannot be imported here.
    """
    rules = imported_rules(name)
    with import_stubs.imports():
        return attribute(rules.runtime)


def engine_config(recipe: Recipe, layout: Layout, batch: BatchPoint) -> dict[str, Any]:
    """Returns the point's configuration in the format of its engine; empty where the engine has none."""
    return attribute(path)(recipe, layout, batch) if (path := layout.rules.config) else {}
