"""Runs a command until its first step, which shows the length of a sequence, before the study begins."""

import dataclasses
from typing import Any

from platform.cluster.connection import users_environment
from platform.cluster.nodes import ClusterHandle
from platform.common.errors import InputError
from platform.common.output import print_line
from platform.search.session.open_study import OpenStudy
from platform.search.setup.command_options import with_length
from platform.search.setup.request import read_request
from platform.search.setup.study_setup import setup_of
from search_spaces.candidate import Candidate
from trainers.records.job import Job
from trainers.records.measurement import Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.codec import printable

_MOST_RUNS = 4
"""Number of layouts tried if the first ones run out of memory."""


def with_learned_length(opening: OpenStudy, handle: ClusterHandle) -> OpenStudy:
    """Returns the opening study with the sequence length shown by its command's first step.

    Unchanged if the length is known or no command is searched.

    Raises:
        InputError: the command has no first step, or its tokens do not fit the options.
    """
    request, study = opening.request, opening.request.options
    if not study.command or study.seq_len is not None:
        return opening
    print_line("The command runs until its first step, which shows the length of a sequence (--seq-len N saves that).")
    length = _length(opening, handle)
    options = dataclasses.replace(opening.options, study=with_length(study, length))
    try:
        request = read_request(options)
    except InputError as error:
        raise InputError(f"the command's first step has sequences of {length} tokens: {error}") from error
    return dataclasses.replace(opening, options=options, request=request)


def _length(opening: OpenStudy, handle: ClusterHandle) -> int:
    first, *others = setup_of(opening.request, handle, None).plan.candidates[:_MOST_RUNS]
    answer = _first_step(first, opening, handle)
    for candidate in others:
        if answer["outcome"] != Outcome.OOM:
            break
        answer = _first_step(candidate, opening, handle)
    if answer.get("tokens") is None:
        for line in str(answer.get("output", "")).splitlines():
            print_line(f"| {printable(line)}")
        raise InputError(f"the command reported no step: {answer.get('reason') or 'its line has no tokens'}")
    devices, micro_batch, tokens = first.layout.world_size, first.micro_batches[0], int(answer["tokens"])
    length, remainder = divmod(tokens, micro_batch * devices)
    if remainder:
        raise InputError(
            f"the command's first step, at accumulation 1, has {tokens:,} tokens, no multiple of micro-batch"
            f" {micro_batch} on {devices} devices: give the length of a sequence by --seq-len N"
        )
    return length


def _first_step(candidate: Candidate, opening: OpenStudy, handle: ClusterHandle) -> dict[str, Any]:
    from trainers.trial.command_nodes import on_nodes
    from trainers.trial.command_trial import first_step

    space = opening.request.space
    setup = setup_of(opening.request, handle, None)
    job = Job(
        trial_id="first",
        recorder="",
        recipe=candidate.recipe,
        layout=candidate.layout,
        rungs=(BatchPoint(micro_batch=candidate.micro_batches[0], grad_accum=1),),
        cluster=setup.cluster,
        cpus_per_worker=handle.cpus_per_worker,
        nodes=tuple(node.id for node in handle.nodes) if handle.left_out else (),
        environment=users_environment(),
        hang_floor_s=space.hang_floor_s,
        first_step_s=space.first_step_s,
    )
    return on_nodes(first_step, job)
