"""What the cost model says before anything is measured.

    python -m platform.plan bloom7b --cluster 8xH100
    python -m platform.plan bloom7b --cluster ray                             on the cluster that Ray has here
    python -m platform.plan gpt_175b --cluster 128xdgx-a100 --gpus 64..3072 --png days.png
    python -m platform.plan gpt_175b --cluster jean-zay-v100 --min-nodes
    python -m platform.plan gpt2_xl --cluster p3.8xlarge --max-model --gpus 4,8,16 --micro-batch 16
    python -m platform.plan tr3m_1b3 --cluster 64xjean-zay-v100 --batch-rampup 32,64,128

Exit codes: 0, 1 nothing fits, 2 bad input, 3 Ray is at fault.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import search_spaces
from platform.cluster import connection as clusters
from platform.common.errors import ClusterError, InputError, NothingFits, Parser, one_line
from platform.common.signals import exit_with
from platform.cost_model.hardware import ClusterSpec, find_cluster, word_on
from platform.cost_model.probed import found_cluster
from platform.plans.asked import check
from platform.plans.layouts import Plan, batch_hint, best_plan
from platform.plans.max_model import largest_models
from platform.plans.named import named_json, named_points, of_space, show_named
from platform.plans.picture import draw_sizes
from platform.plans.points import recipes_of
from platform.plans.scaling import (
    against_devices,
    at_size,
    fewest_nodes,
    parse_counts,
    parse_phases,
    ramp_up,
)
from platform.plans.show import (
    planned_json,
    show_fewest,
    show_largest,
    show_phases,
    show_plan,
    show_sizes,
)
from platform.probing import kept
from platform.study.folder import default_folder, user_path
from search_spaces import reference
from search_spaces.space import Space

_BY_AXES = ("gpus", "min_nodes", "batch_rampup")
"""Options whose answers need a layout for any number of devices."""


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = Parser(
        prog="python -m platform.plan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("space", metavar="SPACE", help="a space's name, its file, or a model's config.json")
    made.add_argument(
        "--cluster",
        metavar="C",
        help="8xA100-80GB, 4x8xH100, a name of the catalogue, 4xp5.48xlarge, a probe's file, or ray: what Ray has here,"
        " with the figures of platform.probe if it ran (default with --address or RAY_ADDRESS)",
    )
    made.add_argument("--address", metavar="HOST:PORT", help="the Ray of --cluster ray, as of platform.search")
    made.add_argument(
        "--studies",
        type=Path,
        default=Path(default_folder()),
        metavar="DIR",
        help="where probes are kept (default: %(default)s)",
    )
    made.add_argument(
        "--set", metavar="AXIS=VALUE", action="append", default=[], help="values of an axis (docs/search.md)"
    )
    made.add_argument("--tokens", metavar="N", type=float, help="token budget (default: the space's)")
    made.add_argument(
        "--price-per-gpu-h", metavar="P", type=float, help="what a device costs an hour, in place of the catalogue's"
    )
    made.add_argument("--top", metavar="N", type=int, default=10, help="layouts to show (default 10)")
    made.add_argument("--device-memory-gib", metavar="GIB", type=float, help="memory cap of a device")
    made.add_argument("--gpus", metavar="COUNTS", help="days against devices: 2..3072 or 4,8,16")
    made.add_argument("--png", metavar="FILE", type=Path, help="draw --gpus there, with the 80 %% interval")
    made.add_argument(
        "--max-model", action="store_true", help="grow the model until one node, or each of --gpus, is full"
    )
    made.add_argument("--micro-batch", metavar="B", type=int, help="sequences a device for --max-model")
    made.add_argument(
        "--min-nodes", action="store_true", help="the fewest nodes that fit the model, and time against nodes"
    )
    made.add_argument("--batch-rampup", metavar="PHASES", help="nodes and micro-batch a phase: 32,64,128 or 32:8,64:16")
    made.add_argument("--json", action="store_true", help="print one JSON object in place of tables")
    return made


def _space(options: argparse.Namespace) -> Space:
    try:
        space = search_spaces.load(options.space)
        space = space.with_changes(options.set) if options.set else space
    except ValueError as error:
        known = ", ".join(reference.names())
        hint = f"; spaces for planning only: {known}" if str(error).startswith("unknown space") else ""
        raise InputError(f"{error}{hint}") from None
    if any(recipe.grad_accum for recipe in space.recipes):
        raise InputError("a plan is for a global batch, which grad_accum leaves open: --set global_batch=N instead")
    return space


def _cluster(options: argparse.Namespace, console: Console) -> ClusterSpec:
    """The cluster that is meant: written, in a probe's file, or found live.

    Raises:
        InputError: none is named, or it is unknown.
        ClusterError: Ray fails.
    """
    written = options.cluster or ("ray" if options.address or os.environ.get("RAY_ADDRESS") else None)
    if written is None:
        raise InputError(
            "say --cluster: 8xA100-80GB, a name of the catalogue, or ray for the cluster that Ray has here"
        )
    if options.address and written != "ray":
        raise InputError(f"--address belongs to --cluster ray, not to {written}")
    if written == "ray":
        with clusters.connected(options.address) as place:
            cluster, probe = place.cluster, kept.find(user_path(options.studies), place)
    elif written.endswith(".json"):
        probe = kept.read(user_path(written))
        cluster = probe.cluster
    else:
        spec = find_cluster(written)
        if (word := word_on(written)) is not None:
            console.print(word, highlight=False)
        return spec
    told = "as the catalogue has it; `python -m platform.probe` measures it"
    if probe is not None:
        told = f"as probed {probe.finished or 'before'} ({probe.fingerprint})"
    console.print(f"{cluster.label}, {told}", highlight=False)
    return found_cluster(cluster, probe)


def run(options: argparse.Namespace, console: Console) -> int:
    """Prints what was asked for. Returns the exit code.

    Raises:
        InputError: the user's mistake.
    """
    space = _space(options)
    check(options)
    cluster = _cluster(options, console)
    if options.price_per_gpu_h is not None:
        cluster = dataclasses.replace(cluster, price_per_device_hour=options.price_per_gpu_h)
    tokens = options.tokens or space.tokens
    cap = options.device_memory_gib
    told: dict[str, Any] = {"space": space.name, "cluster": options.cluster or "ray", "tokens": tokens}
    code = 0
    asked = next((f"--{name.replace('_', '-')}" for name in _BY_AXES if getattr(options, name)), None)
    if space.points and asked and not options.max_model:
        raise InputError(f"{asked} goes through layouts by axes, and space {space.name} has named points: leave it out")
    if options.max_model or options.min_nodes or options.batch_rampup or options.gpus:
        told["recipe"] = space.recipe.label
        if space.further_recipes:
            console.print(f"For the first of {len(space.recipes)} recipes alone, --set fixes another", highlight=False)
    if options.max_model:
        counts = parse_counts(options.gpus) if options.gpus else (cluster.devices_per_node,)
        micro_batch = options.micro_batch or min(space.micro_batches or (1,))
        largest = largest_models(space, space.recipe, cluster, counts, micro_batch=micro_batch, memory_cap_gib=cap)
        told["max_model"] = [
            {
                "gpus": each.num_devices,
                "params_b": each.recipe.model.num_parameters / 1e9,
                "layers": each.recipe.model.num_layers,
                "hidden": each.recipe.model.hidden_size,
                "heads": each.recipe.model.num_heads,
                "config": each.recipe.model.to_config(),
                **planned_json(each.planned, cluster, tokens),
            }
            for each in largest
        ]
        show_largest(largest, console)
    elif options.min_nodes:
        code = _min_nodes(space, cluster, tokens, cap, told, console)
    elif options.batch_rampup:
        phases = ramp_up(space, space.recipe, cluster, parse_phases(options.batch_rampup), memory_cap_gib=cap)
        told["batch_rampup"] = [
            {
                "global_batch": phase.global_batch,
                "nodes": phase.num_nodes,
                "efficiency": phase.efficiency,
                **planned_json(phase.planned, cluster, tokens),
            }
            for phase in phases
        ]
        show_phases(phases, cluster, console)
    elif options.gpus:
        sizes = against_devices(space, space.recipe, cluster, parse_counts(options.gpus), cap)
        told["gpus"] = [
            {"gpus": size.num_devices, "reason": size.reason}
            | ({} if size.planned is None else planned_json(size.planned, cluster, tokens))
            for size in sizes
        ]
        console.print(f"{space.recipe.label}, {tokens:.3g} tokens", highlight=False)
        show_sizes(sizes, cluster, tokens, console)
        if options.png is not None:
            draw_sizes(sizes, cluster, tokens, space.recipe.label, options.png)
            console.print(f"drawn as {options.png}", highlight=False)
        code = 0 if any(size.planned for size in sizes) else 1
    elif space.points:
        code = _named(space, of_space(space, cluster), tokens, cap, told, console)
    else:
        code = _layouts(space, cluster, tokens, options, told, console)
    if options.json:
        print(json.dumps(told, indent=2))
    return code


def _named(
    space: Space, cluster: ClusterSpec, tokens: float, cap: float | None, told: dict[str, Any], console: Console
) -> int:
    points = named_points(space, cluster, cap)
    show_named(points, cluster, tokens, console)
    told["points"] = named_json(points, cluster, tokens)
    return 0 if any(not point.reason for point in points) else 1


def _layouts(
    space: Space,
    cluster: ClusterSpec,
    tokens: float,
    options: argparse.Namespace,
    told: dict[str, Any],
    console: Console,
) -> int:
    told["recipes"] = []
    cap = options.device_memory_gib
    plans: list[Plan] = []
    without: dict[str, InputError] = {}
    for recipe in recipes_of(space):
        try:
            plans.append(best_plan(space, recipe, cluster, top=options.top, memory_cap_gib=cap))
        except InputError as error:
            without[recipe.label] = error
    if not plans:
        raise next(iter(without.values()))
    if not any(plan.best for plan in plans):
        raise NothingFits(
            f"{space.recipe.model.name} fits no layout of {space.name} on {cluster.num_devices} x"
            f" {cluster.device.name}: {plans[0].nearest}{batch_hint(plans[0].skipped, space.recipe, cluster)}"
        )
    for plan in plans:
        show_plan(plan, tokens, console)
        console.print()
        told["recipes"].append(
            {
                "recipe": plan.recipe.label,
                "layouts": [planned_json(planned, cluster, tokens) for planned in plan.best],
                "num_layouts": plan.num_layouts,
                "num_too_large": plan.num_too_large,
                "loses_by": dict(plan.lost_by),
                "nearest": "" if plan.best else plan.nearest,
                "num_points": plan.num_points,
                "skipped": dict(plan.skipped),
            }
        )
    for label, error in without.items():
        console.print(f"{label}: {error}\n", highlight=False)
        told["recipes"].append({"recipe": label, "layouts": [], "reason": str(error)})
    return 0


def _min_nodes(
    space: Space, cluster: ClusterSpec, tokens: float, cap: float | None, told: dict[str, Any], console: Console
) -> int:
    fewest = fewest_nodes(space, space.recipe, cluster, memory_cap_gib=cap)
    console.print(space.recipe.label, highlight=False)
    show_fewest(fewest, cluster, console)
    counts = sorted({fewest.num_nodes * factor for factor in (1, 2, 4, 8, 16)})
    parts = [dataclasses.replace(cluster, num_nodes=count) for count in counts]
    sizes = [at_size(space, space.recipe, part, cap) for part in parts]
    console.print(f"\ntime against nodes ({tokens:.3g} tokens)", highlight=False)
    show_sizes(sizes, cluster, tokens, console, by_node=True)
    told["min_nodes"] = {
        "nodes": fewest.num_nodes,
        "global_batch": space.recipe.global_batch,
        "fewer_with_another_batch": fewest.rounded and dataclasses.asdict(fewest.rounded),
        "needed_gib": fewest.needed_gib,
        "parts_gib": {
            field.name: float(getattr(fewest.parts, field.name).ravel()[0])
            for field in dataclasses.fields(fewest.parts)
        },
        "binding_rank": fewest.rank,
        "smallest": fewest.smallest,
        "against_nodes": [
            {"nodes": size.num_devices // cluster.devices_per_node, "reason": size.reason}
            | ({} if size.planned is None else planned_json(size.planned, cluster, tokens))
            for size in sizes
        ],
    }
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code."""
    try:
        options = parser().parse_args(arguments)
        return run(options, Console(quiet=options.json))
    except (InputError, ClusterError) as error:
        print(one_line(error), file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    exit_with(main)
