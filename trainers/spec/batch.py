"""`BatchPoint`: how the global batch of a recipe is divided over ranks and micro-steps."""

import dataclasses

from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.spec.recipe_axes import check_number
from trainers.spec.stages import schedule_refusal
from trainers.spec.workload import flags_of


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BatchPoint:
    """Division of the global batch: `micro_batch` sequences per rank and micro-step, `grad_accum` micro-steps per
    optimizer step.

    Raises:
        ValueError: a field is below 1 or too large.
    """

    micro_batch: int
    grad_accum: int

    def __post_init__(self) -> None:
        for field in ("micro_batch", "grad_accum"):
            check_number(field, getattr(self, field))

    @classmethod
    def of(cls, recipe: Recipe, layout: Layout, micro_batch: int) -> "BatchPoint":
        """Returns the batch point of `recipe` on `layout` at `micro_batch`.

        `grad_accum` is the recipe's, if it fixes one, and otherwise follows from the global batch.

        Raises:
            ValueError: micro_batch x data-parallel ranks does not divide the global batch, or the pipeline's schedule
                cannot run that few micro-steps.
        """
        per_micro_step = micro_batch * layout.data_parallel
        if not recipe.grad_accum and (micro_batch < 1 or recipe.global_batch % per_micro_step):
            raise ValueError(
                f"global batch {recipe.global_batch} is not a multiple of micro_batch {micro_batch}"
                f" x {layout.data_parallel} data-parallel ranks"
            )
        grad_accum = recipe.grad_accum or recipe.global_batch // per_micro_step
        if reason := schedule_refusal(layout, grad_accum):
            raise ValueError(reason)
        return cls(micro_batch=micro_batch, grad_accum=grad_accum)

    def global_batch(self, layout: Layout) -> int:
        """Returns the number of sequences in one optimizer step over all ranks of `layout`."""
        return self.micro_batch * self.grad_accum * layout.data_parallel


def divides(recipe: Recipe, layout: Layout, micro_batch: int) -> bool:
    """Returns whether `micro_batch` x data-parallel ranks divides the recipe's global batch into a number of
    micro-steps that the pipeline's schedule can run.
    """
    grad_accum, remainder = divmod(recipe.global_batch, micro_batch * layout.data_parallel)
    return not remainder and not schedule_refusal(layout, grad_accum)


def values_of(layout: Layout, batch: BatchPoint, *, num_nodes: int = 1) -> dict[str, object]:
    """Returns the values to fill a user's command at a batch point, except values that only a run or a node knows."""
    devices = {"gpus": layout.world_size // num_nodes, "world_size": layout.world_size, "nodes": num_nodes}
    return {**flags_of(layout.flags), "micro_batch": batch.micro_batch, "grad_accum": batch.grad_accum, **devices}
