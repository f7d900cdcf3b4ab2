"""Sentences of verdict: the winner with its evidence, or the point nearest to a result if nothing fits."""

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence

from platform.common.text import count, figure, stages
from platform.report.disturbance import disturbance_sentences, others_held, unresolved_sentence
from platform.report.end_sentences import end_sentences
from platform.study.result.caveats import Caveat, names_of
from platform.study.result.coverage import Coverage
from platform.study.result.ranking import speed_of
from platform.study.result.result import RecipeResult, StudyResult
from trainers.records.journal import Peak, StudyHeader
from trainers.records.measurement import SETTINGS, TRAINING_STATE, Measurement, Outcome, days_for_tokens
from trainers.spec.batch import values_of
from trainers.spec.cluster import Cluster
from trainers.spec.float8 import float8_sentence
from trainers.spec.recipe import Recipe
from trainers.spec.stages import timed_accumulations

_NEARNESS = (
    Outcome.THRASH,
    Outcome.SLOW,
    Outcome.DIVERGED,
    Outcome.OOM,
    Outcome.HUNG,
    Outcome.FAILED,
    Outcome.SKIPPED,
)
"""Outcomes ordered by how near the point came to a result, nearest first."""
_MEMORY = frozenset({Outcome.THRASH, Outcome.OOM, Outcome.SKIPPED})

_GOES_ON = "--resume continues; after a budget ended it, give a larger one"

_LAGS = 0.05
"""A device lags if its matmul peak is below the median's by more than this share."""


def days_of(measurement: Measurement, tokens: float) -> float | None:
    """Returns the days that training on `tokens` takes; None without a speed, and for a miniature."""
    speed = measurement.tokens_per_s
    return None if not speed or measurement.miniature else days_for_tokens(tokens, speed)


def cost_of(measurement: Measurement, tokens: float, price_per_gpu_h: float | None) -> float | None:
    """Returns the cost of `days_of` in the currency of `price_per_gpu_h`; None without a price or days."""
    days = days_of(measurement, tokens)
    return None if days is None or price_per_gpu_h is None else days * 24 * measurement.num_devices * price_per_gpu_h


def spread_pct(measurement: Measurement) -> float | None:
    """Returns half the distance between the quartiles of the step time, in per cent of its median."""
    low, high, step = measurement.step_time_low_s, measurement.step_time_high_s, measurement.step_time_s
    return None if low is None or high is None or not step else 100 * (high - low) / (2 * step)


def limit_gib(measurement: Measurement, header: StudyHeader) -> float:
    """Returns the memory limit of a device in GiB: its own memory, or the cap."""
    return min(header.cluster.device_memory_gib, measurement.cap_gib or header.cap_gib or math.inf)


def head_room_gib(measurement: Measurement, header: StudyHeader) -> float | None:
    """Returns `limit_gib` less the largest allocated memory; None if memory was not measured."""
    peak_gib = measurement.peak_allocated_gib
    return None if peak_gib is None else limit_gib(measurement, header) - peak_gib


def winner_sentence(
    best: Measurement,
    *,
    tokens: float,
    price_per_gpu_h: float | None = None,
    coverage: Coverage | None = None,
    caveats: Sequence[Caveat] = (),
) -> str:
    """Returns the winner in one sentence, with its caveats.

    `tokens` is the budget for days and, with a price, their cost; a miniature has neither. `coverage` states how many
    layouts were tried.
    """
    assert best.tokens_per_s is not None
    tilde = "~" if best.step_time_derived else ""
    shares = [f"{tilde}{figure(best.tokens_per_s_per_gpu)} a device"]
    if best.model_tflops_per_gpu is not None:
        shares.append(f"{figure(best.model_tflops_per_gpu)} TFLOP/s")
    if best.share_of_matmul_peak is not None:
        shares.append(f"{best.share_of_matmul_peak:.1%} of the measured matmul peak")
    if best.share_of_datasheet_peak is not None:
        shares.append(f"{best.share_of_datasheet_peak:.1%} of the data sheet's")
    memory = "" if best.peak_allocated_gib is None else f", {figure(best.peak_allocated_gib)} GiB allocated at most"
    memory += pipeline_words(best)
    days, paid = days_of(best, tokens), cost_of(best, tokens, price_per_gpu_h)
    budget = "" if days is None else f"; {figure(days)} days for {count(tokens)} tokens"
    budget += "" if paid is None else f", which cost {figure(paid)} at {price_per_gpu_h:g} a device-hour"
    mark = f"miniature of {best.recipe.miniature_of}, " if best.miniature else ""
    devices = f"{best.num_devices} device{'' if best.num_devices == 1 else 's'}"
    of_tried = f"of {coverage.words} tried " if coverage else ""
    named = f" ({names_of(caveats)})" if caveats else ""
    global_batch_text = f" (global batch {best.global_batch})" if best.recipe.grad_accum else ""
    return (
        f"Fastest {of_tried}for {mark}{best.recipe.label}{named}: {best.layout.label} on {devices},"
        f" micro-batch {best.batch.micro_batch} x {best.batch.grad_accum} accumulated{global_batch_text}:"
        f" {tilde}{figure(best.tokens_per_s)} tokens/s ({', '.join(shares)}){memory}{budget}."
    )


def pipeline_words(measurement: Measurement) -> str:
    """Returns text on a pipeline: the stage with most memory, and the bubble, measured and by formula; "" for other
    layouts.

    The formula is (p - 1) / (v m + p - 1), for equal stages. If the bubble was not measured, the text says why.
    """
    if not measurement.pipeline_bubble_by_formula:
        return ""
    bubble, stage_text = measurement.pipeline_bubble, stages(measurement.memory_stages)
    stage_text = f" on {stage_text}" if stage_text else ""
    measured = "" if bubble is None else f"{bubble:.1%} beside "
    by_formula = f"{measurement.pipeline_bubble_by_formula:.1%} by (p - 1) / (v m + p - 1)"
    layout, micro_steps = measurement.layout, measurement.batch.grad_accum
    timed_whole = bubble is None and len(timed_accumulations(layout, micro_steps)) == 1
    reason = f", not measured with as few as {micro_steps} micro-batches" if timed_whole else ""
    return f"{stage_text}, a bubble of {measured}{by_formula}{reason}"


def shortfall_gib(measurement: Measurement, cluster: Cluster) -> float | None:
    """Returns the GiB that an out-of-memory point lacked: held plus requested, less the limit; None if unknown."""
    held_gib = measurement.reserved_gib if measurement.allocated_gib is None else measurement.allocated_gib
    if held_gib is None or measurement.asked_gib is None:
        return None
    limit = cluster.device_memory_gib if measurement.cap_gib is None else measurement.cap_gib
    return max(0.0, held_gib + measurement.asked_gib - limit)


def nearest(measurements: Iterable[Measurement], cluster: Cluster) -> Measurement | None:
    """Returns the point nearest to a result if none is `ok`; None if nothing was tried."""

    def distance(measurement: Measurement) -> tuple[int, float, float]:
        rank = len(_NEARNESS) if measurement.outcome is Outcome.OK else _NEARNESS.index(measurement.outcome)
        missing = shortfall_gib(measurement, cluster) if measurement.outcome is Outcome.OOM else 0.0
        return rank, math.inf if missing is None else missing, -speed_of(measurement)

    return min(measurements, key=distance, default=None)


def nearest_sentence(
    recipe: Recipe, measurements: Sequence[Measurement], cluster: Cluster, coverage: Coverage | None = None
) -> str:
    """Returns a sentence for a recipe without a winner; `coverage` states how many layouts were tried."""
    closest = nearest(measurements, cluster)
    if closest is None:
        return f"Nothing was measured for {recipe.label}: {_GOES_ON}."
    reason = closest.reason or closest.outcome.value
    missing = shortfall_gib(closest, cluster) if closest.outcome is Outcome.OOM else None
    lacked = f", {figure(missing)} GiB too many" if missing else ""
    is_partial = coverage is not None and bool(coverage.not_tried)
    fits = "Nothing that was tried fits in memory" if is_partial else "Nothing fits in memory"
    opening = fits if closest.outcome in _MEMORY else "Nothing has won"
    return (
        f"{opening} for {recipe.label} on {cluster.label_under(closest.cap_gib)}."
        f" Nearest: {closest.layout.label} at micro-batch {closest.batch.micro_batch},"
        f" {closest.outcome.value} ({reason}){lacked}."
        + (f" Tried were {coverage.words}: {_GOES_ON}." if coverage is not None and is_partial else "")
    )


def verdicts(result: StudyResult) -> list[str]:
    """Returns sentences for each recipe: its winner with the evidence, what is not resolved, or the nearest point."""
    sentences: list[str] = []
    header, end = result.header, result.history.end
    for recipe_result in result.of_study:
        best = recipe_result.winner
        if recipe_result.unresolved:
            sentences.append(unresolved_sentence(recipe_result))
        elif recipe_result.is_uncompared:
            sentences.append(_uncompared_sentence(recipe_result))
        elif best is None:
            sentences.append(
                nearest_sentence(recipe_result.recipe, recipe_result.judged, header.cluster, recipe_result.coverage)
            )
        else:
            price = header.price_per_gpu_h
            sentences.append(
                winner_sentence(
                    best,
                    tokens=header.tokens,
                    price_per_gpu_h=price,
                    coverage=recipe_result.coverage,
                    caveats=recipe_result.caveats,
                )
            )
            sentences += [*evidence(recipe_result), *end_sentences(best, result.history)]
        sentences += [caveat.sentence for caveat in recipe_result.caveats]
        if held := others_held(recipe_result.measurements):
            sentences.append(
                f"Other processes held {held}: their times may not be the layouts' own. End those processes and search"
                " anew; --resume keeps these times."
            )
        sentences += float8_sentences(recipe_result, result)
    if end is not None and end.left_out:
        sentences.append(f"Final runs left out: {end.left_out}; --resume runs them.")
    return [*sentences, *(sentence for peak in result.history.peaks[-1:] if (sentence := lag(peak, header.cluster)))]


def _uncompared_sentence(result: RecipeResult) -> str:
    """Returns a sentence for a recipe of which only one of several layouts ran."""
    assert result.leader is not None and result.coverage is not None
    point = result.leader.main_run
    mark = f"miniature of {result.recipe.miniature_of}, " if result.recipe.miniature_of else ""
    return (
        f"Measured one layout of {result.coverage.num_layouts} for {mark}{result.recipe.label}: no comparison, so no"
        f" winner is named. {point.layout.label}, micro-batch {point.batch.micro_batch}:"
        f" {figure(point.tokens_per_s)} tokens/s. {_GOES_ON}."
    )


def float8_sentences(recipe_result: RecipeResult, result: StudyResult) -> Iterator[str]:
    """Yields sentences on the gain and cost of FP8, and on the layers in FP8; nothing for other recipes."""
    if not (layers := float8_sentence(recipe_result.recipe)):
        return
    if price := result.float8_price(recipe_result):
        yield price.sentence
    else:
        yield (
            f"What {recipe_result.recipe.compute_precision} costs in loss is not known, since bf16 was not searched"
            f" beside it: --set compute_precision=bf16,{recipe_result.recipe.compute_precision} searches both."
        )
    yield layers
    if result.header.cluster.device_kind == "cpu":
        yield "CPUs emulate FP8: their speeds say nothing of it."


def evidence(result: RecipeResult) -> list[str]:
    """Returns sentences on the evidence for the winner of one recipe: its runs, the next best, its numerics."""
    sentences: list[str] = []
    first, best = result.winning_point, result.winner
    if first is None or best is None:
        return []
    if (ends := first.interval_tokens_per_s) and first.std_tokens_per_s is not None:
        sentences.append(
            f"Over {len(first.runs)} runs in fresh processes: median {figure(first.median_tokens_per_s)} tokens/s,"
            f" standard deviation {figure(first.std_tokens_per_s)},"
            f" 95 % interval {figure(ends[0])} to {figure(ends[1])}."
        )
    resolved = [comparison for comparison in result.comparisons if comparison.resolution != "not resolved"]
    sentences += [comparison.sentence for comparison in resolved[:2]]  # caveats name the others
    sentences += disturbance_sentences(result)
    if words := command_of(best):
        return [*sentences, f"Its command: {words}"]
    lacks, trains = best.conditions.engine_lacks if best.conditions else (), best.layout.rules.title
    if SETTINGS in lacks:
        sentences.append(f"Not read back: {trains} reports no settings in effect to compare with the layout's.")
    if result.gate is not None:
        sentences.append(result.gate.sentence)
    elif TRAINING_STATE in lacks:
        sentences.append(f"Numerics gate: not run, {trains} gives no training state that could be compared.")
    elif result.has_curves:
        sentences.append(
            "Numerics gate: no reference layout has run, so the winner's curves were not compared (--resume goes on)."
        )
    elif (end := result.history.end) and not end.exit_code and end.why and not end.left_out:  # no gate was requested
        sentences.append("Numerics gate: none to pass, the search has no other layout to compare the winner with.")
    if reasons := ", ".join(best.held_back_by):
        num_held_back = sum(map(bool, best.held_back))
        sentences.append(
            f"Clocks were lowered in {num_held_back} of {len(best.held_back)} windows of its run: {reasons}."
        )
    if best.void_windows:
        reasons = ", ".join(dict.fromkeys(best.void_windows))
        num_windows = len(best.void_windows) + len(best.windows_s)
        sentences.append(
            f"{len(best.void_windows)} of {num_windows} windows of its run were void and are not counted: {reasons}."
        )
    if best.most_others_gib:
        num_beside = sum(gib > 0 for gib in best.others_gib)
        sentences.append(
            f"Other processes held up to {figure(best.most_others_gib)} GiB of a GPU in {num_beside} of"
            f" {len(best.others_gib)} windows of its run."
        )
    if best.idle_devices:
        sentences.append(f"{best.idle_devices} of {best.num_devices} devices were idle (under 5 % busy).")
    return sentences


def command_of(best: Measurement) -> str:
    """Returns the user's command at the measured point as a shell line, with the variables that its file sets; "" for
    other recipes.
    """
    if best.recipe.command is None:
        return ""
    num_nodes = best.conditions.num_nodes if best.conditions else 1
    values = {**values_of(best.layout, best.batch, num_nodes=num_nodes)}
    values |= {name: name.upper() for name in ("out", "node_rank", "head", "port")}
    variables = best.recipe.command.variables(values)
    before = ("env", *(f"{name}={value}" for name, value in variables.items())) if variables else ()
    return shlex.join((*before, *best.recipe.command.filled(values)))


def lag(peak: Peak, cluster: Cluster) -> str:
    """Returns a sentence on devices that are slower than the others; "" if none is."""
    if cluster.device_kind == "cpu":
        return ""  # CPU workers share their cores with other processes: a slow one means nothing
    slow = [rank for rank, tflops in enumerate(peak.by_device) if tflops < (1 - _LAGS) * peak.tflops]
    if not slow:
        return ""
    nodes = dict(enumerate(f" on node {address}" for address in peak.nodes))
    lagging = ", ".join(f"that of rank {rank}{nodes.get(rank, '')} {figure(peak.by_device[rank])}" for rank in slow)
    return f"A device lags: the median one reaches {figure(peak.tflops)} TFLOP/s on plain products, {lagging}."
