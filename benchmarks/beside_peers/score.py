"""Scores each peer: when it came within 5 % and 2 % of the best that any peer measured, and what that cost."""

import dataclasses
import json
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Sums of one peer's trials. Seconds are wall-clock seconds since its process started."""

    peer: str
    seed: int
    best_tokens_per_s: float | None
    within_5_pct_s: float | None
    within_2_pct_s: float | None
    """Seconds until it was that close; None where it never was."""
    trials: int
    ooms: int
    overhead_s: float | None
    """Mean seconds between the ends of two trials; None for fewer than two."""
    best: Any


def read(path: Path) -> list[dict[str, Any]]:
    """Returns a peer's trials in order; empty where it wrote nothing."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def score(runs: dict[tuple[str, int], list[dict[str, Any]]]) -> list[Score]:
    """Returns the table of all runs by peer and seed."""
    best_rate = max((trial["tokens_per_s"] or 0.0 for trials in runs.values() for trial in trials), default=0.0)
    return [_score(peer, seed, trials, best_rate) for (peer, seed), trials in runs.items()]


def _score(peer: str, seed: int, trials: list[dict[str, Any]], best_rate: float) -> Score:
    timed = [trial for trial in trials if trial["tokens_per_s"]]
    best = max(timed, key=lambda trial: trial["tokens_per_s"], default=None)

    def reached(share: float) -> float | None:
        return next((trial["at_s"] for trial in timed if trial["tokens_per_s"] >= share * best_rate), None)

    ends = [trial["at_s"] for trial in trials]
    return Score(
        peer=peer,
        seed=seed,
        best_tokens_per_s=None if best is None else best["tokens_per_s"],
        within_5_pct_s=reached(0.95),
        within_2_pct_s=reached(0.98),
        trials=len(trials),
        ooms=sum(trial["outcome"] == "oom" for trial in trials),
        overhead_s=(ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else None,
        best=None if best is None else best["choice"],
    )


def table(scores: list[Score]) -> str:
    """Returns a Markdown table."""
    rows = [
        "| peer | seed | best tokens/s | s to within 5 % | to 2 % | trials | out of memory | s a trial | its best |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for peer_score in scores:
        figures = [peer_score.best_tokens_per_s, peer_score.within_5_pct_s, peer_score.within_2_pct_s]
        cells = ["-" if value is None else f"{value:,.0f}" for value in figures]
        seconds = "-" if peer_score.overhead_s is None else f"{peer_score.overhead_s:.1f}"
        last_cells = [str(peer_score.trials), str(peer_score.ooms), seconds, json.dumps(peer_score.best)]
        rows.append(f"| {' | '.join([peer_score.peer, str(peer_score.seed), *cells, *last_cells])} |")
    return "\n".join(rows)
