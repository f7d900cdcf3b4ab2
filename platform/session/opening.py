"""How a session begins, before it knows a cluster: the study is made or taken up again, the request read."""

import dataclasses
from collections.abc import Generator
from contextlib import contextmanager

from platform.cluster import leftovers
from platform.common.errors import InputError
from platform.common.say import say
from platform.session.first_line import check_engines
from platform.study.history import History
from platform.study.study import Study, check_name, fresh_name
from platform.study.trust import check_owner
from platform.subject.options import SearchOptions, options_of
from platform.subject.request import Request, read_request, resumed


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A session whose study is locked and whose request is read."""

    options: SearchOptions
    """With those that a resumed study keeps."""
    request: Request
    study: Study | None
    """None in a dry run of a new study, which has no folder."""
    history: History = dataclasses.field(default_factory=History)
    """What earlier sessions recorded."""
    left: leftovers.Note | None = None
    """What a driver that was killed has left on the cluster."""

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier session began the study."""
        return self.history.header is not None


@contextmanager
def opened(options: SearchOptions) -> Generator[Opened]:
    """The session that the options ask for; at the end its study is let go of.

    Raises:
        InputError: a user's mistake.
    """
    opening = _resumed(options, options.resume) if options.resume is not None else _new(options)
    try:
        yield opening
    finally:
        if opening.study is not None:
            opening.study.close()


def _new(options: SearchOptions) -> Opened:
    if options.name is not None:
        check_name(options.name)
    request = read_request(options)
    study = None
    if not options.dry_run:
        study = Study.create(options.studies, options.name or fresh_name(options.studies, request.space.name))
    return Opened(options=options, request=request, study=study)


def _resumed(options: SearchOptions, name: str) -> Opened:
    if options.name is not None and options.name != name:
        raise InputError(f"--resume {name} goes on under its own name: leave out --name")
    study, history, remark = Study.resume(options.studies, name, trusted=options.trust)
    try:
        if remark:
            say(remark)
        left = leftovers.noted(study.path)
        if left and (remark := leftovers.sweep(left)):
            say(remark)
        assert history.header is not None
        check_engines(history.header)
        begun_with = options_of(history.header)
        options = resumed(options, begun_with)
        check_owner(begun_with.files(), trusted=options.trust)
        if begun_with.learn_from is not None and options.study.learn_from is None:
            say("The study that it learned from is gone: it goes on with what it measured itself.")
        return Opened(options=options, request=read_request(options), study=study, history=history, left=left)
    except BaseException:
        study.close()
        raise
