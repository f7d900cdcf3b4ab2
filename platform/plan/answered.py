"""The way from the options of a plan to its answer."""

import dataclasses
import os
from typing import Any

from rich.console import Console

import search_spaces
from platform.cluster import connection as clusters
from platform.cluster.probing import probe_store
from platform.common.builder import BuildQuestion
from platform.common.errors import InputError
from platform.cost_model import stacks
from platform.cost_model.hardware import (
    ClusterSpec,
    find_cluster,
    names_device_file,
    with_memory_cap,
    with_network,
    word_on,
)
from platform.cost_model.probed_cluster import cluster_with_probe
from platform.plan.answers import Answer, Question
from platform.plan.assumptions import Assumptions
from platform.plan.offers import with_engines_of
from platform.plan.plan_options import PlanOptions
from platform.plan.progress import Progress
from platform.plan.projection import StudyPrior
from platform.plan.sizes import parse_counts
from platform.plan.tables import cluster_label
from platform.search.setup.old_studies import read_old
from platform.study.folder import located, user_path
from platform.study.study import find
from search_spaces import reference
from search_spaces.space import Space


def _space(options: PlanOptions) -> Space:
    try:
        space = with_engines_of(search_spaces.load(options.space), stacks.find_software(options.software))
        space = space.with_changes(options.set) if options.set else space
    except ValueError as error:
        space_names = ", ".join(reference.names())
        hint = f"; spaces for planning only: {space_names}" if str(error).startswith("unknown space") else ""
        raise InputError(f"{error}{hint}") from None
    if any(recipe.grad_accum for recipe in space.recipes):
        raise InputError("a plan is for a global batch, which grad_accum leaves open: --set global_batch=N instead")
    return space


def _cluster(options: PlanOptions, console: Console) -> ClusterSpec:
    """Returns the cluster of the options: a written one, one of a probe's file, or a live one.

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
        with clusters.connected(options.address) as handle:
            cluster, probe = handle.cluster, probe_store.find(user_path(options.studies), handle)
    elif written.endswith(".json") and not names_device_file(written):
        probe = probe_store.read(user_path(written))
        cluster = probe.cluster
    else:
        spec = find_cluster(written)
        if (word := word_on(written)) is not None:
            console.print(word, highlight=False)
        return spec
    source = "as the catalogue has it; `python -m platform.probe` measures it"
    if probe is not None:
        source = f"as probed {probe.finished or 'before'} ({probe.fingerprint})"
    console.print(f"{cluster.label}, {source}", highlight=False)
    return cluster_with_probe(cluster, probe)


def _taught(options: PlanOptions, space: Space, software: str) -> StudyPrior | None:
    """Returns what the study of `--learn-from` measured; None without one.

    Raises:
        InputError: there is no such study, or it is of another model.
    """
    if options.learn_from is None:
        return None
    folder = find(*located(user_path(options.studies), options.learn_from))
    old = read_old(folder, space, trusted=True)  # nothing is written, and nothing that it names is run
    if old.header.miniature:
        raise InputError(
            f"study {old.header.name} measured {old.header.recipes[0].model.name}, which stands in where there is no"
            f" GPU and says nothing of {space.recipe.model.name}: leave --learn-from out, or name a study of the model"
        )
    taught = StudyPrior.of(old.header.name, old.header.cluster, old.measurements, software)
    return dataclasses.replace(taught, memory_capped=options.device_memory_gib is not None)


def answered(options: PlanOptions, console: Console) -> Answer:
    """Prints the answer for people on `console`; returns its JSON object and the exit code.

    Raises:
        InputError: the user's mistake.
        ClusterError: Ray fails.
    """
    written, options = options.cluster or "ray", options.with_written_network()
    space = _space(options)
    options.check(space)
    with BuildQuestion([recipe.model for recipe in space.recipes], options.space) as builder:
        return _answer(options, space, builder, console, written)


def _answer(options: PlanOptions, space: Space, builder: BuildQuestion, console: Console, written: str) -> Answer:
    """Prints and returns the answer on the cluster that was `written`."""
    software = stacks.find_software(options.software)
    cluster = _cluster(options, console)
    if options.node_gbps is not None:
        cluster = with_network(cluster, options.node_gbps / 8)
    if options.device_memory_gib is not None:
        cluster = with_memory_cap(cluster, options.device_memory_gib)
    cluster = stacks.with_software(cluster, software)
    if options.price_per_gpu_h is not None:
        cluster = dataclasses.replace(cluster, price_per_device_hour=options.price_per_gpu_h)
    if "fp8" not in cluster.device.tflops and any(recipe.float8_scaling for recipe in space.recipes):
        raise InputError(
            f"the catalogue has no FP8 figures of {cluster.device.name}:"
            " choose --set compute_precision=bf16, or another device"
        )
    space = space.with_shared_batch(_counts(options, cluster))
    assumptions = Assumptions.of(options, space, cluster)
    for sentence in (*space.model_remarks, *assumptions.sentences()):
        console.print(sentence, highlight=False)
    taught = _taught(options, space, software)
    printed: dict[str, Any] = {
        "space": space.name, "cluster": written, "software": software, "tokens": options.tokens or space.tokens,
        "assumptions": assumptions.to_json(),
    }  # fmt: skip
    if options.fixes_recipe:
        printed["recipe"] = space.recipe.label
        if space.further_recipes:
            console.print(f"For the first of {len(space.recipes)} recipes alone, --set fixes another", highlight=False)
    with Progress(f"planning {space.name} on {cluster_label(cluster)}") as progress:
        answer, code = Question(
            options=options,
            space=space,
            cluster=cluster,
            taught=taught,
            console=console,
            builder=builder,
            progress=progress,
        ).answer()
    return printed | answer, code


def _counts(options: PlanOptions, cluster: ClusterSpec) -> tuple[int, ...]:
    """Returns the numbers of devices of the answer's tables, which share one assumed batch: those of `--gpus` that the
    cluster has, a node's where further nodes are counted up, or the cluster's.
    """
    if options.gpus:
        counts = parse_counts(options.gpus)
        return tuple(count for count in counts if cluster.has_part(count)) or counts
    return (cluster.devices_per_node if options.min_nodes else cluster.num_devices,)
