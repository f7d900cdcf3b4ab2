"""Prints where the winner's step goes as a table."""

from collections.abc import Iterator, Sequence

from rich.table import Table, box

from platform.common.text import figure
from platform.cost_model.step_time import StepTime
from platform.report.console import as_text, console
from platform.report.profile import StepPart, parts_of, predicted_step, profiled
from platform.study.result.result import StudyResult
from trainers.records.journal import Profile
from trainers.records.measurement import Measurement
from trainers.records.sums import Sums


def render_profiles(result: StudyResult, *, width: int, color: bool = False) -> str:
    """Returns a table for each profiled winner, at most `width` columns wide; "" where none is."""
    screen, stream = console(width=width, color=color)
    for best, profile in profiled(result):
        predicted = predicted_step(result.header, best)
        screen.print("Where its step goes", style="bold")
        screen.print(_heading(best, profile))
        screen.print(_table(parts_of(profile, predicted), profile.sums, predicted))
        for line in _notes(best, profile):
            screen.print(line)
        screen.print()
    return as_text(stream) if stream.getvalue() else ""


def _heading(best: Measurement, profile: Profile) -> str:
    point = f"{profile.layout.label}, micro-batch {profile.batch.micro_batch} x {profile.batch.grad_accum}"
    return f"{point}; {best.recipe.label}"


def _table(parts: Sequence[StepPart], sums: Sums, predicted: StepTime | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("part")
    for title in ("ms", "share", *(("predicted ms", "share") if predicted is not None else ())):
        table.add_column(title, justify="right", no_wrap=True)
    whole_s = None if predicted is None else float(predicted.total_s[0])
    for part in parts:
        cells = [figure(1e3 * part.measured_s), _share(part.measured_s, sums.wall_s)]
        if whole_s is not None:
            predicted_s = part.predicted_s
            cells += ["", ""] if predicted_s is None else [figure(1e3 * predicted_s), _share(predicted_s, whole_s)]
        mark = "  " if part.parent else "beside: " if part.beside else ""
        table.add_row(f"{mark}{part.name}", *cells, style="bold" if part.name == "a step" else None)
    return table


def _share(seconds: float, whole_s: float) -> str:
    return f"{seconds / whole_s:.1%}" if whole_s > 0 else ""


def _notes(best: Measurement, profile: Profile) -> Iterator[str]:
    method = f"Mean of {profile.num_steps} steps on rank {profile.rank} under torch.profiler"
    if profile.measured_grad_accum != profile.batch.grad_accum:
        method += f", from {profile.measured_grad_accum} micro-steps each"
    if best.step_time_s:
        method += f"; timed without it a step took {figure(1e3 * best.step_time_s)} ms"
    yield f"{method}."
    if profile.device_kind == "cpu":
        yield "On a CPU these are the operations of the worker's threads; gloo and the other workers share its cores."
    if profile.trace:
        yield f"Trace: {profile.trace} ({profile.trace_mib:.1f} MiB), to be opened in https://ui.perfetto.dev"
    else:
        yield f"The trace had {profile.trace_mib:.0f} MiB and was not kept."
