"""The section on the conditions of all figures, each fact once."""

from collections.abc import Mapping, Sequence

from platform.report.disturbance import others_held
from platform.report.html.elements import Section, heading, paragraph, table
from platform.study.result.result import StudyResult
from trainers.records.measurement import Conditions, Outcome


def conditions(results: Sequence[StudyResult]) -> Section:
    """Returns the section with cluster, command, commit, versions and environment of each study, and where measurements
    differ in them.
    """
    body = ""
    for result in results:
        header, history = result.header, result.history
        body += heading(header.name) if len(results) > 1 else ""
        measured = [measurement for measurement in history.measurements if measurement.outcome is not Outcome.SKIPPED]
        facts_of_runs = list(
            dict.fromkeys(_facts(measurement.conditions) for measurement in measured if measurement.conditions)
        )
        rows = [
            ["devices", header.cluster.label_under(header.cap_gib)],
            ["begun", header.at],
            *(["dropout and decay", words] for words in dict.fromkeys(of.regularization for of in header.recipes)),
            ["command", " ".join(("python -m platform.search", *header.arguments))],
            ["commit", header.commit],
            *(
                [name, value]
                for name, value in (dict(facts_of_runs[0]) if facts_of_runs else {}).items()
                if name != "commit"
            ),
        ]
        for peak in history.peaks[-1:]:
            spread = f", {peak.spread:.1%} between the fastest and the slowest" if peak.spread else ""
            rows.append([f"matmul peak, {peak.precision}", f"{peak.tflops:.1f} TFLOP/s a device{spread}"])
        derived = sum(measurement.step_time_derived for measurement in measured)
        rows.append(["measured over", f"{len(measured)} points; of {derived} the step time is derived (~)"])
        held_back = sorted({reason for measurement in measured for reason in measurement.held_back_by})
        if held_back:
            rows.append(["clocks were lowered by", ", ".join(held_back)])
        if held := others_held(measured):
            rows.append(["other processes held", held])
        warnings = {
            text: None
            for measurement in measured
            if measurement.conditions
            for text in measurement.conditions.warnings or ()
        }
        rows += [["a warning to workers", text] for text in warnings]
        body += table(("", ""), rows, words=2)
        for other in facts_of_runs[1:]:
            changed = {name: value for name, value in other if dict(facts_of_runs[0]).get(name) != value}
            words = ", ".join(f"{name} {value}" for name, value in changed.items())
            body += paragraph(f"Some measurements were taken on other conditions: {words}.")
    return Section(id="conditions", title="Conditions", body=body)


def facts_of(measured_under: Conditions) -> Mapping[str, str]:
    """Returns the conditions as values by name."""
    return {
        "device": f"{measured_under.device} ({measured_under.device_memory_gib:.1f} GiB)",
        "nodes": str(measured_under.num_nodes),
        "commit": measured_under.commit,
        **measured_under.versions,
        **measured_under.environment,
    }


def _facts(measured_under: Conditions) -> tuple[tuple[str, str], ...]:
    return tuple(facts_of(measured_under).items())
