"""What `--dry-run` prints."""

from platform.loop.budget import Budget
from platform.reports.text import duration, plural
from platform.subject.subject import Subject


def print_dry_run(subject: Subject, budget: Budget) -> None:
    """Prints what a search of `subject` would run, what it skips and why, and what it would cost at most."""
    plan, num_devices = subject.plan, subject.cluster.num_devices
    print(f"Space {subject.space.name} on {subject.cluster.label}: {subject.space.recipe.label}")
    for candidate in plan.candidates:
        print(f"  would run  {candidate.layout.label}, micro-batch {', '.join(map(str, candidate.micro_batches))}")
    for skipped in plan.skipped:
        print(f"  skipped    {skipped.layout.label}, micro-batch {skipped.batch.micro_batch}: {skipped.reason}")
    seconds = plan.expected_s(subject.cluster, subject.timing, subject.rules)
    print(
        f"{plural(len(plan.candidates), 'trial')} with up to {plural(plan.num_rungs, 'rung')} and"
        f" up to {plan.num_final(subject.rules)} final runs, {plural(len(plan.skipped), 'batch point')} skipped;"
        f" at most about {duration(seconds)}, {seconds * num_devices:.0f} device seconds (estimated)."
    )
    limits = {"--time-budget-s": budget.time_s, "--gpu-s": budget.gpu_s and budget.gpu_s / num_devices}
    for option, limit_s in limits.items():
        if limit_s is not None and limit_s < seconds:
            whose = budget.time_words if budget.of_space else f"({option})"
            print(f"The budget ends it after {duration(limit_s)} {whose}.")
