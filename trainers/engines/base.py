"""Public names for engines outside this project (docs/your-engine.md); the changelog states each change to them.

`Stepper` is the minimum, which can be measured. `TorchEngine` has every ability; its subclasses lay out the model
(`lay_out`, with `fill_weights`), exchange gradients (`syncing`), set the context of products (`computing`, `gathered`)
and report settings (`in_effect`).
"""

from trainers.distributed.state import Counters, StateTensor, TensorPart
from trainers.engines.stepper import (
    Engine,
    HasLogits,
    HasModels,
    HasSettings,
    HasTrainingState,
    MissingAbilityError,
    Stepper,
)
from trainers.engines.torch_engine import TorchEngine
from trainers.marks.step import Marks, StepPhase, StepResult
from trainers.models.model import Model
from trainers.spec.engines.rules import EngineRules
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

__all__ = [
    "Counters", "Engine", "EngineRules", "HasLogits", "HasModels", "HasSettings", "HasTrainingState",
    "Layout", "Marks", "MissingAbilityError", "Model", "Recipe", "StateTensor", "StepPhase", "StepResult", "Stepper",
    "TensorPart", "TorchEngine",
]  # fmt: skip
