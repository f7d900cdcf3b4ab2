"""Estimates the least time of the search's next trial from the study's measurements."""

from collections.abc import Sequence

from platform.study.history import History
from search_spaces.candidate import Candidate
from trainers.measuring.ladder import timed_accum
from trainers.records.job import Timing
from trainers.spec.batch import BatchPoint


def least_trial_s(candidate: Candidate, rungs: Sequence[BatchPoint], history: History, timing: Timing) -> float:
    """Returns the least seconds of a trial of `candidate` that climbs `rungs`; 0 before the first trial.

    Rungs take about equally long, because each has as many steps as fill its time. With whole steps or a fixed number
    of steps, a rung takes longer the more tokens its steps have. Then the longest rungs of earlier trials whose steps
    have at least as many tokens as the first rung's here are scaled down to it.
    """
    measured = history.longest_rungs
    if not measured or not timing.fixes_steps:
        return history.trial_s
    first = rungs[0]
    accum = timed_accum(first.grad_accum, all_micro_steps=timing.whole_steps)
    tokens = first.micro_batch * accum * candidate.layout.data_parallel * candidate.recipe.seq_len
    larger = [rung for rung in measured if rung.tokens >= tokens]
    if not larger:
        return history.trial_s
    scaled_s = (max(rung.seconds * tokens / rung.tokens, min(rung.seconds, timing.filled_s)) for rung in larger)
    return history.start_s + min(scaled_s)
