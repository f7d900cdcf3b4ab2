"""Turns the options of a plan into its answer."""

import dataclasses
from typing import Any

from rich.console import Console

from platform.common.builder import BuildQuestion
from platform.common.errors import InputError
from platform.common.progress import Progress
from platform.cost_model.hardware import ClusterSpec
from platform.plan.answers import Answer, Question
from platform.plan.assumptions import Assumptions
from platform.plan.comparison_answer import compared
from platform.plan.plan_options import PlanOptions
from platform.plan.prices import check_prices
from platform.plan.projection import StudyPrior
from platform.plan.rows import write_rows
from platform.plan.sizes import parse_counts
from platform.plan.subjects import cluster_of, space_of
from platform.plan.tables import cluster_label
from platform.search.setup.old_studies import read_old
from platform.study.bucket import fetched, is_address
from platform.study.folder import located, user_path
from platform.study.study import find, is_study
from search_spaces.space import Space


def _taught(options: PlanOptions, space: Space, software: str) -> StudyPrior | None:
    """Returns the measurements of the `--learn-from` study; None without the option.

    Raises:
        InputError: the study does not exist, or is of another model.
    """
    if options.learn_from is None:
        return None
    if is_address(options.learn_from):
        folder = fetched(options.learn_from)
        if not is_study(folder):
            raise InputError(f"{options.learn_from} is a folder of studies: name one of them with --learn-from")
    else:
        folder = find(*located(user_path(options.studies), options.learn_from))
    old = read_old(folder, space, trusted=True)  # reads only: writes nothing, runs no code that it names
    if old.header.miniature:
        raise InputError(
            f"study {old.header.name} measured {old.header.recipes[0].model.name}, which stands in where there is no"
            f" GPU and says nothing of {space.recipe.model.name}: leave --learn-from out, or name a study of the model"
        )
    taught = StudyPrior.of(old.header.name, old.header.cluster, old.measurements, software)
    return dataclasses.replace(taught, memory_capped=options.device_memory_gib is not None)


def answered(options: PlanOptions, console: Console) -> Answer:
    """Prints the answer as text on `console`; returns its JSON object and the exit code.

    Raises:
        InputError: the options are invalid.
        ClusterError: Ray fails.
    """
    answer, code = compared(options, console) if options.compares else _planned(options, console)
    if options.csv is not None:
        write_rows(user_path(options.csv), answer)
    return answer, code


def _planned(options: PlanOptions, console: Console) -> Answer:
    """Prints and returns the answer for one space on one cluster."""
    written, options = options.cluster[0] if options.cluster else "ray", options.with_written_network()
    space = space_of(options)
    options.check(space)
    with BuildQuestion([recipe.model for recipe in space.recipes], options.space[0]) as builder:
        return _answer(options, space, builder, console, written)


def _answer(options: PlanOptions, space: Space, builder: BuildQuestion, console: Console, written: str) -> Answer:
    """Prints and returns the answer on the cluster that `written` names."""
    cluster = cluster_of(options, [space], console)
    check_prices(options.price, [cluster])
    space = space.with_shared_batch(_counts(options, cluster))
    assumptions = Assumptions.of(options, space, cluster)
    for sentence in (*space.model_remarks, *assumptions.sentences()):
        console.print(sentence, highlight=False)
    taught = _taught(options, space, cluster.software)
    printed: dict[str, Any] = {
        "space": space.name, "cluster": written, "software": cluster.software, "tokens": options.tokens or space.tokens,
        "assumptions": assumptions.to_json(),
    }  # fmt: skip
    if options.fixes_recipe:
        printed["recipe"] = space.recipe.label
        if space.further_recipes:
            console.print(f"For the first of {len(space.recipes)} recipes alone, --set fixes another", highlight=False)
    with Progress(f"planning {space.name} on {cluster_label(cluster)}") as progress:
        answer, code = Question(
            options=options,
            space=space,
            cluster=cluster,
            taught=taught,
            console=console,
            builder=builder,
            progress=progress,
        ).answer()
    return printed | answer, code


def _counts(options: PlanOptions, cluster: ClusterSpec) -> tuple[int, ...]:
    """Returns the device counts of the answer's tables, which share one assumed global batch: the `--gpus` counts that
    the cluster has, one node's devices with `--min-nodes`, else all devices of the cluster.
    """
    if options.gpus:
        counts = parse_counts(options.gpus)
        return tuple(count for count in counts if cluster.has_part(count)) or counts
    return (cluster.devices_per_node if options.min_nodes else cluster.num_devices,)
