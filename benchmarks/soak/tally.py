"""Counts what a soak injected and what it found wrong."""

import dataclasses
from collections import Counter


@dataclasses.dataclass(kw_only=True, slots=True)
class Tally:
    """Counts over a whole soak; each list holds a sentence for each case, and is empty where all went well."""

    lost_title: str
    """The title of `lost`, such as "measurements lost"."""
    again_title: str
    counts: Counter[str] = dataclasses.field(default_factory=Counter[str])
    """Numbers of what was run, by its name."""
    faults: Counter[str] = dataclasses.field(default_factory=Counter[str])
    lost: list[str] = dataclasses.field(default_factory=list[str])
    again: list[str] = dataclasses.field(default_factory=list[str])
    """Work that was done twice, or otherwise than without a fault."""
    left: list[str] = dataclasses.field(default_factory=list[str])
    odd: list[str] = dataclasses.field(default_factory=list[str])
    """Sessions that ended with a traceback or a wrong exit code, and subjects that did not end."""

    @property
    def is_clean(self) -> bool:
        """Whether all lists are empty."""
        return not (self.lost or self.again or self.left or self.odd)

    def __str__(self) -> str:
        injected = ", ".join(f"{name} {number}" for name, number in sorted(self.faults.items())) or "none"
        return "\n".join(
            (
                ", ".join(f"{number} {name}" for name, number in self.counts.items()),
                f"faults: {injected} ({self.faults.total()} in all)",
                f"{self.lost_title}: {len(self.lost)}",
                f"{self.again_title}: {len(self.again)}",
                f"left behind: {len(self.left)}",
                f"odd ends: {len(self.odd)}",
                *(self.lost + self.again + self.left + self.odd),
            )
        )

    def judge(self, session: str, code: int | None, allowed: set[int], err: str) -> None:
        """Counts a session that ended with another exit code than the `allowed` ones, or with a traceback in `err`.
        Without a `code` it left processes behind, which is counted elsewhere.
        """
        if code is not None and code not in allowed:
            self.odd.append(f"{session}: exit code {code}: {' | '.join(err.splitlines()[-3:])}")
        if "Traceback" in err:
            self.odd.append(f"{session}: a traceback: {err}")
