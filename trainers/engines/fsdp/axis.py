"""`FsdpAxis`: what FSDP2's runtime asks of an axis of `trainers/engines/axes`. Without torch."""

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainers.engines.axes import EngineAxis

if TYPE_CHECKING:
    from trainers.values.layout import Layout


class FsdpAxis(EngineAxis, abc.ABC):
    """One axis in FSDP2."""

    def wrapping(self, layout: "Layout") -> dict[str, Any]:
        """Arguments of `fully_shard` for a block, in place of the runtime's."""
        return {}

    def lay_out(self, units: Sequence[Any], layout: "Layout") -> None:
        """Changes the sharded blocks of one model, which are in the order of the forward pass."""

    @abc.abstractmethod
    def in_effect(self, units: Sequence[Any]) -> Any:
        """The axis' value, read back from the sharded blocks of all models."""
