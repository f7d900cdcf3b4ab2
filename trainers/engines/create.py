"""Creates the engine that a layout names. Imports torch only when an engine is created."""

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
    """Returns the built engine of `layout`, whatever its abilities. Imports only that engine's library.

    Raises:
        ValueError: the engine is unknown or cannot be imported.
    """
    return engine_class(layout.engine)(recipe, layout, device)


def create_engine(recipe: Recipe, layout: Layout, device: "torch.device") -> Engine:
    """Returns the built engine of `layout`, ready to train.

    Raises:
        ValueError: the engine is unknown or cannot be imported.
        MissingAbilityError: the engine lacks abilities that a training needs.
    """
    require(engine_class(layout.engine), Engine, "a training")  # checked before it is built
    return require(create_stepper(recipe, layout, device), Engine, "a training")


def engine_class(name: str) -> type[Stepper]:
    """Returns the class of the named engine. Imports its library, which may take seconds.

    Raises:
        ValueError: the engine is unknown or cannot be imported.
    """
    rules = imported_rules(name)
    with import_stubs.imports():
        return attribute(rules.runtime)


def engine_config(recipe: Recipe, layout: Layout, batch: BatchPoint) -> dict[str, Any]:
    """Returns the batch point's configuration in the engine's own format; empty if the engine has none."""
    return attribute(path)(recipe, layout, batch) if (path := layout.rules.config) else {}
