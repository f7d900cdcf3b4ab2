"""`platform.search --gpus 1,2,4`: repeats the search, or one layout, on each number of devices and compares them.

Each number is an ordinary study; they share one connection to Ray.
"""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from platform.cluster.probing import probe_store
from platform.common.errors import ClusterError, InputError, one_line
from platform.common.output import print_line
from platform.common.signals import INTERRUPTED, interruptible
from platform.common.text import plural
from platform.report.endings import RESUME, command_for
from platform.report.group_report import report, worse_code
from platform.search.session import session
from platform.search.session.repetition import write_run
from platform.search.setup.options import SearchOptions, StudyOptions, read_options
from platform.search.setup.request import read_request, resumed
from platform.search.setup.study_setup import setup_of
from platform.study.group import SCALING, StudyGroup, is_group, member, read_group, write_group
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
    first = requests[group.counts[0]]
    code, fault, gpu_s = 1, "", 0.0
    with session.connection(options, first, group.counts[-1]) as handle, interruptible():
        handle = session.without_slow_nodes(options, first, handle)
        probe = probe_store.find(studies, handle)
        for count, request in requests.items():
            try:
                setup_of(request, handle, probe)
            except InputError as error:
                raise InputError(f"on {plural(count, 'device')}: {error}") from error
        if not options.dry_run:
            write_group(studies / name, group)
            if options.resume is None:
                write_run(studies / name, options, begun_with)
        began_s = time.monotonic()  # no budget holds Ray's start
        for number, count in enumerate(group.counts):
            print_line(f"On {plural(count, 'device')} ({number + 1} of {len(group.counts)}):")
            part = _with_budget(options_by_count[count], group.counts[number:], time.monotonic() - began_s, gpu_s)
            try:
                part_code = session.search(part, handle=handle, is_printed=not options.json)
                gpu_s += 0.0 if options.dry_run else _last_gpu_s(studies / member(name, count))
            except ClusterError as error:
                fault = one_line(error)
                break
            code = worse_code(code, part_code)
            if part_code == INTERRUPTED:
                break
    if options.dry_run:
        return code
    if any(is_study(studies / member(name, count)) for count in group.counts):
        report(studies, name, as_object=options.json)
    if fault or code == INTERRUPTED:
        print_line(f"Go on with all of them: {command_for(RESUME, studies / name)}")
    if fault:
        raise ClusterError(fault)
    return code


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


def _with_budget(options: SearchOptions, counts: Sequence[int], spent_s: float, spent_gpu_s: float) -> SearchOptions:
    """Returns `options` with the first of `counts` given its share of the time and device seconds left for them all.

    Each gets the same time, and device seconds in proportion to its devices; what one leaves by ending early goes to
    those that follow.
    """
    time_s, gpu_s = options.time_budget_s, options.gpu_s
    return dataclasses.replace(
        options,
        exclude_slow=False,  # it is done once for all of them
        time_budget_s=None if time_s is None else max(1.0, time_s - spent_s) / len(counts),
        gpu_s=None if gpu_s is None else max(1.0, gpu_s - spent_gpu_s) * counts[0] / sum(counts),
    )


def _last_gpu_s(study: Path) -> float:
    """Returns the device seconds of the study's last session; 0 where it has no end."""
    end = read(study)[0].end
    return 0.0 if end is None else end.gpu_s
