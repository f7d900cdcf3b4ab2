"""Reports axes on which the winner has the first or last listed value although a value beyond it may run."""

from platform.cost_model.listed_ends import ListedEnd, listed_ends
from platform.cost_model.memory import lower_bound
from platform.cost_model.ordering import known_columns
from platform.cost_model.predict import predict
from platform.study.history import History
from search_spaces.candidate import Candidate
from trainers.records.journal import StudyHeader
from trainers.records.measurement import Measurement
from trainers.spec.placement import reaches_across_nodes
from trainers.spec.support import refusal


def end_sentences(best: Measurement, history: History) -> list[str]:
    """Returns a sentence for each axis on which the winner has an end value of the plan and the value beyond may run.

    The value beyond must be accepted by the rules and predicted to fit. Empty if the journal states no plan.
    """
    header, recipe = history.header, best.recipe
    if recipe.workload:  # the command lists the micro-batches, and its other axes have no order
        return []
    if header is None or history.planned is None:
        return []
    listed = {
        planned.layout: planned.micro_batches for planned in history.planned.layouts if planned.recipe == recipe.id
    }
    ends = listed_ends(
        recipe,
        best.layout,
        best.batch.micro_batch,
        listed=listed,
        refuses=lambda layout: (
            refusal(recipe, layout, header.cluster) or reaches_across_nodes(layout, header.cluster.devices_per_node)
        ),
    )
    beyond = [end for end in ends if _fits(best, end, header)]
    return [f"{end.words}, and {end.beyond} was not tried: {end.option} tries both." for end in beyond]


def _fits(best: Measurement, end: ListedEnd, header: StudyHeader) -> bool:
    """Returns whether the point beyond fits with a probability above one half; unpredicted, whether it may fit."""
    limit_gib = min(header.cluster.device_memory_gib, header.cap_gib or header.cluster.device_memory_gib)
    if lower_bound(best.recipe, end.layout, end.batch).total_gib > limit_gib:
        return False
    point = Candidate(recipe=best.recipe, layout=end.layout, micro_batches=(end.batch.micro_batch,))
    columns = known_columns([point], header.cluster, header.cap_gib)
    return columns is None or bool(predict(columns).ok_probability[0] > 0.5)
