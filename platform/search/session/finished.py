"""Decides from its journal whether a study has anything left to run, without the time to start Ray."""

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from platform.cluster.nodes import ClusterHandle
from platform.cluster.probing import probe_store
from platform.search.loop.budget import Budget
from platform.search.loop.jobs import TrialSettings
from platform.search.loop.loop import SearchLoop
from platform.search.setup.request import SearchRequest
from platform.search.setup.study_setup import setup_of
from platform.study.study import Study


def finished_reason(study: Study, request: SearchRequest) -> str:
    """Returns why a session with any budget on the study's devices would neither run nor record anything; "" if it
    would.

    Writes nothing. Also "" if the last session did not end by itself or left contenders unresolved, whose runs
    continue, and if there are stored probes, which can only be matched by asking the nodes.

    Raises:
        InputError: nothing of the request can run on such devices.
    """
    _, history = study.follow()
    header, end = history.header, history.end
    is_finished = end is not None and end.tried_all and end.exit_code in (0, 1)
    # Links measured by the study itself are stored as its cluster's probe.
    stored = (study.path.parent / probe_store.FOLDER).exists() and history.probe is None
    if header is None or not is_finished or stored:
        return ""
    setup = setup_of(request, ClusterHandle(cluster=header.cluster, cpus_per_worker=1.0, driver_ip=""), history.probe)
    loop = SearchLoop(
        study=study,
        candidates=setup.plan.candidates,
        searcher=searchers.create(request.searcher, setup.problem),
        budget=Budget(),
        settings=TrialSettings(
            cluster=setup.cluster,
            cpus_per_worker=1.0,
            recorder="",
            commit="",
            cap_gib=setup.cap_gib,
            timing=setup.timing,
            rules=setup.rules,
        ),
    )
    if not loop.decide().state.is_terminal or loop.has_unwritten:
        return ""
    return f"on {setup.cluster.label}: {loop.ended_reason}"
