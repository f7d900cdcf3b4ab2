"""Spaces: the recipes and layouts to try, a file per model family, each with functions that return a frozen `Space`. A
new space is a function and a line in `_REGISTRY`; a user's own file, named by its path, needs no line.
"""

import dataclasses
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

from search_spaces import foreign, hub, reference
from search_spaces.changes import spelling_hint
from search_spaces.miniature import of_its_own_axes
from search_spaces.paths import expanded
from search_spaces.space import Space
from search_spaces.transformers_config import space_of_config
from trainers.records.plain_files import MOST_SOURCE_BYTES, read_plain

_REGISTRY = {
    "bloom7b": "search_spaces.bloom7b:bloom7b",
    "bloom7b_kinds": "search_spaces.bloom7b:bloom7b_kinds",
    "gpt2": "search_spaces.gpt2:gpt2",
    "gpt2_xl": "search_spaces.gpt2:gpt2_xl",
    "gpt2_xl_compressed": "search_spaces.gpt2:gpt2_xl_compressed",
    "gpt2_zero": "search_spaces.gpt2:gpt2_zero",
    "gpt2_fsdp": "search_spaces.gpt2:gpt2_fsdp",
    "gpt2_128": "search_spaces.gpt2:gpt2_128",
    "tr3m_1b3": "search_spaces.tr3m:tr3m_1b3",
    "llama3_8b": "search_spaces.llama3:llama3_8b",
    "llama3_8b_sft": "search_spaces.llama3:llama3_8b_sft",
    "llama3_8b_32k": "search_spaces.llama3:llama3_8b_32k",
    "llama3_8b_131k": "search_spaces.llama3:llama3_8b_131k",
    "qwen3_8b": "search_spaces.qwen3:qwen3_8b",
    "qwen3_8b_lora": "search_spaces.qwen3:qwen3_8b_lora",
    "qwen3_30b_a3b": "search_spaces.qwen3:qwen3_30b_a3b",
    "gpt_oss_20b": "search_spaces.gpt_oss:gpt_oss_20b",
}


def names() -> tuple[str, ...]:
    return tuple(_REGISTRY)


def built_in_spaces() -> tuple[Space, ...]:
    return tuple(_built_in(name) for name in _REGISTRY)


def load(name_or_path: str) -> Space:
    """Returns the space of that name, of that Python file (its `space()`), or of that transformers `config.json` or its
    folder; a text that is no path may be an id on the Hugging Face hub.

    Raises:
        ValueError: there is no such space (similar names are listed) or file, or the file gives no space; one sentence.
    """
    if name_or_path in _REGISTRY:
        return _built_in(name_or_path)
    if name_or_path in reference.names():
        return _of_ours(reference.load(name_or_path))
    path = expanded(name_or_path)
    if (meant := hub.id_of_address(name_or_path)) and not path.exists():
        raise ValueError(f"{name_or_path} is an address: the model's id on the hub is {meant}")
    if path.is_dir() and (path / "config.json").exists():
        path = path / "config.json"
    if path.suffix == ".py":
        return _of_file(path)
    if path.suffix == ".json":
        return space_of_config(path)
    if path.suffix.lower() in (".yaml", ".yml") and path.is_file():
        raise ValueError(foreign.refusal_of_yaml(path))
    if is_of_hub(name_or_path):
        config = hub.fetch(name_or_path)
        return space_of_config(config.path, config.remarks)
    if path.is_dir() or "/" in name_or_path:
        lacks = "has no config.json" if path.is_dir() else "is not there"
        raise ValueError(
            f"{path} {lacks}: give a space's name (--list), a .py file, a model's config.json or folder, or its id on"
            " the hub, OWNER/NAME"
        )
    raise ValueError(
        f"unknown space {name_or_path!r}{spelling_hint(name_or_path.lower(), _REGISTRY)} (the spaces are"
        f" {', '.join(_REGISTRY)}; the path of a .py file or of a config.json names one too)"
    )


def pinned(name_or_path: str) -> str:
    """Returns a name by which `load` returns the same space again: for a model of the hub its id with the commit."""
    return hub.fetch(name_or_path).pinned if is_of_hub(name_or_path) else name_or_path


def is_of_hub(name_or_path: str) -> bool:
    """Returns whether `load` takes the text as an id of the Hugging Face hub."""
    return hub.is_id(name_or_path) and not expanded(name_or_path).exists()


def _built_in(name: str) -> Space:
    module, _, function = _REGISTRY[name].partition(":")
    make: Callable[[], Space] = getattr(importlib.import_module(module), function)
    return _of_ours(make())


def _of_ours(space: Space) -> Space:
    """Returns a built-in space with its global batch marked as assumed, unless it has named points."""
    return space if space.points else dataclasses.replace(space, assumed=("global_batch",))


def _of_file(path: Path) -> Space:
    if not path.is_file():
        raise ValueError(f"cannot read {path}: there is no such file")
    module_name = f"search_space_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses in the file look up their own module
    try:
        # Python's loader would read a file of any size.
        source = read_plain(path, links=True, most_bytes=MOST_SOURCE_BYTES)
        exec(importlib.machinery.SourceFileLoader(module_name, str(path)).source_to_code(source, path), vars(module))
        make = getattr(module, "space", None)
        if not callable(make):
            raise ValueError(f"{path} defines no function space()")
        space = make()
    except BaseException as error:  # the user's file may raise anything, also SystemExit; report it in one sentence
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        raise ValueError(f"cannot load a space from {path}: {type(error).__name__}: {error}") from error
    if not isinstance(space, Space):
        raise ValueError(f"space() of {path} returned {type(space).__name__}, not a Space")
    return of_its_own_axes(space)
