"""`FsdpAxis`: what FSDP2's runtime needs of an axis of `trainers/spec/engines/engine_axis`. Without torch."""

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainers.spec.engines.engine_axis import EngineAxis

if TYPE_CHECKING:
    from trainers.spec.layout import Layout


class FsdpAxis(EngineAxis, abc.ABC):
    """One axis in FSDP2."""

    def wrapping(self, layout: "Layout") -> dict[str, Any]:
        """Returns arguments of `fully_shard` for a block, which replace the runtime's."""
        return {}

    def lay_out(self, units: Sequence[Any], layout: "Layout") -> None:
        """Changes the sharded blocks of one model, given in the order of the forward pass."""

    @abc.abstractmethod
    def in_effect(self, units: Sequence[Any]) -> Any:
        """Returns the axis' value, read back from the sharded blocks of all models."""
