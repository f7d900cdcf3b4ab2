"""`platform.search --gpus 1,2,4`: repeats the search, or one layout, on each number of devices and compares them.

Each number is an ordinary study; they share one connection to Ray, and the cluster at the same
time where it holds trials of several.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from platform.cluster.nodes import ClusterHandle
from platform.cluster.probing import probe_store
from platform.common.errors import ClusterError, InputError, one_line
from platform.common.output import print_line
from platform.common.signals import INTERRUPTED, interruptible
from platform.common.text import plural
from platform.report.endings import RESUME, command_for
from platform.report.group_report import report, worse_code
from platform.search.loop.lanes import lanes_of
from platform.search.session import session
from platform.search.session.repetition import write_run
from platform.search.session.session_run import Other
from platform.search.setup.options import SearchOptions, StudyOptions, read_options
from platform.search.setup.request import read_request, resumed
from platform.search.setup.study_setup import StudySetup, setup_of
from platform.study.group import SCALING, StudyGroup, is_group, member, read_group, write_group
from platform.study.history import History
from platform.study.study import Study, fresh_name, is_study, read
from trainers.records.trust import admit, check_owner
from trainers.spec.codec import to_json


def is_asked(options: SearchOptions) -> bool:
    """Returns whether the options mean several numbers of devices, in a new search or a resumed one."""
    if options.resume is not None:
        return is_group(options.studies / options.resume)
    return len(options.study.gpus) > 1


def search(options: SearchOptions) -> int:
    """Begins or resumes a study for each number of devices, then compares them; returns the exit code.

    Raises:
        InputError: a user's mistake, found before anything starts.
        ClusterError: the cluster is at fault.
    """
    studies = options.studies
    name, group = _name_and_options(options)
    begun_with = read_options(group.options)
    options_by_count = {count: _options(options, begun_with, name, count) for count in group.counts}
    requests = {count: read_request(options_by_count[count]) for count in group.counts}
    largest = requests[group.counts[-1]]
    code, faults, gpu_s = 1, list[str](), 0.0
    with session.connection(options, largest) as handle, interruptible():
        handle = session.without_slow_nodes(options, largest, handle)
        probe = probe_store.find(studies, handle)
        setups: dict[int, StudySetup] = {}
        for count, request in requests.items():
            try:
                setups[count] = setup_of(request, handle, probe)
            except InputError as error:
                raise InputError(f"on {plural(count, 'device')}: {error}") from error
        if not options.dry_run:
            write_group(studies / name, group)
            if options.resume is None:
                write_run(studies / name, options, begun_with)
        began_s = time.monotonic()  # no budget holds Ray's start
        parts = parts_of(setups, handle, options)
        for number, counts in enumerate(parts):
            left = [count for part in parts[number:] for count in part]
            spent_s = time.monotonic() - began_s
            of_part = {
                count: _with_budget(options_by_count[count], count, left, len(parts) - number, spent_s, gpu_s)
                for count in counts
            }
            try:
                others = {count: _others(count, setups, studies, name) for count in counts}
                ends = _ends(of_part, others, handle, group.counts, is_printed=not options.json)
            except ClusterError as error:
                faults.append(one_line(error))
                break
            faults += [fault for _, fault in ends if fault]
            gpu_s += 0.0 if options.dry_run else sum(_last_gpu_s(studies / member(name, count)) for count in counts)
            for part_code, _ in ends:
                code = worse_code(code, part_code)
            if faults or code == INTERRUPTED:
                break
    if options.dry_run:
        return code
    if any(is_study(studies / member(name, count)) for count in group.counts):
        report(studies, name, as_object=options.json)
    if faults or code == INTERRUPTED:
        print_line(f"Go on with all of them: {command_for(RESUME, studies / name)}")
    if faults:
        raise ClusterError(faults[0])
    return code


def parts_of(setups: Mapping[int, StudySetup], handle: ClusterHandle, options: SearchOptions) -> list[tuple[int, ...]]:
    """Returns the numbers of devices whose searches run at the same time, in turn: all of them where the cluster holds
    trials of two; under a limit of time as many as each find nodes for their final runs beside the others.
    """
    lanes = {
        count: lanes_of(options.side_by_side, setup.cluster, handle, dict, lambda: False)
        for count, setup in setups.items()
    }
    parts, num_nodes = list[tuple[int, ...]](), len(handle.nodes)
    if options.dry_run or options.side_by_side == "off" or not num_nodes:
        return [(count,) for count in setups]
    if all(session.budget_of(options, setup.space).time_s is None for setup in setups.values()):
        least = sorted(place.nodes_per_trial * place.share for place in lanes.values())[:2]
        return [tuple(setups)] if sum(least) <= num_nodes else [(count,) for count in setups]
    for count in setups:
        part = (*(parts[-1] if parts else ()), count)
        if parts and sum(lanes[other].nodes_per_trial for other in part) <= num_nodes:
            parts[-1] = part
        else:
            parts.append((count,))
    return parts


def _others(count: int, setups: Mapping[int, StudySetup], studies: Path, name: str) -> list[Other]:
    """Returns the searches on other numbers of devices, with what they have measured so far."""
    paths = {other: studies / member(name, other) for other in setups if other != count}
    return [
        Other(setup=setups[other], history=read(path)[0] if is_study(path) else History())
        for other, path in paths.items()
    ]


def _ends(
    of_part: Mapping[int, SearchOptions],
    others: Mapping[int, Sequence[Other]],
    handle: ClusterHandle,
    counts: Sequence[int],
    *,
    is_printed: bool,
) -> list[tuple[int, str]]:
    """Searches on these numbers of devices, on several at the same time; returns the exit code and fault of each."""
    if len(of_part) == 1:
        ((count, options),) = of_part.items()
        print_line(f"On {plural(count, 'device')} ({counts.index(count) + 1} of {len(counts)}):")
        return [(session.search(options, handle=handle, is_printed=is_printed, others=others[count]), "")]
    numbers = " and ".join(filter(None, (", ".join(map(str, [*of_part][:-1])), str([*of_part][-1]))))
    print_line(f"On {numbers} devices at the same time, on {plural(len(handle.nodes), 'node')}:")
    labelled = {f"[{plural(count, 'device')}] ": (options, others[count]) for count, options in of_part.items()}
    return session.search_together(labelled, handle=handle, is_printed=is_printed)


def _name_and_options(options: SearchOptions) -> tuple[str, StudyGroup]:
    """Returns the common name of the studies and their common options."""
    studies, counts = options.studies, options.study.gpus
    if options.resume is not None:
        if options.name is not None and options.name != options.resume:
            raise InputError(f"--resume {options.resume} goes on under its own name: leave out --name")
        folder = studies / options.resume
        admit(folder, (SCALING,), trusted=options.trust)
        group = read_group(folder)
        check_owner(read_options(group.options).files(), trusted=options.trust)
        return options.resume, group
    first = dataclasses.replace(options, study=dataclasses.replace(options.study, gpus=counts[:1]))
    name = options.name or fresh_name(studies, read_request(first).space.name)
    for study_name in (name, *(member(name, count) for count in counts)):
        Study.check_free(studies, study_name)
    return name, StudyGroup(counts=counts, options=to_json(options.study))


def _options(options: SearchOptions, begun_with: StudyOptions, name: str, count: int) -> SearchOptions:
    """Returns the options of the study on `count` devices, a new one where it has no journal yet."""
    study_name = member(name, count)
    effective = options if options.resume is None else resumed(options, begun_with)
    study = dataclasses.replace(effective.study, gpus=(count,))
    if is_study(options.studies / study_name):
        return dataclasses.replace(effective, study=study, name=None, resume=study_name)
    return dataclasses.replace(effective, study=study, name=study_name, resume=None)


def _with_budget(
    options: SearchOptions, count: int, counts: Sequence[int], num_parts: int, spent_s: float, spent_gpu_s: float
) -> SearchOptions:
    """Returns `options` with the share of this number of devices of the time and device seconds left for all `counts`,
    which run in so many parts, one after another.

    Each part gets the same time, and each number device seconds in proportion to its devices; what one leaves by ending
    early goes to those that follow.
    """
    time_s, gpu_s = options.time_budget_s, options.gpu_s
    return dataclasses.replace(
        options,
        exclude_slow=False,  # it is done once for all of them
        time_budget_s=None if time_s is None else max(1.0, time_s - spent_s) / num_parts,
        gpu_s=None if gpu_s is None else max(1.0, gpu_s - spent_gpu_s) * count / sum(counts),
    )


def _last_gpu_s(study: Path) -> float:
    """Returns the device seconds of the study's last session; 0 where it has no end."""
    end = read(study)[0].end
    return 0.0 if end is None else end.gpu_s
