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
from trainers.spec.kernel_rules import default_attention
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
_LONGEST_VALUE = 80
_LEFT_OUT = object()
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
        built = _built(shallow)
    except (ImportError, MemoryError, OSError):
        raise  # caused by this machine, not by the model
    except Exception as error:  # the library may raise anything for odd values
        return _of_error(error, shallow)
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
        return f"a forward pass fails: {_of_error(error, shallow)}"
    return ""


def _built(spec: ModelSpec) -> model.Model:
    # A loop over experts reads tensors' values, which do not exist on the meta device.
    attention = default_attention(spec.architecture)
    return model.build(spec, attention=attention, experts="grouped" if spec.num_experts else "loop")


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


def _of_error(error: Exception, spec: ModelSpec) -> str:
    """Returns the first sentence of a library's error, with the stated key that it concerns if it names none."""
    message, config = " ".join(str(error).split()), spec.settings
    reason = _WRAPPING.sub("", message).partition(". ")[0].rstrip(".")[:_LONGEST]
    keys = [key for key, value in config.items() if isinstance(value, str) and value and repr(value) in reason]
    is_named = any(key in reason for key in config)
    if keys and not is_named:
        return f"it does not know {keys[0]} {shortened(config[keys[0]])}"
    if not _WRAPPING.match(message):
        reason = f"{type(error).__name__}: {reason}"
    # A plain ValueError is a sentence for people; others are of code that met a value that it does not expect.
    return reason if is_named or type(error) is ValueError else _with_key(reason, error, spec)


def _with_key(reason: str, error: Exception, spec: ModelSpec) -> str:
    """Returns the reason with the stated key that brings this error: best one without which the model is built and run,
    else one without which, or with 1 for its null, another error comes. Unchanged if there is no such key.
    """
    config, others = spec.settings, list[str]()
    places = [inner for inner in config.values() if isinstance(inner, dict)]
    stated = [(key, value, place) for place in (*places, config) for key, value in place.items()]
    for key, value, place in sorted(stated, key=lambda item: item[1] is not None):  # null is the likeliest
        named = f"{key} {json.dumps(value)[:_LONGEST_VALUE]} ends in {reason}: state another value"
        for instead in (_LEFT_OUT, 1) if value is None else (_LEFT_OUT,):
            place.pop(key) if instead is _LEFT_OUT else place.update({key: instead})
            other = _error_of(dataclasses.replace(spec, config=json.dumps(config)))
            place[key] = value
            if other is None:
                return f"{named}{', or leave it out' if instead is _LEFT_OUT else ''}"
            if (type(other), str(other)) != (type(error), str(error)):
                others.append(named)
    return next(iter(others), reason)


def _error_of(spec: ModelSpec) -> Exception | None:
    try:
        _run(_built(spec))
    except Exception as error:
        return error
    return None


def main() -> None:
    """Reads a model in JSON from each line of standard input, and prints the reason against it as a line of JSON."""
    for line in sys.stdin:
        print(json.dumps({"reason": reason_against(from_json(ModelSpec, json_object(line)))}))


if __name__ == "__main__":
    main()
