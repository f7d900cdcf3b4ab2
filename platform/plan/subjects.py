"""Finds the space and the cluster that the options of a plan name."""

import dataclasses
import os
from collections.abc import Sequence

from rich.console import Console

import search_spaces
from platform.cluster import connection as clusters
from platform.cluster.probing import probe_store
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
from platform.plan.offers import with_engines_of
from platform.plan.plan_options import PlanOptions
from platform.plan.prices import price_of
from platform.study.folder import user_path
from search_spaces import reference
from search_spaces.space import Space


def space_of(options: PlanOptions) -> Space:
    """Returns the space of the options, with the engines of the software.

    Raises:
        InputError: the space is unknown or cannot be planned.
    """
    (name,) = options.space
    try:
        space = with_engines_of(search_spaces.load(name), stacks.find_software(options.software))
        space = space.with_changes(options.set) if options.set else space
    except ValueError as error:
        space_names = ", ".join(reference.names())
        hint = f"; spaces for planning only: {space_names}" if str(error).startswith("unknown space") else ""
        raise InputError(f"{error}{hint}") from None
    if any(recipe.grad_accum for recipe in space.recipes):
        raise InputError("a plan is for a global batch, which grad_accum leaves open: --set global_batch=N instead")
    return space


def cluster_of(options: PlanOptions, spaces: Sequence[Space], console: Console) -> ClusterSpec:
    """Returns the cluster of the options with the stated network, memory, software and price.

    Raises:
        InputError: no cluster is named, it is unknown, or it lacks figures for the spaces.
        ClusterError: Ray fails.
    """
    cluster = _written(options, console)
    if options.node_gbps is not None:
        cluster = with_network(cluster, options.node_gbps / 8)
    if options.device_memory_gib is not None:
        cluster = with_memory_cap(cluster, options.device_memory_gib)
    cluster = stacks.with_software(cluster, stacks.find_software(options.software))
    hourly = price_of(cluster, options.price, options.price_per_gpu_h)
    if hourly is not None:
        cluster = dataclasses.replace(cluster, price_per_device_hour=hourly, price_source="stated")
    if "fp8" not in cluster.device.tflops and any(
        recipe.float8_scaling for space in spaces for recipe in space.recipes
    ):
        raise InputError(
            f"the catalogue has no FP8 figures of {cluster.device.name}:"
            " choose --set compute_precision=bf16, or another device"
        )
    return cluster


def _written(options: PlanOptions, console: Console) -> ClusterSpec:
    """Returns the cluster of the options: from its text, from a probe's file, or from Ray.

    Raises:
        InputError: no cluster is named, or it is unknown.
        ClusterError: Ray fails.
    """
    in_ray = options.address or os.environ.get("RAY_ADDRESS")
    written = options.cluster[0] if options.cluster else "ray" if in_ray else None
    if written is None:
        raise InputError(
            "give --cluster: 8xA100-80GB, a name of the catalogue, or ray for the cluster that Ray has here"
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
