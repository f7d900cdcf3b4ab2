"""`DdpAxis`: what DDP's runtime needs of an axis of `trainers/spec/engines/engine_axis`. Without torch."""

import abc
from typing import TYPE_CHECKING, Any

from trainers.spec.engines.engine_axis import EngineAxis

if TYPE_CHECKING:
    from trainers.spec.layout import Layout


class DdpAxis(EngineAxis, abc.ABC):
    """One axis in DDP."""

    @abc.abstractmethod
    def replays(self, layout: "Layout") -> bool:
        """Returns whether micro-steps are captured once and replayed."""

    @abc.abstractmethod
    def in_effect(self, is_replayed: bool | None) -> Any:
        """Returns the axis' value where micro-steps are replayed or not; None where the first step is still to come."""
