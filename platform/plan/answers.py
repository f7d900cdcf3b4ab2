"""The answers of `python -m platform.plan`: tables, JSON fields and exit code for each question."""

import dataclasses
from pathlib import Path
from typing import Any

from rich.console import Console

from platform.common.builder import BuildQuestion
from platform.common.errors import InputError, NothingFits
from platform.common.progress import Progress
from platform.common.text import count as short_count
from platform.cost_model.hardware import ClusterSpec
from platform.plan.balances import by_balance, parse_balances, show_balances
from platform.plan.best_layouts import batch_hint, best_plan
from platform.plan.goodput import elapsed
from platform.plan.layout_table import show_plan
from platform.plan.max_model import largest_models
from platform.plan.named_points import named_json, named_points, of_space, show_named
from platform.plan.networks import by_network, parse_sweep, show_networks
from platform.plan.picture import draw_sizes
from platform.plan.plan_options import PlanOptions
from platform.plan.planned import LayoutPlan, PredictedLayout
from platform.plan.points import recipes_of
from platform.plan.projection import StudyPrior
from platform.plan.sizes import AtSize, against_devices, at_size, fewest_nodes, parse_counts, parse_phases, ramp_up
from platform.plan.tables import (
    PREDICTED,
    cluster_label,
    conditions,
    planned_json,
    show_fewest,
    show_largest,
    show_phases,
    show_sizes,
)
from platform.study.folder import user_path
from platform.study.layout_file import write_layout
from search_spaces.space import Space
from trainers.spec.batch import BatchPoint
from trainers.spec.host_moments import host_memory_sentence
from trainers.spec.recipe import Recipe

Answer = tuple[dict[str, Any], int]
"""(fields of the JSON object, exit code)."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question to answer: the options, the space and the cluster."""

    options: PlanOptions
    space: Space
    cluster: ClusterSpec
    taught: StudyPrior | None = None
    """The measurements of the `--learn-from` study."""
    console: Console
    builder: BuildQuestion
    """Check that transformers can build the models, running in the background; `ready` waits for its result."""

    progress: Progress
    """The progress line that is shown while the answer is computed."""

    @property
    def tokens(self) -> float:
        return self.options.tokens or self.space.tokens

    def ready(self) -> None:
        """Waits for the check that transformers builds the model, and ends the progress line before the answer is
        printed.

        Raises:
            InputError: transformers does not build the model.
        """
        self.builder.check()
        self.progress.end()

    def answer(self) -> Answer:
        """Prints the answer and returns it.

        Raises:
            InputError: the question has no answer.
        """
        options = self.options
        if options.max_model:
            return _largest_models(self)
        if options.min_nodes:
            return _fewest_nodes(self)
        if options.batch_rampup:
            return _phases(self, options.batch_rampup)
        if options.gpus:
            return _sizes(self, options.gpus)
        if options.sweep:
            return _networks(self, options.sweep)
        if options.balance:
            return _balances(self, options.balance)
        return _named_points(self) if self.space.points else _layouts(self)


def _largest_models(question: Question) -> Answer:
    options, space, cluster = question.options, question.space, question.cluster
    counts = parse_counts(options.gpus) if options.gpus else (cluster.devices_per_node,)
    micro_batch = options.micro_batch or min(space.micro_batches or (1,))
    largest = largest_models(space, space.recipe, cluster, counts, micro_batch=micro_batch)
    question.ready()
    question.console.print(conditions(cluster, by_size=True), highlight=False)
    show_largest(largest, question.console)
    models = [
        {
            "gpus": size.num_devices,
            "params_b": size.recipe.model.num_parameters / 1e9,
            "layers": size.recipe.model.num_layers,
            "hidden": size.recipe.model.hidden_size,
            "heads": size.recipe.model.num_heads,
            "config": size.recipe.model.to_config(),
            **planned_json(size.planned, cluster, question.tokens),
        }
        for size in largest
    ]
    return {"max_model": models}, 0


def _phases(question: Question, written: str) -> Answer:
    space, cluster = question.space, question.cluster
    phases = ramp_up(space, space.recipe, cluster, parse_phases(written))
    question.ready()
    question.console.print(conditions(cluster, by_size=True), highlight=False)
    show_phases(phases, question.console)
    entries = [
        {
            "global_batch": phase.global_batch,
            "nodes": phase.num_nodes,
            "efficiency": phase.efficiency,
            **planned_json(phase.planned, cluster, question.tokens),
        }
        for phase in phases
    ]
    return {"batch_rampup": entries}, 0


def _sizes(question: Question, written: str) -> Answer:
    space, cluster, console, png = question.space, question.cluster, question.console, question.options.png
    sizes = against_devices(space, space.recipe, cluster, parse_counts(written), question.taught)
    question.ready()
    basis = PREDICTED if question.taught is None else f"predicted, corrected by study {question.taught.name}"
    console.print(f"{space.recipe.label}, {short_count(question.tokens)} tokens", highlight=False)
    console.print(conditions(cluster, basis, by_size=True), highlight=False)
    show_sizes(sizes, cluster, question.tokens, console)
    if png is not None:
        draw_sizes(sizes, cluster, question.tokens, png, title=space.recipe.label, basis=basis)
        console.print(f"drawn as {png}", highlight=False)
    entries = [{"gpus": size.num_devices, **_size_json(size, question)} for size in sizes]
    return {"gpus": entries}, 0 if any(size.planned for size in sizes) else 1


def _networks(question: Question, written: str) -> Answer:
    space, cluster, console = question.space, question.cluster, question.console
    rows = by_network(space, cluster, parse_sweep(written))
    question.ready()
    console.print(f"{space.recipe.label}, {short_count(question.tokens)} tokens", highlight=False)
    console.print(conditions(cluster), highlight=False)
    show_networks(rows, question.tokens, console)
    entries = [{"node_gbps": row.gbit_per_s, **_size_json(row.best, question)} for row in rows]
    return {"sweep": entries}, 0 if any(row.best.planned for row in rows) else 1


def _balances(question: Question, written: str) -> Answer:
    rows = by_balance(question.space, question.cluster, parse_balances(written))
    question.ready()
    question.console.print(conditions(question.cluster), highlight=False)
    show_balances(rows, question.tokens, question.console)
    entries = [{"balance": row.fullest, **_size_json(row.best, question)} for row in rows]
    return {"balances": entries}, 0 if any(row.best.planned for row in rows) else 1


def _size_json(size: AtSize, question: Question) -> dict[str, Any]:
    if size.planned is None:
        return {"reason": size.reason}
    part = question.cluster.with_devices(size.num_devices)
    return {"reason": size.reason, **_with_days(size.planned, question.space.recipe, part, question)}


def _with_days(planned: PredictedLayout, recipe: Recipe, cluster: ClusterSpec, question: Question) -> dict[str, Any]:
    """Returns one layout as JSON, with its days including checkpoints, restarts and failures."""
    days = elapsed(planned, recipe, cluster, question.tokens, question.options.interruptions)
    return {**planned_json(planned, cluster, question.tokens), **days.to_json()}


def _named_points(question: Question) -> Answer:
    cluster = of_space(question.space, question.cluster)
    points = named_points(question.space, cluster)
    question.ready()
    show_named(points, cluster, question.tokens, question.console)
    entries = named_json(points, cluster, question.tokens)
    return {"points": entries}, 0 if any(not point.reason for point in points) else 1


def _layouts(question: Question) -> Answer:
    options, space, cluster, console = question.options, question.space, question.cluster, question.console
    plans: list[LayoutPlan] = []
    without: dict[str, InputError] = {}
    for recipe in recipes_of(space):
        try:
            plans.append(best_plan(space, recipe, cluster, top=options.top, taught=question.taught))
        except InputError as error:
            without[recipe.label] = error
    question.ready()
    if not plans:
        raise next(iter(without.values()))
    if not any(plan.best for plan in plans):
        raise NothingFits(
            f"no layout of {space.recipe.model.name} fits into the memory of {cluster.num_devices} x"
            f" {cluster.device.name}: {plans[0].nearest}{batch_hint(plans[0].skipped, space, plans[0].recipe, cluster)}"
        )
    for plan in plans:
        show_plan(plan, question.tokens, options.interruptions, console)
        console.print()
    of_hosts = (host_memory_sentence(plan.recipe, [planned.layout for planned in plan.best]) for plan in plans)
    for sentence in (*space.not_in_full, *dict.fromkeys(filter(None, of_hosts))):
        console.print(sentence, highlight=False)
    if options.save_layout is not None and plans[0].best:
        _save_layout(plans[0], question, user_path(options.save_layout))
    for label, error in without.items():
        console.print(f"{label}: {error}\n", highlight=False)
    failed = [{"recipe": label, "layouts": [], "reason": str(error)} for label, error in without.items()]
    answered = [_plan_json(plan, question) for plan in plans]
    return {"recipes": [*answered, *failed], "not_in_full": dict(space.narrowed)}, 0


def _save_layout(plan: LayoutPlan, question: Question, path: Path) -> None:
    """Writes the plan's first layout as a `layout.json` and prints its path.

    Raises:
        InputError: the file cannot be written.
    """
    first = plan.best[0]
    predicted = {
        "cluster": cluster_label(plan.cluster),
        "tokens_per_s": first.tokens_per_s,
        "needed_gib": first.needed_gib,
        "ok_probability": first.ok_probability,
    }
    batch = BatchPoint(micro_batch=first.micro_batch, grad_accum=first.grad_accum)
    write_layout(path, plan.recipe, first.layout, batch, {"predicted": predicted})
    question.console.print(
        f"The first row is in {path}, predicted and not measured; to measure it: python -m platform.search"
        f" {question.options.space[0]} --layout {path}",
        highlight=False,
        soft_wrap=True,
    )


def _plan_json(plan: LayoutPlan, question: Question) -> dict[str, Any]:
    return {
        "recipe": plan.recipe.label,
        "layouts": [_with_days(planned, plan.recipe, plan.cluster, question) for planned in plan.best],
        "faster_if_it_fits": plan.faster_if_it_fits
        and planned_json(plan.faster_if_it_fits, question.cluster, question.tokens),
        "num_layouts": plan.num_layouts,
        "num_too_large": plan.num_too_large,
        "loses_by": dict(plan.lost_by),
        "nearest": "" if plan.best else plan.nearest,
        "num_points": plan.num_points,
        "skipped": dict(plan.skipped),
        "learned": plan.learned,
        "at_listed_ends": list(plan.at_ends),
    }


def _fewest_nodes(question: Question) -> Answer:
    space, cluster, console = question.space, question.cluster, question.console
    fewest = fewest_nodes(space, space.recipe, cluster)
    question.ready()
    console.print(f"{fewest.recipe.label}\n{conditions(cluster, by_size=True)}", highlight=False)
    show_fewest(fewest, cluster, console)
    counts = sorted({fewest.num_nodes * factor for factor in (1, 2, 4, 8, 16)})
    parts = [dataclasses.replace(cluster, num_nodes=count) for count in counts]
    sizes = [at_size(space, fewest.recipe, part) for part in parts]
    console.print(f"\ntime against nodes ({short_count(question.tokens)} tokens)", highlight=False)
    show_sizes(sizes, cluster, question.tokens, console, by_node=True)
    answer = {
        "nodes": fewest.num_nodes,
        "global_batch": fewest.recipe.global_batch,
        "fewer_with_another_batch": fewest.rounded and dataclasses.asdict(fewest.rounded),
        "needed_gib": fewest.needed_gib,
        "parts_gib": dict(fewest.parts_gib),
        "binding_rank": fewest.rank,
        "smallest": fewest.smallest,
        "against_nodes": [
            {"nodes": size.num_devices // cluster.devices_per_node, **_size_json(size, question)} for size in sizes
        ],
    }
    return {"recipe": fewest.recipe.label, "min_nodes": answer}, 0
