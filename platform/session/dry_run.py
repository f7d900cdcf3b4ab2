"""What `--dry-run` prints."""

import dataclasses

from platform.common.text import duration, plural
from platform.loop.budget import Budget
from platform.study.history import History
from platform.subject.planning import num_rungs
from platform.subject.subject import Subject
from trainers.kernels.float8_rules import float8_sentence


def print_dry_run(subject: Subject, budget: Budget, history: History) -> None:
    """Prints what a search of `subject` would run that its study, by its `history`, has not run yet, what it skips and
    why, and what it would cost at most.
    """
    plan, num_devices = subject.plan, subject.cluster.num_devices
    missing = ((each, history.missing(each)) for each in plan.candidates)
    left = [dataclasses.replace(each, micro_batches=rungs) for each, rungs in missing if rungs]
    print(f"Space {subject.space.name} on {subject.cluster.label}: {subject.space.recipe.label}")
    for recipe in subject.space.recipes:
        if layers := float8_sentence(recipe):
            print(f"  {layers}")
    for candidate in left:
        print(f"  would run  {candidate.layout.label}, micro-batch {', '.join(map(str, candidate.micro_batches))}")
    for skipped in plan.skipped:
        print(f"  skipped    {skipped.layout.label}, micro-batch {skipped.batch.micro_batch}: {skipped.reason}")
    seconds = plan.expected_s(left, subject.cluster, subject.timing, subject.rules)
    print(
        f"{plural(len(left), 'trial')} with up to {plural(num_rungs(left), 'rung')} and"
        f" up to {plan.num_final(subject.rules)} final runs, {plural(len(plan.skipped), 'batch point')} skipped;"
        f" at most about {duration(seconds)}, {seconds * num_devices:.0f} device seconds (estimated)."
    )
    limits = {"--time-budget-s": budget.time_s, "--gpu-s": budget.gpu_s and budget.gpu_s / num_devices}
    for option, limit_s in limits.items():
        if limit_s is not None and limit_s < seconds:
            whose = budget.time_words if budget.of_space else f"({option})"
            print(f"The budget ends it after {duration(limit_s)} {whose}.")
