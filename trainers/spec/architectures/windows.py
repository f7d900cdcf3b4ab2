"""Families with a sliding window: the keys of `config.json` for its length and for the blocks that have it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from trainers.spec.architectures.architecture import GLOBAL, LOCAL, SlidingWindow
from trainers.spec.architectures.llama_like import LlamaLike
from trainers.spec.codec import shortened
from trainers.spec.model_sizes import ModelSizes


def _size(config: Mapping[str, Any], default: int, *, switch: str = "") -> int:
    """Returns the stated window; 0 for none, or if the key `switch` does not turn it on."""
    size, is_on = config.get("sliding_window", default or None), not switch or bool(config.get(switch))
    if size is None:
        return 0
    if type(size) is not int or not is_on <= size < 2**31:  # transformers takes 0 for a window that hides all tokens
        raise ValueError(f"sliding_window must be a whole number of tokens above 0, or null, got {shortened(size)}")
    return size if is_on else 0


def _whole_number(config: Mapping[str, Any], key: str, default: int, *, least: int) -> int:
    value = config.get(key)
    if value is None:
        return default
    if type(value) is not int or value < least:
        raise ValueError(f"{key} must be a whole number of at least {least}, or left out, got {shortened(value)}")
    return value


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class WindowInEveryBlock(LlamaLike):
    """A family in which either all blocks or none have the window of `sliding_window`."""

    default_window: int = 0
    """`sliding_window` if the configuration does not state it."""

    def window(self, config: Mapping[str, Any], num_layers: int) -> SlidingWindow:
        size, kinds = _size(config, self.default_window), config.get("layer_types")
        kind = LOCAL if size else GLOBAL
        if kinds is not None and kinds != [kind] * num_layers:
            raise ValueError(
                f"layer_types must name {kind} for each of the {num_layers} blocks or be left out, got"
                f" {shortened(kinds)}: all blocks of a {self.name} have the sliding_window, or none"
            )
        return SlidingWindow(size=size, num_layers=num_layers if size else 0)

    def window_config(self, spec: ModelSizes) -> dict[str, Any]:
        return {"sliding_window": spec.window or None}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class WindowByBlock(LlamaLike):
    """A family in which `layer_types` names the blocks with a window.

    Without `layer_types` every `global_every`-th block has no window; if `global_every` is 0, the window starts at
    block `max_window_layers`.
    """

    default_window: int = 4096
    """`sliding_window` if the configuration does not state it."""
    switch: str = ""
    """Key that turns the window on; empty if it is always on."""
    global_every: int = 0
    """Distance between blocks without a window if `layer_types` is not stated; 0 means `max_window_layers` decides."""
    masks_always: bool = True
    """Whether transformers builds the window's mask, which needs a length, even if no block has the window."""

    def window(self, config: Mapping[str, Any], num_layers: int) -> SlidingWindow:
        size = _size(config, self.default_window, switch=self.switch)
        if not size and not self.switch and self.masks_always:
            raise ValueError(f"transformers needs a sliding_window in every {self.name}, for blocks without one too")
        kinds = config.get("layer_types")
        if kinds is None:
            first = _whole_number(config, "max_window_layers", 28, least=0)
            period = _whole_number(config, "sliding_window_pattern", self.global_every, least=1)
            local = [bool((i + 1) % period) if period else i >= first for i in range(num_layers)]
        else:
            if (
                not isinstance(kinds, list)
                or len(kinds) != num_layers
                or not all(kind in (LOCAL, GLOBAL) for kind in kinds)
            ):
                raise ValueError(
                    f"layer_types must name {LOCAL} or {GLOBAL} for each of the {num_layers} blocks, got"
                    f" {shortened(kinds)}"
                )
            local = [kind == LOCAL for kind in kinds]
            if any(local) and not size:
                raise ValueError(f"layer_types names {LOCAL}, but there is no sliding_window: state one")
        count = sum(local) if size else 0
        return SlidingWindow(size=size if count else 0, num_layers=count)

    def window_config(self, spec: ModelSizes) -> dict[str, Any]:
        """Returns keys that spread the blocks without a window evenly, with one of them last."""
        count = spec.num_layers - spec.window_layers
        is_global = [(i + 1) * count // spec.num_layers > i * count // spec.num_layers for i in range(spec.num_layers)]
        switch = {self.switch: spec.window > 0} if self.switch else {}
        size = spec.window or (self.default_window if self.masks_always and not self.switch else None)
        return {
            **switch,
            "sliding_window": size,
            "layer_types": [GLOBAL if without_window else LOCAL for without_window in is_global],
        }
