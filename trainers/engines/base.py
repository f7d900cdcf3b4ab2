"""The public names for engines outside this project (docs/your-engine.md); the changelog tells where one changes.

`Stepper` is the least that an engine has, and is measured. `TorchEngine` makes one of every ability: its subclass lays
the model out (`lay_out`, with `fill_weights`), exchanges gradients (`syncing`), says where its products run
(`computing`, `gathered`) and what is in effect (`in_effect`).
"""

from trainers.distributed.state import Counters, StateTensor, TensorPart
from trainers.engines.stepper import (
    Engine,
    HasLogits,
    HasModels,
    HasSettings,
    HasTrainingState,
    HasWeights,
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
    "Counters", "Engine", "EngineRules", "HasLogits", "HasModels", "HasSettings", "HasTrainingState", "HasWeights",
    "Layout", "Marks", "MissingAbilityError", "Model", "Recipe", "StateTensor", "StepPhase", "StepResult", "Stepper",
    "TensorPart", "TorchEngine",
]  # fmt: skip
