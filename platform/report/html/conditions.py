"""The section on the conditions of all figures, each fact once."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from platform.report.disturbance import others_held
from platform.report.html.elements import Block, Paragraph, headed
from platform.report.table import Column, Table
from platform.study.result.result import StudyResult
from trainers.records.measurement import Conditions, Measurement, Outcome

_FACTS: list[Column[tuple[str, str]]] = [
    Column(value=lambda fact: fact[0], left=True),
    Column(value=lambda fact: fact[1], left=True),
]


def conditions(results: Sequence[StudyResult]) -> Iterator[Block]:
    """Yields cluster, command, commit, versions and environment of each study, and measurements that differ in them."""
    for result in results:
        yield from headed(result.header.name, results)
        measured = [run for run in result.history.measurements if run.outcome is not Outcome.SKIPPED]
        facts_of_runs = list(dict.fromkeys(_facts(run.conditions) for run in measured if run.conditions))
        first = dict(facts_of_runs[0]) if facts_of_runs else {}
        yield Table(columns=_FACTS, rows=list(_of_study(result, first, measured)))
        for other in facts_of_runs[1:]:
            changed = ", ".join(f"{name} {value}" for name, value in other if first.get(name) != value)
            yield Paragraph(f"Some measurements were taken on other conditions: {changed}.")


def _of_study(
    result: StudyResult, of_runs: Mapping[str, str], measured: Sequence[Measurement]
) -> Iterator[tuple[str, str]]:
    """Yields the conditions of a study as names with values; `of_runs` are those of its first run."""
    header = result.header
    yield "devices", header.cluster.label_under(header.cap_gib)
    yield "begun", header.at
    for words in filter(None, dict.fromkeys(of_recipe.regularization for of_recipe in header.recipes)):
        yield "dropout and decay", words
    yield "command", " ".join(("python -m platform.search", *header.arguments))
    yield "commit", header.commit
    yield from ((name, value) for name, value in of_runs.items() if name != "commit")
    for peak in result.history.peaks[-1:]:
        spread = f", {peak.spread:.1%} between the fastest and the slowest" if peak.spread else ""
        yield f"matmul peak, {peak.precision}", f"{peak.tflops:.1f} TFLOP/s a device{spread}"
    derived = sum(measurement.step_time_derived for measurement in measured)
    yield "measured over", f"{len(measured)} points; of {derived} the step time is derived (~)"
    if held_back := sorted({reason for measurement in measured for reason in measurement.held_back_by}):
        yield "clocks were lowered by", ", ".join(held_back)
    if kernels := sorted({measurement.sdpa_kernel for measurement in measured} - {""}):
        yield "torch's sdpa ran", ", ".join(kernels)
    if void := [reason for measurement in measured for reason in measurement.void_windows]:
        yield "void windows, not counted", f"{len(void)}: {', '.join(sorted(set(void)))}"
    if held := others_held(measured):
        yield "other processes held", held
    warnings = (run.conditions.warnings or () for run in measured if run.conditions)
    for text in dict.fromkeys(itertools.chain.from_iterable(warnings)):
        yield "a warning to workers", text


def facts_of(measured_under: Conditions) -> Mapping[str, str]:
    return {
        "device": f"{measured_under.device} ({measured_under.device_memory_gib:.1f} GiB)",
        "nodes": str(measured_under.num_nodes),
        "commit": measured_under.commit,
        **measured_under.versions,
        **measured_under.environment,
    }


def _facts(measured_under: Conditions) -> tuple[tuple[str, str], ...]:
    return tuple(facts_of(measured_under).items())
