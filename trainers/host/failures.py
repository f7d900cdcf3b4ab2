"""Maps the exception that ended a trial to the trial's outcome. Runs in the trial's own process."""

import dataclasses
import re
from collections.abc import Mapping

from trainers.records.measurement import Outcome
from trainers.spec.errors import InputError

GIB = 2**30


class RungFailure(Exception):
    """A batch point that ended with an outcome other than ok; can be pickled. `outcome` is an `Outcome` value; sizes
    are in GiB, None if unknown.
    """

    def __init__(
        self,
        outcome: str,
        reason: str,
        *,
        phase: str,
        rank: int,
        asked_gib: float | None = None,
        allocated_gib: float | None = None,
        reserved_gib: float | None = None,
    ) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason
        self.phase = phase
        self.rank = rank
        self.asked_gib = asked_gib
        self.allocated_gib = allocated_gib
        self.reserved_gib = reserved_gib
        self.killed = ""
        """A clause that names the killer of its process when host memory ran out; "" otherwise."""

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (dict(self.__dict__),))


def _rebuild(state: dict[str, object]) -> RungFailure:
    fields = {name: state[name] for name in ("phase", "rank", "asked_gib", "allocated_gib", "reserved_gib")}
    failure = RungFailure(state["outcome"], state["reason"], **fields)  # type: ignore[arg-type]
    failure.killed = str(state["killed"])
    return failure


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EndCause:
    """The cause of a trial's end, with the fields of the measurement that records it."""

    outcome: Outcome
    reason: str
    phase: str = ""
    rank: int | None = None
    asked_gib: float | None = None
    allocated_gib: float | None = None
    reserved_gib: float | None = None
    killed: str = ""
    """A clause that names the killer of a process when host memory ran out; "" otherwise."""
    silent: bool = False
    """Whether a process died and no rank knows why; this says nothing about the layout, so it may be tried again."""


def classify(failures: Mapping[int, BaseException], *, dead: Mapping[int, str], otherwise: str = "") -> EndCause:
    """Returns the verdict from each rank's exception and from the messages on ranks whose process died (`dead`).

    An OOM on any rank wins, then any other cause that a rank reported, because its peers fail only as a consequence. A
    dead process comes before a plain exception, because its peers see only a broken connection; it is a silent death.
    So are a broken connection without any other cause, as after the loss of a whole node, and an end without any
    exception, which `otherwise` describes.
    """
    rung_failures = {rank: error for rank, error in failures.items() if isinstance(error, RungFailure)}
    for outcome in (Outcome.OOM, Outcome.DIVERGED, Outcome.HUNG, Outcome.FAILED):
        if outcome is Outcome.FAILED:
            for rank, message in sorted(dead.items()):
                reason = f"the process of rank {rank} died: {message}"
                return EndCause(outcome=Outcome.FAILED, reason=reason, rank=rank, silent=True)
        for _, error in sorted(rung_failures.items()):
            if error.outcome == outcome and not _broken(error):
                return EndCause(
                    outcome=Outcome(error.outcome),
                    reason=error.reason,
                    phase=error.phase,
                    rank=error.rank,
                    asked_gib=error.asked_gib,
                    allocated_gib=error.allocated_gib,
                    reserved_gib=error.reserved_gib,
                    killed=error.killed,
                )
    for rank, error in sorted(failures.items(), key=lambda item: (_broken(item[1]), item[0])):
        if _broken(error):
            message = error.reason if isinstance(error, RungFailure) else one_line(error)
            reason = f"rank {rank} lost its connection to another: {message}"
            return EndCause(outcome=Outcome.FAILED, reason=reason[:300], silent=True)
        return EndCause(outcome=Outcome.FAILED, reason=one_line(error), rank=rank)
    return EndCause(outcome=Outcome.FAILED, reason=otherwise or "the trial ended without saying why", silent=True)


_BROKEN = re.compile(
    r"connection (closed|reset|refused)|broken pipe|ncclRemoteError|remote process exited", re.IGNORECASE
)
"""Matches errors of gloo and NCCL about a lost peer."""


def _broken(error: BaseException) -> bool:
    plain = not isinstance(error, RungFailure) or error.outcome == Outcome.FAILED
    return plain and _BROKEN.search(str(error)) is not None


def size(gib: float | None) -> str:
    """Returns a size for people: "1.50 GiB", "16 MiB", or "an unknown size"."""
    if gib is None:
        return "an unknown size"
    return f"{gib:.2f} GiB" if gib >= 1 else f"{gib * 1024:.0f} MiB"


def one_line(error: BaseException, limit: int = 300) -> str:
    """Returns the exception's type and its first non-empty line, cut to `limit` characters; for an `InputError` its
    whole sentence.
    """
    if isinstance(error, InputError):
        return str(error)
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:limit]


_CUDA_ASKED = re.compile(r"[Tt]ried to allocate ([0-9.]+) (bytes|KiB|MiB|GiB)")
_CPU_ASKED = re.compile(r"allocate (\d+) bytes")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def requested_bytes(error: BaseException) -> int | None:
    """Returns the bytes that an allocator could not provide, from its exception; None if it names no size."""
    if match := _CUDA_ASKED.search(str(error)):
        return int(float(match[1]) * _UNITS[match[2]])
    if match := _CPU_ASKED.search(str(error)):
        return int(match[1])
    return None
