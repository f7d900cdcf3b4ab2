"""Several searches on one cluster, for several numbers of devices: decides whose trial begins next."""

from collections.abc import Sequence

from platform.search.loop.loop import SearchLoop
from trainers.records.job import Job


class Together:
    """Searches that share a cluster; each is asked in turn for a trial beside those of all of them."""

    def __init__(self, loops: Sequence[SearchLoop]) -> None:
        self.loops = tuple(loops)
        for loop in self.loops:
            loop.beside = tuple(other for other in self.loops if other is not loop)

    def next_job(self) -> tuple[SearchLoop, Job] | None:
        """Returns the next trial with its search; None if none may begin now, or without running trials if all are
        over.

        The search with the largest trials is asked first, and smaller ones fill the rest, because the nodes of a large
        trial become free together. Under a time limit, which all must keep, it is the search that holds the fewest
        nodes, then the one that held them for the shortest time. If a search finds no room while none of its trials
        runs, all others wait with it; otherwise small trials would take each node that becomes free.
        """
        for loop in sorted(self.loops, key=_turn):
            if (job := loop.next_job()) is not None:
                return loop, job
            if loop.wants_room:
                return None
        return None

    @property
    def num_lanes(self) -> int:
        """Number of trials that could run side by side now if each search had the cluster to itself."""
        return sum(loop.num_lanes for loop in self.loops)


def _turn(loop: SearchLoop) -> tuple[float, float, float]:
    of_trial = loop.lanes.nodes_per_trial * loop.lanes.share
    if loop.spending.budget.time_s is None:
        return 0.0, 0.0, -of_trial
    held = sum(len(job.nodes) * job.node_share for job in loop.running.values())
    return held, of_trial * loop.spending.gpu_s / loop.spending.num_devices, -of_trial
