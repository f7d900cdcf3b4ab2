"""Several searches of one command: `--gpus 1,2,4` repeats the search, or one layout, on each number of devices, and
several spaces are searched each for itself.

Each is an ordinary study; they share one connection to Ray, and the cluster at the same time where it holds trials of
several.
"""

import dataclasses
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

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

Key = TypeVar("Key")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One of the searches."""

    study: str
    """Name of its study."""
    model: str
    """The model's part of that name; "" where there is one model."""
    count: int | None
    """Number of devices of a trial; None for the space's own, or all."""
    options: SearchOptions

    @property
    def label(self) -> str:
        """The model and number of devices that tell it from the others."""
        return ", ".join(filter(None, (self.model, "" if self.count is None else plural(self.count, "device"))))


def is_asked(options: SearchOptions) -> bool:
    """Returns whether the options mean several searches, new or resumed."""
    if options.resume is not None:
        return is_group(options.studies / options.resume)
    return len(options.study.gpus) > 1 or bool(options.study.further)


def search(options: SearchOptions) -> int:
    """Begins or resumes a study for each model and number of devices, then shows them all; returns the exit code.

    Raises:
        InputError: a user's mistake, found before anything starts.
        ClusterError: the cluster is at fault.
    """
    studies = options.studies
    name, group = _name_and_group(options)
    begun_with = read_options(group.options)
    members = {entry.study: entry for entry in _members(options, begun_with, name, group)}
    requests = {study: read_request(entry.options) for study, entry in members.items()}
    largest = max(requests.values(), key=lambda request: request.wanted_devices or 0)
    code, faults, gpu_s = 1, list[str](), 0.0
    with session.connection(options, largest) as handle, interruptible():
        handle = session.without_slow_nodes(options, largest, handle)
        probe = probe_store.find(studies, handle)
        setups: dict[str, StudySetup] = {}
        for study, request in requests.items():
            try:
                setups[study] = setup_of(request, handle, probe)
            except InputError as error:
                entry = members[study]
                place = f"on {plural(entry.count, 'device')}" if entry.count and not entry.model else entry.label
                raise InputError(f"{place}: {error}") from error
        if not options.dry_run:
            write_group(studies / name, group)
            if options.resume is None:
                write_run(studies / name, options, begun_with)
        began_s = time.monotonic()  # no budget holds Ray's start
        parts = parts_of(setups, handle, options)
        sizes = {study: setup.cluster.num_devices for study, setup in setups.items()}
        for number, part in enumerate(parts):
            left = [sizes[study] for following in parts[number:] for study in following]
            spent_s = time.monotonic() - began_s
            of_part = {
                study: dataclasses.replace(
                    members[study],
                    options=_with_budget(
                        members[study].options, sizes[study], left, len(parts) - number, spent_s, gpu_s
                    ),
                )
                for study in part
            }
            try:
                others = {study: _others(members[study], members, setups, studies) for study in part}
                ends = _ends(of_part, others, handle, [*members], is_printed=not options.json)
            except ClusterError as error:
                faults.append(one_line(error))
                break
            faults += [fault for _, fault in ends if fault]
            gpu_s += 0.0 if options.dry_run else sum(_last_gpu_s(studies / study) for study in part)
            for part_code, _ in ends:
                code = worse_code(code, part_code)
            if faults or code == INTERRUPTED:
                break
    if options.dry_run:
        return code
    if any(is_study(studies / study) for study in members):
        report(studies, name, as_object=options.json)
    if faults or code == INTERRUPTED:
        print_line(f"Go on with all of them: {command_for(RESUME, studies / name)}")
    if faults:
        raise ClusterError(faults[0])
    return code


def parts_of(setups: Mapping[Key, StudySetup], handle: ClusterHandle, options: SearchOptions) -> list[tuple[Key, ...]]:
    """Returns the searches that run at the same time, in turn: all of them where the cluster holds trials of two; under
    a limit of time as many as each find nodes for their final runs beside the others.
    """
    lanes = {
        key: lanes_of(options.side_by_side, setup.cluster, handle, dict, lambda: False) for key, setup in setups.items()
    }
    parts, num_nodes = list[tuple[Key, ...]](), len(handle.nodes)
    if options.dry_run or options.side_by_side == "off" or not num_nodes:
        return [(key,) for key in setups]
    if all(session.budget_of(options, setup.space).time_s is None for setup in setups.values()):
        least = sorted(place.nodes_per_trial * place.share for place in lanes.values())[:2]
        return [tuple(setups)] if sum(least) <= num_nodes else [(key,) for key in setups]
    for key in setups:
        part = (*(parts[-1] if parts else ()), key)
        if parts and sum(lanes[other].nodes_per_trial for other in part) <= num_nodes:
            parts[-1] = part
        else:
            parts.append((key,))
    return parts


def _others(
    entry: Member, members: Mapping[str, Member], setups: Mapping[str, StudySetup], studies: Path
) -> list[Other]:
    """Returns the searches of the same model on other numbers of devices, with what they have measured so far."""
    others = [other.study for other in members.values() if other.model == entry.model and other.study != entry.study]
    return [
        Other(setup=setups[other], history=read(studies / other)[0] if is_study(studies / other) else History())
        for other in others
    ]


def _ends(
    of_part: Mapping[str, Member],
    others: Mapping[str, Sequence[Other]],
    handle: ClusterHandle,
    studies: Sequence[str],
    *,
    is_printed: bool,
) -> list[tuple[int, str]]:
    """Runs these searches, several at the same time; returns the exit code and fault of each."""
    if len(of_part) == 1:
        (entry,) = of_part.values()
        title = entry.label if entry.model else f"On {entry.label}"
        print_line(f"{title} ({studies.index(entry.study) + 1} of {len(studies)}):")
        return [(session.search(entry.options, handle=handle, is_printed=is_printed, others=others[entry.study]), "")]
    entries = list(of_part.values())
    listed = [entry.label if entry.model else str(entry.count) for entry in entries]
    words = " and ".join(filter(None, (("; " if entries[0].model else ", ").join(listed[:-1]), listed[-1])))
    title = words if entries[0].model else f"On {words} devices"
    print_line(f"{title} at the same time, on {plural(len(handle.nodes), 'node')}:")
    labelled = {f"[{entry.label}] ": (entry.options, others[entry.study]) for entry in entries}
    return session.search_together(labelled, handle=handle, is_printed=is_printed)


def _name_and_group(options: SearchOptions) -> tuple[str, StudyGroup]:
    """Returns the common name of the studies, and what they have in common."""
    studies, study = options.studies, options.study
    if options.resume is not None:
        if options.name is not None and options.name != options.resume:
            raise InputError(f"--resume {options.resume} goes on under its own name: leave out --name")
        folder = studies / options.resume
        admit(folder, (SCALING,), trusted=options.trust)
        group = read_group(folder)
        begun_with = read_options(group.options)
        for space in group.models.values() or (begun_with.space,):
            check_owner(dataclasses.replace(begun_with, space=space).files(), trusted=options.trust)
        return options.resume, group
    counts = study.gpus if len(study.gpus) > 1 or not study.further else ()
    names = list[str]()
    spaces = (study.space, *study.further)
    if twice := [str(space) for space, number in Counter(spaces).items() if number > 1]:
        raise InputError(f"{twice[0]} is named twice, and each space is searched once: leave one out")
    for space in spaces:
        its_options = dataclasses.replace(study, space=space, further=(), gpus=study.gpus[:1])
        try:
            names.append(read_request(dataclasses.replace(options, study=its_options)).space.name)
        except InputError as error:
            raise InputError(f"{space}: {error}" if study.further else str(error)) from error
    models = _parts_of_names(names) if study.further else []
    name = options.name or fresh_name(studies, "-".join(models) or names[0])
    group = StudyGroup(counts=counts, options=to_json(study), models=dict(zip(models, map(str, spaces), strict=False)))
    for study_name in (name, *group.members(name)):
        Study.check_free(studies, study_name)
    return name, group


def _parts_of_names(names: Sequence[str]) -> list[str]:
    """Returns a part of a study's name for each of these models, no two alike."""
    stems = [fresh_name(Path(), name).rpartition("-")[0][:24] for name in names]
    return [stem if stems.count(stem) == 1 else f"{stem}-{number}" for number, stem in enumerate(stems, start=1)]


def _members(options: SearchOptions, begun_with: StudyOptions, name: str, group: StudyGroup) -> list[Member]:
    """Returns the searches of the group with their options; a study without a journal yet is a new one."""
    effective = options if options.resume is None else resumed(options, begun_with)
    counts: tuple[int | None, ...] = group.counts or (None,)
    members = list[Member]()
    for model, space in (group.models or {"": begun_with.space}).items():
        for count in counts:
            study_name = member(name, count, model)
            gpus = effective.study.gpus if count is None else (count,)
            study = dataclasses.replace(effective.study, space=space, further=(), gpus=gpus)
            is_begun = is_study(options.studies / study_name)
            of_name = {"name": None, "resume": study_name} if is_begun else {"name": study_name, "resume": None}
            its_options = dataclasses.replace(effective, study=study, **of_name)
            members.append(Member(study=study_name, model=model, count=count, options=its_options))
    return members


def _with_budget(
    options: SearchOptions, count: int, counts: Sequence[int], num_parts: int, spent_s: float, spent_gpu_s: float
) -> SearchOptions:
    """Returns `options` with the share of a search on `count` devices of the time and device seconds left for all those
    on `counts`, which run in so many parts, one after another.

    Each part gets the same time, and each search device seconds in proportion to its devices; what one leaves by ending
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
