"""Recognises files of other tools, given in place of a model, by their keys."""

import re
from collections.abc import Collection
from pathlib import Path

from trainers.records.plain_files import read_plain

_KINDS = {
    "accelerate's configuration, which says how to start processes": ({"compute_environment", "distributed_type"},),
    "DeepSpeed's configuration, which says how to train": ({"zero_optimization"}, {"train_micro_batch_size_per_gpu"}),
    "Ray's cluster file, which says which machines to start": ({"cluster_name", "provider"},),
    "an Axolotl configuration of a training": ({"base_model", "datasets"},),
}
"""Kinds of files, each with the sets of keys that identify it; one complete set suffices."""
_REMEDY = {
    "Ray's cluster file, which says which machines to start": "`ray up` takes it; ",
    "accelerate's configuration, which says how to start processes": "`accelerate launch --config_file` takes it; ",
}
_KEY = re.compile(r"^([A-Za-z_][\w-]*):", re.MULTILINE)
"""A key of the outermost mapping in a YAML file."""
_MODEL = "a model is given by its config.json, its folder or its id on the hub, as in Qwen/Qwen3-8B"


def refusal(path: Path, keys: Collection[str]) -> str | None:
    """Returns the error sentence for a file with these outermost keys; None if it belongs to no known tool."""
    for kind, key_sets in _KINDS.items():
        if any(key_set <= set(keys) for key_set in key_sets):
            return f"{path} is {kind}, and no model: {_REMEDY.get(kind, '')}{_MODEL}"
    return None


def refusal_of_yaml(path: Path) -> str:
    """Returns the error sentence for a YAML file, which is never a model.

    Raises:
        ValueError: the file cannot be read.
    """
    keys = _KEY.findall(read_plain(path, links=True).decode("utf-8", "replace"))
    return refusal(path, keys) or f"{path} is YAML and no model: {_MODEL}"
