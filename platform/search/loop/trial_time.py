"""The least time that the search's next trial takes, from what the study has measured."""

from collections.abc import Sequence

from platform.study.history import History
from search_spaces.candidate import Candidate
from trainers.measuring.ladder import timed_accum
from trainers.records.job import Timing
from trainers.spec.batch import BatchPoint


def least_trial_s(candidate: Candidate, rungs: Sequence[BatchPoint], history: History, timing: Timing) -> float:
    """Returns the least seconds of a trial of `candidate` that climbs `rungs`; 0 before the first trial.

    Rungs are about equally long, since each has as many steps as fill its time. With whole steps, or a stated number of
    them, a rung is longer the more tokens its steps have: then the longest rungs of earlier trials, where their steps
    have at least as many tokens as those of the first rung here, are scaled down to it.
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
