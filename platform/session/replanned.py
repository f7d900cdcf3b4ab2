"""Computes a study's plan where its journal, of an older version, lacks it."""

import dataclasses
from pathlib import Path

import search_spaces
from platform.cluster.nodes import ClusterHandle
from platform.common.errors import InputError
from platform.search.setup.options import SearchOptions, options_of
from platform.search.setup.planned_line import planned
from platform.search.setup.request import read_request
from platform.search.setup.study_setup import setup_of
from platform.study.history import History
from trainers.records.journal import Planned, StudyHeader


def with_plan(history: History) -> History:
    """Returns the history with its study's plan; unchanged where the journal has one or it cannot be computed.

    Only built-in spaces are planned anew: a space file is code, and may be somebody else's.
    """
    if history.planned is None and history.header is not None:
        history.planned = _planned(history.header)
    return history


def _planned(header: StudyHeader) -> Planned | None:
    try:
        stored = options_of(header)
        shipped = (*search_spaces.names(), *search_spaces.reference.names())
        if stored.space not in shipped or stored.layout or stored.data:
            return None
        # What an old study taught changes the order alone. As a resumed one: it ran once, whatever would run now.
        options = SearchOptions(
            study=dataclasses.replace(stored, learn_from=None),
            studies=Path(),
            wait_for_gpus=0.0,
            resume=header.name,
        )
        place = ClusterHandle(cluster=header.cluster, cpus_per_worker=1.0, driver_ip="")
        subject = setup_of(read_request(options), place, probe=None)
    except InputError:  # the space has changed since
        return None
    same = {recipe.id for recipe in header.recipes} == {recipe.id for recipe in subject.recipes}
    return planned(subject.plan) if same else None
