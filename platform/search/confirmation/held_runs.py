"""Runs a point that had no head-room again, with its allocator limited to a share of memory that leaves some."""

from collections.abc import Sequence

from platform.search.confirmation.run_order import AttemptedRuns, ConfirmationRun
from platform.study.result.ranking import PointRuns
from trainers.measuring.ladder import HEADROOM, with_headroom_gib
from trainers.records.measurement import Measurement, Outcome


def may_be_held(search: Measurement) -> bool:
    """Returns whether the point reserved too much memory without needing it: no retry, and tensors that leave
    head-room.

    The allocator may be able to give the excess back at no cost; only a run shows it.
    """
    allocated, reserved = search.peak_allocated_gib, search.peak_reserved_gib
    if search.outcome is not Outcome.THRASH or search.alloc_retries or allocated is None or reserved is None:
        return False
    return allocated <= HEADROOM * reserved


def held_gib(search: Measurement | None, limit_gib: float) -> float | None:
    """Returns the GiB to which a run of the point limits its allocator on devices of `limit_gib`; None for no limit."""
    if search is None or not may_be_held(search):
        return None
    outside_gib = max(0.0, (search.peak_device_gib or 0.0) - (search.peak_reserved_gib or 0.0))
    return with_headroom_gib(limit_gib - outside_gib, outside_gib)


def held_run(
    of_recipe: Sequence[PointRuns], best: Measurement | None, *, attempted: AttemptedRuns
) -> ConfirmationRun | None:
    """Returns the held run of the fastest point that was not confirmed, may be held and was faster than the winner
    `best`.

    None without such a point.
    """
    faster = [
        (point.derived_tokens_per_s, point.search)
        for point in of_recipe
        if point.search and not point.runs and may_be_held(point.search)
        if best is None or point.derived_tokens_per_s > point.derived(best)
        if (point.search.layout.id, point.search.batch.micro_batch, 1) not in attempted
    ]
    _, search = max(faster, key=lambda pair: pair[0], default=(0.0, None))
    return None if search is None else ConfirmationRun(point=search, repeat=1)
