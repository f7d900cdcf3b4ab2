"""The subject of a study on a given cluster: the space or its miniature, its plan, and the timing of rungs."""

import dataclasses
import math
from collections.abc import Sequence

from platform.cluster.nodes import ClusterHandle
from platform.common import checkout
from platform.common.errors import InputError
from platform.cost_model.ordering import known_columns, likely_best_first
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.search.setup.forecast import COMPILE_S, compile_s
from platform.search.setup.old_studies import Knowledge, common_knowledge
from platform.search.setup.planning import TRIAL_S, SearchPlan, make_plan, part_of
from platform.search.setup.request import SearchRequest
from platform.searchers.problem import Problem, TrialCosts, stacked
from platform.study.result.float8_price import compared
from search_spaces.candidate import Candidate
from search_spaces.command import OF_NODES
from search_spaces.space import Space
from trainers.records.job import GateSize, Timing
from trainers.records.probe import Probe
from trainers.spec.cluster import Cluster
from trainers.spec.recipe import Recipe
from trainers.spec.workload import Workload

TIMINGS = {
    "cuda": Timing(peak_s=5.0),
    # Small models on shared cores: many short windows are more reliable than few long ones.
    "cpu": Timing(window_s=0.2, rung_s=1.0, max_windows=5, peak_s=0.3, longest_step_s=5.0, winner_s=2.0),
}
COMMAND_TIMINGS = {
    # A command's start takes longer than its steps, so these may take a while too.
    "cuda": Timing(rung_s=10.0),
    "cpu": Timing(window_s=0.2, rung_s=3.0, winner_s=6.0),
}
GATES = {"cuda": GateSize(), "cpu": GateSize(sequences=8)}
"""Size of the gate by kind of device. Two steps show the step itself, and what the first step leaves for the second."""
FLOAT8_STEPS = 20
"""Steps of the gate if losses in FP8 are compared with those in bf16."""
GATE_TOKENS = 32_768
"""Tokens of a gate's step, with at least `FEWEST_SEQUENCES`: those of the 32 sequences of length 1,024 with which
`benchmarks.gate_faults` detected each of its faults on a GPU. Longer sequences need fewer of them.
"""
FEWEST_SEQUENCES = 8
"""Least sequences of a gate's step. Each device has at least two, so that gradients are accumulated."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StudySetup:
    """The subject of a study, once the cluster is known."""

    request: SearchRequest
    space: Space
    """The request's space, or its miniature."""
    cluster: Cluster
    """The devices of a trial."""
    cap_gib: float | None
    plan: SearchPlan
    probe: Probe | None = None
    knowledge: Knowledge = dataclasses.field(default_factory=Knowledge)
    """Measurements of old studies that apply, if any are given."""

    @property
    def problem(self) -> Problem[Candidate]:
        """The searcher's problem. A miniature is never trained at length, so it has no planned tokens."""
        costs = TrialCosts(
            num_devices=self.cluster.num_devices,
            start_s=TRIAL_S[self.cluster.device_kind],
            rung_s=1.5 * self.timing.rung_s,
            steps=self.timing.num_whole_steps,
            device=self.cluster.device_word,
        )
        problem = Problem(
            candidates=self.plan.candidates,
            seed=self.request.seed,
            costs=costs,
            compile_s=self._compile_s(),
            tokens=None if self.miniature else self.request.tokens,
            earlier=self.knowledge.earlier,
        )
        columns = self.plan.guide
        if problem.earlier and self.recipes[0].has_model:
            columns = known_columns(problem.rows, self.cluster, self.cap_gib, self.probe)
        return dataclasses.replace(problem, columns=columns, stands_in=self.plan.stand_in is not None)

    def problem_beside(self, others: Sequence["StudySetup"]) -> Problem[Candidate]:
        """Returns the searcher's problem, informed by measurements of `others` if all are predicted."""
        problem = self.problem
        columns = [problem.columns, *(other.plan.guide for other in others)]
        predicted = [each for each in columns if each is not None]
        if not others or len(predicted) < len(columns):
            return problem
        of_others = tuple(other.plan.candidates for other in others)
        return dataclasses.replace(problem, others=of_others, columns=stacked(predicted))

    def _compile_s(self) -> list[float]:
        """Returns each candidate's seconds of compilation beyond those of compiled blocks, which the costs include."""
        if self.cluster.device_kind == "cpu" or not self.recipes[0].has_model:
            return []
        seconds = (compile_s(choice.layout, choice.recipe.model.num_layers) for choice in self.plan.candidates)
        return [max(0.0, number - COMPILE_S["block"]) for number in seconds]

    def probed(self, probe: Probe) -> "StudySetup":
        """Returns the setup with predictions that use the figures of `probe`."""
        ordered, columns = likely_best_first(self.plan.candidates, self.cluster, self.cap_gib, probe)
        plan = dataclasses.replace(self.plan, candidates=tuple(ordered), columns=columns)
        return dataclasses.replace(self, plan=plan, probe=probe)

    @property
    def miniature(self) -> bool:
        return self.recipes[0].miniature_of is not None

    @property
    def timing(self) -> Timing:
        request = self.request
        timings = COMMAND_TIMINGS if self.recipes[0].command else TIMINGS
        return dataclasses.replace(
            timings[self.cluster.device_kind], steps=request.steps, whole_steps=request.whole_steps
        )

    @property
    def rules(self) -> ConfirmationRules:
        size, devices = GATES[self.cluster.device_kind], self.cluster.num_devices
        longest = max(recipe.seq_len for recipe in self.recipes)
        sequences = min(size.sequences, max(GATE_TOKENS // longest, FEWEST_SEQUENCES, 2 * devices))
        every_point = self.request.every_point
        return ConfirmationRules(
            repeats=self.space.repeats if self.request.repeats is None else self.request.repeats,
            finalists=None if every_point else self.space.finalists,
            profile=self.request.profile,
            # A number of sequences that every data-parallel degree divides.
            gate=GateSize(
                steps=FLOAT8_STEPS if compared(self.recipes) else size.steps,
                sequences=math.ceil(sequences / devices) * devices,
            ),
        )

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """The recipes, the space's reference first, which named points may leave out. Each has its own winner."""
        used = {entry.recipe: None for entry in (*self.plan.candidates, *self.plan.skipped)}
        return tuple(sorted(used, key=lambda recipe: recipe != self.space.recipe))


def _of_command(command: Workload, cluster: Cluster, num_nodes: int) -> Cluster:
    """Returns the cluster as the command's nodes see it.

    If the command supports several nodes, CPU workers are divided over all `num_nodes`.

    Raises:
        InputError: there are several nodes and a required hole is missing, or workers are not divided evenly.
    """
    missing = [f"{{{name}}}" for name in OF_NODES if name not in command.holes]
    if cluster.device_kind == "cpu" and not missing:
        per_node, remainder = divmod(cluster.num_devices, num_nodes)
        if remainder or not per_node:
            raise InputError(
                f"a command with {{nodes}} runs on all {num_nodes} nodes, which do not share {cluster.num_devices}"
                f" workers evenly: give --gpus {num_nodes * max(1, per_node)}"
            )
        return dataclasses.replace(cluster, num_nodes=num_nodes, devices_per_node=per_node)
    if cluster.num_nodes > 1 and missing:
        raise InputError(
            f"{cluster.num_devices} devices are on {cluster.num_nodes} nodes, and the command has no hole"
            f" {', '.join(missing)} for them, as in torchrun --nnodes '{{nodes}}' --node-rank '{{node_rank}}'"
            f" --master-addr '{{head}}' --master-port '{{port}}': add it, or give --gpus {cluster.devices_per_node}"
        )
    return cluster


def setup_of(request: SearchRequest, handle: ClusterHandle, probe: Probe | None) -> StudySetup:
    """Returns the subject of the request on the cluster of `handle`.

    Raises:
        InputError: nothing of it can run there.
    """
    space = request.space
    if not handle.has_gpus and space.miniature is not None:
        try:
            space = space.miniature.with_changes(request.changes)
        except ValueError as error:
            raise InputError(
                f"{error}, which stands in for {space.name} where no node has a GPU: leave out what it cannot take, or"
                f" predict {space.name} itself with python -m platform.plan"
            ) from error
    if request.num_devices is not None:
        space = space.on_workers(request.num_devices)
    num_devices = dataclasses.replace(request, space=space).wanted_devices
    try:
        cluster = part_of(handle.cluster, num_devices or handle.cluster.num_devices)
    except ValueError as error:
        raise InputError(str(error)) from error
    if command := space.recipe.command:
        cluster = _of_command(command, cluster, len(handle.nodes))
    space = space.with_shared_batch((cluster.num_devices,))
    candidates, rejected = request.on(space, cluster.num_devices)
    spans_nodes = request.fixed is not None or space.spans_nodes
    cap_gib = request.cap_gib or space.device_memory_gib
    setup = StudySetup(
        request=request,
        space=space,
        cluster=cluster,
        cap_gib=cap_gib,
        plan=make_plan(
            candidates, rejected, cluster, cap_gib, probe, spans_nodes=spans_nodes, stand_in=request.stand_in
        ),
        probe=probe,
    )
    if request.old is None:
        return setup
    knowledge = common_knowledge(
        request.old,
        recipes=setup.recipes,
        cluster=cluster,
        cap_gib=cap_gib,
        versions=checkout.versions(),
        commit=checkout.commit(),
    )
    return dataclasses.replace(setup, knowledge=knowledge)
