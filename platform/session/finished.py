"""Decides from its journal whether a study has anything left to run, which is faster than starting Ray."""

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from platform.cluster.nodes import Place
from platform.loop.budget import Budget
from platform.loop.jobs import Settings
from platform.loop.loop import Loop
from platform.probing import store
from platform.study.study import Study
from platform.subject.request import Request
from platform.subject.subject import subject_of


def why_over(study: Study, request: Request) -> str:
    """Returns why a session of any budget on the study's devices would neither run nor record anything, with these
    devices; "" where it would. Writes nothing.

    It is "" too if the last session did not end by itself, if it left contenders unresolved, whose runs continue, and
    if there are probes, which are found by what nodes report.

    Raises:
        InputError: nothing of the request can run on such devices.
    """
    _, history = study.follow()
    header, end = history.header, history.end
    is_finished = end is not None and end.tried_all and end.exit_code in (0, 1)
    if header is None or not is_finished or (study.path.parent / store.FOLDER).exists():
        return ""
    subject = subject_of(request, Place(cluster=header.cluster, cpus_per_worker=1.0, driver_ip=""), probe=None)
    loop = Loop(
        study=study,
        candidates=subject.plan.candidates,
        searcher=searchers.create(request.searcher, subject.problem),
        budget=Budget(),
        settings=Settings(
            cluster=subject.cluster,
            cpus_per_worker=1.0,
            recorder="",
            commit="",
            cap_gib=subject.cap_gib,
            timing=subject.timing,
            rules=subject.rules,
        ),
    )
    if not loop.decide().phase.is_terminal or loop.has_unwritten:
        return ""
    return f"on {subject.cluster.label}: {loop.why_ended}"
