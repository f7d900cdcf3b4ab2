"""One session of a study, from the options to the exit code."""

import argparse
import functools
import gc
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path

import platform.searchers as searchers
from platform.cluster import head, leftovers, preflight
from platform.cluster.connection import CPU_WORKERS, connected
from platform.cluster.nodes import Place
from platform.errors import ClusterError, InputError
from platform.loop import overdue
from platform.loop.budget import Budget
from platform.loop.jobs import Settings
from platform.loop.loop import Loop
from platform.mirror.mirror import Mirror, check_uri, default_uri, shown_uri
from platform.mirror.system_metrics import sampled
from platform.probing import kept
from platform.reports.progress import followed, say
from platform.reports.text import plural
from platform.session import checkout, ending, finished
from platform.session.dry_run import print_dry_run
from platform.session.request import Request, read_request, resumed
from platform.signals import INTERRUPT_S, INTERRUPTED, ends_when_interrupted, interruptible, leave
from platform.study.history import History
from platform.study.study import Study, check_name, fresh_name
from platform.subject.planning import Plan, same_devices
from platform.subject.subject import Subject, subject_of
from search_spaces.space import Space
from trainers.journal import End, Measured, Resume, StudyHeader
from trainers.measurement import Outcome


def search(
    options: argparse.Namespace,
    parser: argparse.ArgumentParser,
    *,
    place: Place | None = None,
    place_s: float = 0.0,
    shown: bool = True,
) -> int:
    """Searches a new study or goes on with one; returns the exit code.

    On the cluster of `place` where that is given, which took `place_s` to connect to, else on one that it connects to
    for the time of the search. The result is printed unless not `shown`.

    Raises:
        InputError: a user's mistake, found before anything starts.
        ClusterError: Ray cannot be started, or every trial failed for reasons of its own.
    """
    began_s = time.monotonic()
    gc.set_threshold(50_000, 20, 20)  # by default a large study's values, which stay, are looked through all the time
    studies = Path(options.studies).expanduser().absolute()
    uri = check_uri(os.environ.get("MLFLOW_TRACKING_URI") or default_uri(studies))
    study, history, left = None, History(), None
    try:
        if options.resume is not None:
            if options.name is not None and options.name != options.resume:
                raise InputError(f"--resume {options.resume} goes on under its own name: leave out --name")
            study, history, said = Study.resume(studies, options.resume)
            if said:
                say(said)
            if (left := leftovers.noted(study.path)) and (said := leftovers.sweep(left)):
                say(said)
            assert history.header is not None
            options = resumed(options, history.header.argv, parser)
            if "--learn-from" in history.header.argv and options.learn_from is None:
                say("The study that it learned from is gone: it goes on with what it measured itself.")
        elif options.name is not None:
            check_name(options.name)
        request = read_request(options)
        if study is None and not options.dry_run:
            study = Study.create(studies, options.name or fresh_name(studies, request.space.name))
        if study is not None:
            if place is None and not left and (why := finished.why_over(study, request)):
                say(f"{_kept(history)} nothing is left to run {why}.")
                if options.dry_run:
                    return 0
                mirror, tell = _telling(study, uri, options, shown=shown)
                mirror.start()
                tell()
                return ending.verdict(history)[0]
            searchers.preload(request.searcher)
        # The signal last: Ray sets handlers of its own when it connects.
        with nullcontext(place) if place else connection(options, request) as place, interruptible():
            if study is not None:
                preflight.check(place.nodes, study.path)
            place = fast_part(options, request, place)
            subject = subject_of(request, place, kept.find(studies, place))
            if subject.space.name != request.space.name:
                say(_of_miniature(request.space, subject.space))
            for sentence in subject.knowledge.sentences:
                say(sentence)
            if history.header is not None:
                _check_same(history, subject)
                say(_found_again(history, subject.plan))
            if study is None or options.dry_run:
                print_dry_run(subject, _budget(options, subject.space), history)
                return 0
            if history.header is not None:
                study.record(Resume(argv=tuple(sys.argv[1:])))
            else:
                study.record(_header(study.name, subject, searcher=request.searcher, uri=uri))
            if not finished.why_over(study, request):
                _start_workers(subject, place)
            mirror, tell = _telling(study, uri, options, shown=shown)
            budget = _budget(options, subject.space)
            code, fault = _run(
                study, subject, place, budget, began_s, place_s=place_s, left=left, mirror=mirror, tell=tell
            )
        leftovers.forget(study.path)
        tell()
        if fault:
            raise ClusterError(fault)
        return code
    finally:
        if study is not None:
            study.close()


@contextmanager
def connection(options: argparse.Namespace, request: Request, num_devices: int | None = None) -> Generator[Place]:
    """The cluster that the options name, with `num_devices` at least (default: those that the request wants)."""
    with connected(
        options.address,
        cpu_workers=_cpu_workers(request),
        num_gpus=num_devices or request.wanted_devices,
        wait_s=options.wait_for_gpus,
    ) as place:
        for sentence in preflight.remarks(place.nodes):
            say(sentence)
        yield place


def fast_part(options: argparse.Namespace, request: Request, place: Place) -> Place:
    """`place` without its slow nodes, where the options ask for that.

    Raises:
        ClusterError: no node would be left, or the probe failed.
    """
    if not options.exclude_slow or options.dry_run:
        return place
    return preflight.without_slow(place, Path(options.studies).expanduser().absolute(), _cpu_workers(request))


def _cpu_workers(request: Request) -> int:
    """Workers on a cluster without GPUs: those of the space that then runs."""
    return (request.space.miniature or request.space).num_workers or CPU_WORKERS


def _of_miniature(space: Space, miniature: Space) -> str:
    return (
        f"{space.name} cannot be measured here, no node has a GPU: the same search runs on"
        f" {miniature.recipe.model.name}, a small model of the same architecture, and says nothing of"
        f" {space.recipe.model.name} itself."
    )


def _header(name: str, subject: Subject, *, searcher: str, uri: str) -> StudyHeader:
    return StudyHeader(
        name=name,
        space=subject.space.name,
        recipes=subject.recipes,
        cluster=subject.cluster,
        tokens=subject.request.tokens,
        price_per_gpu_h=subject.request.price_per_gpu_h,
        miniature=subject.miniature,
        cap_gib=subject.cap_gib,
        seed=subject.request.seed,
        searcher=searcher,
        argv=subject.request.argv,
        versions=checkout.versions(),
        commit=checkout.commit(),
        mlflow_uri=shown_uri(uri),
    )


def _check_same(history: History, subject: Subject) -> None:
    """Figures of unlike devices must not stand in one table, nor those of a recipe or a layout that a file which was
    named had not begun with: the journal keeps its path alone.
    """
    assert history.header is not None
    was, now = history.header.cluster, subject.cluster
    if not same_devices(was, now):
        raise InputError(f"the study ran on {was.label}, here is {now.label}: start a new study")
    begun = {recipe.id for recipe in history.header.recipes}
    if new := next((recipe for recipe in subject.recipes if recipe.id not in begun), None):
        raise InputError(
            f"what the study names gives another recipe now than it began with ({new.label}): undo that change, or"
            " start a new study"
        )
    layouts = {each.layout for each in (*subject.plan.candidates, *subject.plan.skipped)}
    other = next((each.layout for each in history.measurements if each.layout not in layouts), None)
    if subject.request.fixed is not None and other is not None:
        raise InputError(
            f"the study's layout file no longer holds what it measured ({other.label}): undo that change, or start a"
            " new study"
        )


def _found_again(history: History, plan: Plan) -> str:
    left = sum(bool(history.missing(candidate)) for candidate in plan.candidates)
    what = f"something is left to run of {plural(left, 'layout')}" if left else "every layout was tried"
    return f"{_kept(history)} {what}."


def _kept(history: History) -> str:
    measured = sum(each.outcome is not Outcome.SKIPPED for each in history.measurements)
    return f"Kept {plural(measured, 'measurement')} that the journal has;"


def _telling(study: Study, uri: str, options: argparse.Namespace, *, shown: bool) -> tuple[Mirror, Callable[[], None]]:
    """The study's mirror, which is not started yet, and what shows its result at the end."""
    mirror = Mirror(study.path, uri, study.from_start())
    as_object = options.json if shown else None
    return mirror, functools.partial(ending.tell, study, mirror, as_object=as_object, profile=options.profile)


def _budget(options: argparse.Namespace, space: Space) -> Budget:
    """What the user gave; where that is nothing, the space's own."""
    given = Budget(max_trials=options.max_trials, time_s=options.time_budget_s, gpu_s=options.gpu_s)
    if given == Budget() and space.time_budget_s is not None:
        return Budget(time_s=space.time_budget_s, of_space=True)
    return given


def _start_workers(subject: Subject, place: Place) -> None:
    """Has the first trial's processes start while Tune does, where it is known which nodes it will be on."""
    from trainers import successors  # imports Ray, which reads at import the settings that `connected` made

    if subject.cluster.num_nodes == len(place.nodes):
        workers_of = {node.id: subject.cluster.devices_per_node for node in place.nodes}
        successors.ask_first(workers_of, place.cpus_per_worker)


def _run(
    study: Study,
    subject: Subject,
    place: Place,
    budget: Budget,
    began_s: float,
    *,
    place_s: float = 0.0,
    left: leftovers.Note | None = None,
    mirror: Mirror | None = None,
    tell: Callable[[], None] = lambda: None,
) -> tuple[int, str]:
    """Searches, and writes how the session ended: its exit code, and what every trial failed with ("" for nothing).

    Another session would take `place_s` more to begin. What an earlier driver `left` on the cluster is swept first; the
    `mirror` starts with the first trial. `tell` shows what was measured where this function does not return: the
    process ends in it when the cluster's head is gone.
    """
    known = {measurement.id for measurement in study.follow()[1].measurements}
    for measurement in subject.plan.skipped:
        if measurement.id not in known:
            study.record(Measured(measurement=measurement))
    loop: Loop | None = None
    closing = threading.Lock()
    code, why, fault, left_out, out = 0, "", "", "", sys.stdout

    def end(code: int, why: str) -> None:
        gpu_s, tried_all = (loop.spending.gpu_s, loop.tried_all) if loop is not None else (0.0, False)
        wall_s = time.monotonic() - began_s
        last = End(exit_code=code, wall_s=wall_s, gpu_s=gpu_s, left_out=left_out, tried_all=tried_all, why=why)
        study.record(last)
        if code != ClusterError.exit_code:  # it is raised, or said by `lost`, with how to go on
            say(ending.how_it_ended(last, study.path))

    def cut_short(code: int, why: str, last_words: str) -> None:
        """Ends the process from another thread: the main one is stuck in a call into Ray."""
        if not closing.acquire(blocking=False):  # the session's end is written already
            return
        try:
            end(code, why)
            with redirect_stdout(out):  # Tune's own words are kept from it just now
                tell()
            say(last_words)
        finally:
            out.flush()
            os._exit(code)

    def lost(why: str) -> None:
        cut_short(ClusterError.exit_code, why, f"cluster fault: {why}; {ending.kept(study)}")

    def interrupted() -> None:
        cut_short(
            INTERRUPTED, "", "Ray did not answer after the interrupt: what is left of it goes with the next session."
        )
        time.sleep(INTERRUPT_S)
        leave()

    if mirror is not None:
        mirror.start(once=lambda: loop is not None and loop.running)
    scratch = leftovers.scratch_folder()
    try:
        from platform.loop import tune  # imports Ray, which reads at import the settings that `connected` made

        leftovers.note(study.path, tune.own(is_local=place.is_local, scratch=scratch))
        if left and (said := tune.sweep(left)):
            say(said)
        state = scratch / "recorder.json"
        with (
            ends_when_interrupted(interrupted),
            head.watched(place.head, lost),
            head.watched(place.raylet, lost, head.RAYLET),
            tune.recorder(study.journal, state) as name,
        ):
            loop = Loop(
                study=study,
                candidates=subject.plan.candidates,
                searcher=searchers.create(subject.request.searcher, subject.problem),
                budget=budget,
                settings=Settings(
                    cluster=subject.cluster,
                    cpus_per_worker=place.cpus_per_worker,
                    recorder=name,
                    commit=checkout.commit(),
                    nodes=tuple(node.id for node in place.nodes) if place.left_out else (),
                    cap_gib=subject.cap_gib,
                    timing=subject.timing,
                    rules=subject.rules,
                    hang_floor_s=subject.space.hang_floor_s,
                    first_step_s=subject.space.first_step_s,
                ),
                spent_s=time.monotonic() - began_s,
                shared_s=place_s,
            )
            with (
                sampled(study.path),
                followed(*study.follow(), loop.spending, total=len(subject.plan.candidates)),
                overdue.starts(loop.running_id, state, lost),
            ):
                tune.run(loop, driver_ip=place.driver_ip, scratch=scratch)
        why, left_out = loop.why_ended, loop.left_out
        if loop.fault:
            code, fault = ClusterError.exit_code, f"{loop.fault}; {ending.kept(study)}"
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if not code:
        code, fault = ending.verdict(study.follow()[1])
        why = fault or why
    closing.acquire()
    end(code, why)
    return code, fault
