"""Says why transformers cannot build models, or builds others than were counted; run as a process of its own.

    python -m trainers.models.build_check < MODELS.json        a JSON list of `ModelSpec`s

Prints `{"reason": ""}` for each, or with a sentence in it. A block of each kind is built on the meta device, and run
there: parameters are compared by block, so that a deep model takes no longer than a shallow one.
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
"""Characters of a reason."""
_VALUE_ASKED = "item() cannot be called on meta tensors"
"""Part of torch's error where code looks at a value, as rotary frequencies that depend on the length do (of kind
dynamic, and of kind longrope in transformers 5.17): no widths were found wrong until then.
"""
_TOKENS = 8
"""Length of the sequence that is run."""
_WRAPPING = re.compile(r"^(Class v|V)alidation error for [^:]*: (\w+: )?")
"""The words that transformers' checks of a configuration put before a reason."""


def reason_against(spec: ModelSpec) -> str:
    """Returns why transformers has no such model as `spec` counts, as the second part of a sentence; empty where it
    has.
    """
    shallow = with_few_blocks(spec)
    try:
        # A loop over experts looks at values, which are not there.
        built = model.build(shallow, attention="sdpa", experts="grouped" if spec.num_experts else "loop")
    except (ImportError, MemoryError, OSError):
        raise  # of this machine, not of the model
    except Exception as error:  # whatever the library's code raises on odd values
        return _of_error(error, shallow.settings)
    # `build` compares the sum: with each block right, what is outside of them is right too.
    for name, block in zip(built.block_names, built.blocks, strict=True):
        count = sum(parameter.numel() for parameter in block.parameters())
        if count != spec.parameters_per_layer:
            return f"its {name} has {count} parameters, where {spec.parameters_per_layer} were counted"
    endless = [name for name, buffer in built.module.named_buffers() if not torch.isfinite(buffer).all()]
    if endless:
        return f"its {endless[0]} is not finite"
    try:
        _run(built)
    except Exception as error:  # such as widths that do not fit each other
        if _VALUE_ASKED in str(error):
            return ""
        return f"a forward pass fails: {_of_error(error, shallow.settings)}"
    return ""


def _run(built: model.Model) -> None:
    """Runs the model on the meta device. Bloom's code asks for a device with autocast, and a loop over experts looks at
    values.
    """
    if built.spec.position == "alibi":
        return
    if built.spec.num_experts and not has_grouped_sizes(built.spec):
        return
    tokens = torch.zeros(1, min(_TOKENS, built.spec.max_positions or _TOKENS), dtype=torch.long, device="meta")
    module: Any = built.module.to("meta")  # pyright: ignore[reportArgumentType]
    if built.spec.num_experts:
        module = module.to(torch.bfloat16)  # of grouped products those in bf16 alone can be on no device
    with torch.no_grad():
        # Without a mask transformers would look for documents in the positions.
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
    """Returns the first sentence of a library's error, with the key of `config` that it speaks of, if it names none."""
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
