"""Checks whether transformers builds models as this project counts them. Runs as a process of its own:

    python -m trainers.models.build_check < MODELS        a `ModelSpec` in JSON on each line

Prints a line `{"reason": ""}` for each model, with a sentence as the reason if it cannot be built or differs. A block
of each kind is built and run on the meta device, and parameters are compared by block, so a deep model takes no longer
than a shallow one.
"""

import dataclasses
import json
import re
import sys
from typing import Any

from trainers.spec.codec import from_json, json_object, shortened
from trainers.spec.expert_rules import has_grouped_sizes
from trainers.spec.model import ModelSpec
from trainers.startup import import_stubs

with import_stubs.imports(() if "transformers" in sys.modules else import_stubs.HIDDEN):
    import torch

    from trainers.models import model

_LONGEST = 240
"""Largest number of characters in a reason."""
_VALUE_ASKED = "item() cannot be called on meta tensors"
"""Part of torch's error if code reads a tensor's value, as rotary frequencies that depend on the length do (kind
dynamic, and in transformers 5.17 kind longrope). No error in sizes was found up to that point.
"""
_TOKENS = 8
"""Length of the test sequence."""
_WRAPPING = re.compile(r"^(Class v|V)alidation error for [^:]*: (\w+: )?")
"""Words that transformers' configuration checks put before a reason."""


def reason_against(spec: ModelSpec) -> str:
    """Returns the reason why transformers has no model as `spec` counts it, as the second part of a sentence; empty if
    it has.
    """
    shallow = with_few_blocks(spec)
    try:
        # A loop over experts reads tensors' values, which do not exist on the meta device.
        built = model.build(shallow, attention="sdpa", experts="grouped" if spec.num_experts else "loop")
    except (ImportError, MemoryError, OSError):
        raise  # caused by this machine, not by the model
    except Exception as error:  # the library may raise anything for odd values
        return _of_error(error, shallow.settings)
    # `build` compares the total: if each block is right, so is the rest.
    for name, block in zip(built.block_names, built.blocks, strict=True):
        count = sum(parameter.numel() for parameter in block.parameters())
        if count != spec.parameters_per_layer:
            return f"its {name} has {count} parameters, where {spec.parameters_per_layer} were counted"
    endless = [name for name, buffer in built.module.named_buffers() if not torch.isfinite(buffer).all()]
    if endless:
        return f"its {endless[0]} is not finite"
    try:
        _run(built)
    except Exception as error:  # such as widths that do not match
        if _VALUE_ASKED in str(error):
            return ""
        return f"a forward pass fails: {_of_error(error, shallow.settings)}"
    return ""


def _run(built: model.Model) -> None:
    """Runs the model on the meta device, except models that need values there: Bloom, whose code enters autocast for
    its device, and experts without grouped products.
    """
    if built.spec.position == "alibi":
        return
    if built.spec.num_experts and not has_grouped_sizes(built.spec):
        return
    tokens = torch.zeros(1, min(_TOKENS, built.spec.max_positions or _TOKENS), dtype=torch.long, device="meta")
    module: Any = built.module.to("meta")  # pyright: ignore[reportArgumentType]
    if built.spec.num_experts:
        module = module.to(torch.bfloat16)  # only bf16 grouped products run on the meta device
    with torch.no_grad():
        # Without a mask transformers would search the positions for documents.
        module(tokens, attention_mask=torch.ones_like(tokens, dtype=torch.bool))


def with_few_blocks(spec: ModelSpec) -> ModelSpec:
    """Returns `spec` with one block of each kind that its `config.json` names."""
    config = spec.settings
    kinds = config.get("layer_types")
    first = {kind: place for place, kind in reversed(list(enumerate(kinds)))} if isinstance(kinds, list) else {"": 0}
    places = sorted(first.values())[: spec.num_layers] or [0]
    for key, value in config.items():
        if isinstance(value, list) and len(value) == spec.num_layers:  # type: ignore[reportUnknownArgumentType]
            config[key] = [value[place] for place in places]
        elif key in ("num_hidden_layers", "n_layer") and value == spec.num_layers:
            config[key] = len(places)
    return dataclasses.replace(
        spec,
        num_layers=len(places),
        window_layers=min(spec.window_layers, len(places)),
        config=json.dumps(config, sort_keys=True),
    )


def _of_error(error: Exception, config: dict[str, Any]) -> str:
    """Returns the first sentence of a library's error, with the key of `config` that it concerns if it names none."""
    message = " ".join(str(error).split())
    reason = _WRAPPING.sub("", message).partition(". ")[0].rstrip(".")[:_LONGEST]
    keys = [key for key, value in config.items() if isinstance(value, str) and value and repr(value) in reason]
    if keys and not any(key in reason for key in config):
        return f"it does not know {keys[0]} {shortened(config[keys[0]])}"
    return reason if _WRAPPING.match(message) else f"{type(error).__name__}: {reason}"


def main() -> None:
    """Reads a model in JSON from each line of standard input, and prints the reason against it as a line of JSON."""
    for line in sys.stdin:
        print(json.dumps({"reason": reason_against(from_json(ModelSpec, json_object(line)))}))


if __name__ == "__main__":
    main()
