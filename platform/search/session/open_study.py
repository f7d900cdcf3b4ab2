"""The beginning of a session, before it knows a cluster: creates or opens the study and reads the request."""

import dataclasses
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from platform.cluster import leftovers
from platform.common.errors import InputError
from platform.common.output import print_line
from platform.search.session import own_commands
from platform.search.session.header import check_engines, check_space_file
from platform.search.setup.options import SearchOptions, options_of
from platform.search.setup.rechecked import subject_of
from platform.search.setup.request import SearchRequest, read_request, resumed
from platform.study.backup import Backup
from platform.study.folder import studies_option
from platform.study.group import is_group
from platform.study.history import History
from platform.study.journal import JOURNAL
from platform.study.study import Study, check_name, fresh_name, is_study
from trainers.records.trust import admit, check_owner


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OpenStudy:
    """A session whose study is locked and whose request is known."""

    options: SearchOptions
    """The options, including those kept by a resumed study."""
    request: SearchRequest
    study: Study | None
    """None in a dry run of a new study, which has no folder."""
    history: History = dataclasses.field(default_factory=History)
    """The records of earlier sessions."""
    leftover: leftovers.Note | None = None
    """The note of resources that a killed driver left on the cluster."""
    copy: Backup | None = None
    """The second copy of the study's journal."""

    @property
    def is_resumed(self) -> bool:
        return self.history.header is not None

    def copying(self) -> AbstractContextManager[None]:
        """Returns a context that copies the journal if a place for a copy is set."""
        return self.copy.following(self.study.journal) if self.copy and self.study else nullcontext()


def with_resumption(options: SearchOptions) -> SearchOptions:
    """Returns the options; with `--auto-resume` and an existing study `--name`, those that resume it.

    Raises:
        InputError: `--auto-resume` is given without `--name`.
    """
    name = options.name
    if not options.auto_resume or options.resume is not None:
        return options
    if name is None:
        raise InputError("--auto-resume goes on with the study of a name: give --name")
    check_name(name)
    folder = options.studies / name
    is_begun = is_study(folder) or is_group(folder)
    if not is_begun and options.copy_to is not None:
        is_begun = Backup(options.copy_to, name).is_begun
    return dataclasses.replace(options, resume=name) if is_begun else options


@contextmanager
def opened(options: SearchOptions) -> Generator[OpenStudy]:
    """Yields the session of the options and closes its study on leaving.

    Raises:
        InputError: the user made a mistake.
    """
    opening = _resumed(options, options.resume) if options.resume is not None else _new(options)
    try:
        yield opening
    finally:
        if opening.study is not None:
            opening.study.close()


def _new(options: SearchOptions) -> OpenStudy:
    if options.name is not None:
        check_name(options.name)
    _check_rechecked(options)
    request = read_request(options)
    own_commands.remember(request)
    if options.dry_run:
        return OpenStudy(options=options, request=request, study=None)
    name = options.name or fresh_name(options.studies, request.space.name)
    copy = None if options.copy_to is None else Backup(options.copy_to, name)
    if copy is not None and copy.is_begun:
        raise InputError(
            f"a study {name!r} exists already in {copy.place}: continue it with --resume"
            f" {name}{studies_option(options.studies)}, or choose another name"
        )
    return OpenStudy(options=options, request=request, study=Study.create(options.studies, name), copy=copy)


def _check_rechecked(options: SearchOptions) -> None:
    """Checks that the old study of a recheck, which may come from another user, may run here, as for a resumption.

    Raises:
        InputError: a resumption of it would be refused.
    """
    if options.study.recheck is None:
        return
    folder = Path(options.study.recheck)
    admit(folder, (JOURNAL,), trusted=options.trust)
    header = subject_of(folder).result.header
    check_engines(header)
    begun_with = options_of(header)
    check_owner(begun_with.files(), trusted=options.trust)
    check_space_file(header, begun_with.files(), trusted=options.trust)
    if begun_with.command:
        own_commands.check(read_request(options), is_typed=False, trusted=options.trust)


def _resumed(options: SearchOptions, name: str) -> OpenStudy:
    if options.name is not None and options.name != name:
        raise InputError(f"--resume {name} goes on under its own name: leave out --name")
    copy = None if options.copy_to is None else Backup(options.copy_to, name)
    if copy is not None and (remark := copy.fetch(options.studies, trusted=options.trust)):
        print_line(remark)
    study, history, remark = Study.resume(options.studies, name, trusted=options.trust)
    try:
        if remark:
            print_line(remark)
        leftover = leftovers.read_note(study.path)
        if leftover and (remark := leftovers.sweep(leftover)):
            print_line(remark)
        assert history.header is not None
        check_engines(history.header)
        begun_with, typed = options_of(history.header), options.study.is_own
        options = resumed(options, begun_with)
        check_owner(begun_with.files(), trusted=options.trust)
        check_space_file(history.header, begun_with.files(), trusted=options.trust)
        _check_rechecked(options)
        if begun_with.learn_from is not None and options.study.learn_from is None:
            print_line("The study that it learned from is gone: it goes on with what it measured itself.")
        request = read_request(options)
        own_commands.check(request, is_typed=typed, trusted=options.trust)
        return OpenStudy(options=options, request=request, study=study, history=history, leftover=leftover, copy=copy)
    except BaseException:
        study.close()
        raise
