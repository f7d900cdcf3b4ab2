"""`DeepSpeedAxis`: the entries of DeepSpeed's configuration for an axis of `trainers/spec/engines/engine_axis`. Without torch."""

import abc
from typing import TYPE_CHECKING, Any

from trainers.spec.engines.engine_axis import EngineAxis

if TYPE_CHECKING:
    from trainers.spec.layout import Layout
    from trainers.spec.recipe import Recipe


class DeepSpeedAxis(EngineAxis, abc.ABC):
    """One axis in DeepSpeed."""

    @abc.abstractmethod
    def zero_settings(self, recipe: "Recipe", layout: "Layout") -> dict[str, Any]:
        """Returns the entries of the configuration's `zero_optimization`; empty for the library's own."""

    @abc.abstractmethod
    def in_effect(self, engine: Any, recipe: "Recipe") -> Any:
        """Returns the axis' value, read back from DeepSpeed's engine."""
