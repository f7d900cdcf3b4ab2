"""One session of a study, from the options to the exit code."""

import dataclasses
import gc
import os
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext

import platform.searchers as searchers
from platform.cluster import leftovers, preflight
from platform.cluster.connection import CPU_WORKERS, connected
from platform.cluster.nodes import ClusterHandle
from platform.cluster.probing import probe_store, slow_nodes
from platform.cluster.usable_nodes import UsableNodes
from platform.common import checkout
from platform.common.errors import ClusterError
from platform.common.output import print_line
from platform.common.progress import Progress
from platform.common.signals import interruptible
from platform.common.text import plural
from platform.report.endings import verdict
from platform.search.loop.budget import Budget
from platform.search.loop.lanes import Lanes, lanes_of, lanes_sentence
from platform.search.session import finished, first_run, output
from platform.search.session.dry_run import show_dry_run
from platform.search.session.header import check_same, header_of
from platform.search.session.open_study import OpenStudy, opened
from platform.search.session.repetition import write_run
from platform.search.session.session_run import Other, SessionRun, run_together
from platform.search.setup.guesses import sentence_on
from platform.search.setup.options import SearchOptions
from platform.search.setup.planning import SearchPlan
from platform.search.setup.request import SearchRequest
from platform.search.setup.study_setup import StudySetup, setup_of
from platform.study.history import History
from platform.study.study import Study
from platform.tracking.mirror import Mirror, check_uri, default_uri
from platform.tracking.mirrors import Mirrors
from platform.tracking.wandb_runs import WandbMirror
from platform.train import safety
from search_spaces.space import Space
from trainers.records.journal import Resume, StudyCopy
from trainers.records.measurement import Outcome
from trainers.spec.host_moments import node_gib_needed
from trainers.spec.support import not_installed

_UNSAFE = 1
"""Exit code if `--safe` refuses the winner, the same as if nothing fits."""


def search(
    options: SearchOptions,
    *,
    handle: ClusterHandle | None = None,
    is_printed: bool = True,
    others: Sequence[Other] = (),
) -> int:
    """Begins or resumes a study; returns the exit code.

    It runs on the cluster of `handle`, or connects for the duration of the search. The result is shown if `is_printed`.
    The measurements of `others` of the same command inform its searcher.

    Raises:
        InputError: the user made a mistake; raised before anything starts.
        ClusterError: Ray cannot be started, or every trial failed by itself.
    """
    began_s = time.monotonic()
    gc.set_threshold(50_000, 20, 20)  # else a large study's permanent values are scanned again and again
    uri = check_uri(os.environ.get("MLFLOW_TRACKING_URI") or default_uri(options.studies))
    with opened(options) as opening, opening.copying():
        study, request, options = opening.study, opening.request, opening.options
        is_over = study is not None and handle is None and not opening.leftover and not options.safe
        if study and is_over and (reason := finished.finished_reason(study, request)):
            return _show_finished(opening, study, uri, reason, is_printed=is_printed)
        if study:
            searchers.preload(request.searcher)
        with nullcontext(handle) if handle else connection(options, request) as handle, interruptible():
            if study:
                preflight.check(handle.nodes, study.path)
            handle = without_slow_nodes(options, request, handle)
            opening = first_run.with_learned_length(opening, handle)
            setup = _setup(opening, handle)
            budget = budget_of(opening.options, setup.space)
            if study is None or options.dry_run:
                show_dry_run(setup, budget, opening.history, as_object=options.json)
                return 0 if setup.plan.candidates else 1
            begun = _begin(opening, setup, handle, budget, others, began_s=began_s, is_printed=is_printed)
            code, fault = begun.session.run()
            unsafe_reason = begun.unsafe_reason(code)
        code = begun.shown(code, unsafe_reason)
        if fault:
            raise ClusterError(fault)
        return code


def search_together(
    labelled: Mapping[str, tuple[SearchOptions, Sequence[Other]]], *, handle: ClusterHandle, is_printed: bool
) -> list[tuple[int, str]]:
    """Begins or resumes several studies that share the cluster of `handle`; their labels mark their lines.

    Returns for each study the exit code and the fault by which every trial failed ("" without one).

    Raises:
        InputError: the user made a mistake; raised before anything starts.
    """
    began_s, openings = time.monotonic(), list[tuple[OpenStudy, StudySetup]]()
    gc.set_threshold(50_000, 20, 20)
    with ExitStack() as stack, interruptible():
        for options, _ in labelled.values():
            opening = stack.enter_context(opened(options))
            stack.enter_context(opening.copying())
            assert opening.study is not None, "a dry run has no trials"
            preflight.check(handle.nodes, opening.study.path)
            opening = first_run.with_learned_length(opening, handle)
            openings.append((opening, _setup(opening, handle)))
        needed_gib = max(_host_gib(setup) for _, setup in openings)
        usable = UsableNodes(handle, openings[0][0].options.studies, host_gib=needed_gib)
        several = [
            _begin(opening, setup, handle, budget_of(opening.options, setup.space), others, began_s=began_s,
                   is_printed=is_printed, label=label, usable=usable)
            for (opening, setup), (label, (_, others)) in zip(openings, labelled.items(), strict=True)
        ]  # fmt: skip
        ends = run_together([begun.session for begun in several])
        return [
            (begun.shown(code, begun.unsafe_reason(code)), fault)
            for begun, (code, fault) in zip(several, ends, strict=True)
        ]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Begun:
    """A session whose first lines are in the journal."""

    session: SessionRun
    result: output.SessionOutput
    is_safe: bool
    """Whether the winner must be safe to train."""

    def unsafe_reason(self, code: int) -> str:
        """Returns why the winner is not safe to train, if that is to be checked; "" otherwise."""
        session = self.session
        return safety.unsafe_reason(session.handle, session.study.path) if self.is_safe and not code else ""

    def shown(self, code: int, unsafe_reason: str) -> int:
        """Shows the session's result; returns the command's exit code."""
        leftovers.remove_note(self.session.study.path)
        self.result.show()
        if unsafe_reason:
            print_line(f"The winner is not safe to train: {unsafe_reason}")
            return _UNSAFE
        if not code:
            self.result.tell_trainings()
        return code


def _begin(
    opening: OpenStudy,
    setup: StudySetup,
    handle: ClusterHandle,
    budget: Budget,
    others: Sequence[Other],
    *,
    began_s: float,
    is_printed: bool,
    label: str = "",
    usable: UsableNodes | None = None,
) -> _Begun:
    """Writes the session's first lines and starts its first processes. Several searches share `usable` nodes."""
    study, options, request = opening.study, opening.options, opening.request
    assert study is not None, "a dry run has no trials"
    uri = check_uri(os.environ.get("MLFLOW_TRACKING_URI") or default_uri(options.studies))
    _record_beginning(study, opening, setup, uri)
    usable = usable or UsableNodes(handle, study.path, host_gib=_host_gib(setup))
    lanes = _lanes(options, setup, handle, usable, is_told=not label)
    if not request.space.recipe.command and not finished.finished_reason(study, request):
        num_left = sum(bool(opening.history.missing(candidate)) for candidate in setup.plan.candidates)
        most = num_left if budget.max_trials is None else min(num_left, budget.max_trials)
        _start_workers(setup, handle, lanes, most)
    mirror, end = _ending(opening, study, uri, options, is_printed=is_printed)
    session = SessionRun(
        study, setup, handle, budget, began_s=began_s, leftover=opening.leftover, mirror=mirror, result=end,
        lanes=lanes, label=label, others=others,
    )  # fmt: skip
    return _Begun(session=session, result=end, is_safe=options.safe)


def _record_beginning(study: Study, opening: OpenStudy, setup: StudySetup, uri: str) -> None:
    """Writes the session's first line into the journal, and for a new study the file that repeats it."""
    if opening.is_resumed:
        study.record(Resume(argv=tuple(sys.argv[1:]), commit=checkout.commit(), study=opening.history.header))
    else:
        header = header_of(study.name, setup, searcher=opening.request.searcher, uri=uri)
        study.record(header)
        study.record(StudyCopy(study=header))
        write_run(study.path, opening.options, opening.request.options)


def _show_finished(opening: OpenStudy, study: Study, uri: str, reason: str, *, is_printed: bool) -> int:
    """Shows the result of a study that has nothing left to run; returns the exit code."""
    print_line(f"{_reused(opening.history)} nothing is left to run {reason}.")
    leftovers.end_abandoned_sessions()  # of a driver killed just before its end: no Ray of this command does
    if opening.options.dry_run:
        return 0
    mirror, end = _ending(opening, study, uri, opening.options, is_printed=is_printed)
    mirror.start()
    end.show()
    if not (code := verdict(end.result)[0]):
        end.tell_trainings()
    return code


def _setup(opening: OpenStudy, handle: ClusterHandle) -> StudySetup:
    """Returns what the session searches on the cluster of `handle`.

    Raises:
        InputError: nothing can run there, or a resumed study ran on something else.
    """
    request, history = opening.request, opening.history
    with Progress(f"planning {request.space.name} on {handle.cluster.label}"):
        setup = setup_of(request, handle, probe_store.find(opening.options.studies, handle) or history.probe)
    if setup.miniature and setup.space.name != request.space.name:
        print_line(_of_miniature(request.space, setup.space))
    elif setup.space.summary != request.space.summary:
        print_line(f"No node has a GPU: {setup.recipes[0].name} is small enough to be measured on CPUs, in fp32.")
    for sentence in (*setup.space.sentences, *setup.space.not_in_full):
        print_line(f"{sentence[0].upper()}{sentence[1:]}.")
    points = [(entry.recipe, entry.layout) for entry in setup.plan.candidates if entry.recipe.has_model]
    if sentence := not_installed(points, setup.space.optional_axes, setup.cluster):
        print_line(sentence)
    if request.stand_in is not None:
        print_line(sentence_on(request.stand_in, is_known=setup.plan.stand_in is not None))
    for sentence in setup.knowledge.sentences:
        print_line(sentence)
    if opening.is_resumed:
        check_same(history, setup)
        print_line(_rest_sentence(history, setup.plan))
    return setup


@contextmanager
def connection(options: SearchOptions, request: SearchRequest) -> Generator[ClusterHandle]:
    """Yields the cluster named by the options, with at least the devices of the request."""
    with connected(
        options.address,
        cpu_workers=_cpu_workers(request),
        num_gpus=request.wanted_devices,
        wait_s=options.wait_for_gpus,
        start=not options.dry_run,
    ) as handle:
        for sentence in preflight.remarks(handle.nodes):
            print_line(sentence)
        yield handle


def without_slow_nodes(options: SearchOptions, request: SearchRequest, handle: ClusterHandle) -> ClusterHandle:
    """Returns `handle` without its slow nodes if the options ask for it.

    Raises:
        ClusterError: no node would be left, or the probe failed.
    """
    if not options.exclude_slow or options.dry_run:
        return handle
    return slow_nodes.without_slow(handle, options.studies, _cpu_workers(request))


def _cpu_workers(request: SearchRequest) -> int:
    """Returns the number of workers on a cluster without GPUs: the space's, or the requested number if it is larger."""
    return max((request.space.miniature or request.space).num_workers or CPU_WORKERS, request.num_devices or 0)


def _of_miniature(space: Space, miniature: Space) -> str:
    listed = {
        axis: (*values, *(value for varied in miniature.variations for value in varied.get(axis, ())))
        for axis, values in miniature.axes.items()
    }
    listed |= {"micro_batch": miniature.micro_batches}
    tried = "; ".join(f"{axis} {', '.join(map(str, dict.fromkeys(values)))}" for axis, values in listed.items())
    return (
        f"{space.name} cannot be measured here, no node has a GPU: a small search runs on"
        f" {miniature.recipe.model.name}, a small model of the same architecture ({tried}), and says nothing of"
        f" {space.recipe.model.name} itself, which python -m platform.plan predicts."
    )


def _rest_sentence(history: History, plan: SearchPlan) -> str:
    num_left = sum(bool(history.missing(candidate)) for candidate in plan.candidates)
    remaining_text = f"{plural(num_left, 'layout')} to complete" if num_left else "every layout was tried"
    return f"{_reused(history)} {remaining_text}."


def _reused(history: History) -> str:
    measured = sum(measurement.outcome is not Outcome.SKIPPED for measurement in history.measurements)
    return f"Kept {plural(measured, 'measurement')} of the journal;"


def _ending(
    opening: OpenStudy, study: Study, uri: str, options: SearchOptions, *, is_printed: bool
) -> tuple[Mirrors, output.SessionOutput]:
    """Returns the study's mirrors, not yet started, and the object that shows the result at the end."""
    of_wandb = (WandbMirror(study.path, options.wandb, study.from_start()),) if options.wandb else ()
    mirrors = Mirrors(all=(Mirror(study.path, uri, study.from_start()), *of_wandb))
    as_object = options.json if is_printed else None
    end = output.SessionOutput(
        study, mirrors, as_object=as_object, profile=options.profile, copy=opening.copy, address=options.address
    )
    return mirrors, end


def budget_of(options: SearchOptions, space: Space) -> Budget:
    """Returns the user's budget, or the space's if none is given."""
    budget = Budget(max_trials=options.max_trials, time_s=options.time_budget_s, gpu_s=options.gpu_s)
    if budget == Budget() and space.time_budget_s is not None:
        return Budget(time_s=space.time_budget_s, of_space=True)
    return budget


def _host_gib(setup: StudySetup) -> float:
    """Returns the host memory that a node needs for the moments of the study's layouts."""
    candidates = setup.plan.candidates
    points = ((candidate.recipe, candidate.layout) for candidate in candidates if candidate.recipe.has_model)
    return node_gib_needed(points, setup.cluster.devices_per_node)


def _lanes(
    options: SearchOptions, setup: StudySetup, handle: ClusterHandle, usable: UsableNodes, *, is_told: bool
) -> Lanes:
    """Returns where the session's trials run. The two points of a recheck run one after the other."""
    mode = "off" if options.study.recheck else options.side_by_side
    lanes = lanes_of(mode, setup.cluster, handle, usable, usable.has_refused)
    if is_told and (sentence := lanes_sentence(lanes, mode)):
        print_line(sentence)
    return lanes


def _start_workers(setup: StudySetup, handle: ClusterHandle, lanes: Lanes, num_left: int) -> None:
    """Starts the first trials' processes while Tune starts, if their nodes are known.

    `num_left` is the number of trials left before confirmation.
    """
    from trainers.startup import prestart  # imports Ray, which reads at import the settings that `connected` made

    num_trials = max(1, min(lanes.count(), num_left))
    if handle.has_gpus and lanes.count() > 1:
        num_places = lanes.count() // lanes.trials_per_node  # trials fill these places in turn
        trials_of = {
            node.id: len(range(number // lanes.nodes_per_trial, num_trials, num_places))
            for number, node in enumerate(handle.nodes[: num_places * lanes.nodes_per_trial])
        }
    else:
        nodes = handle.nodes if setup.cluster.num_nodes == len(handle.nodes) else ()
        trials_of = {node.id: min(num_trials, lanes.trials_per_node) for node in nodes}
    workers_of = {node: setup.cluster.devices_per_node * count for node, count in trials_of.items() if count}
    if workers_of:
        prestart.ask_first(workers_of, handle.cpus_per_worker, num_trials)
