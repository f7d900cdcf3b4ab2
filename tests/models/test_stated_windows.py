"""Windows as a `config.json` states them: keys are counted as transformers' attention sees them, or it is refused."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.models.test_same_model import whole_config
from trainers.models import build_check
from trainers.models.model import config_of
from trainers.spec import architectures
from trainers.spec.model import ModelSpec

LENGTH, WINDOW = 24, 8
MIXED, GLOBAL = ["sliding_attention", "full_attention"] * 2, ["full_attention"] * 4
STATED: dict[str, dict[str, Any]] = {
    "a window in every second block": {"layer_types": MIXED, "sliding_window": WINDOW},
    "such blocks, and the window turned off": {
        "layer_types": MIXED, "sliding_window": WINDOW, "use_sliding_window": False,
    },
    "such blocks without a length": {"layer_types": MIXED, "sliding_window": None},
    "no such block, and a length": {"layer_types": GLOBAL, "sliding_window": WINDOW},
    "no such block and no length": {"layer_types": GLOBAL, "sliding_window": None},
    "no length": {"layer_types": None, "sliding_window": None},
    "a length of 0": {"layer_types": None, "sliding_window": 0},
    "a length alone": {"layer_types": None, "sliding_window": WINDOW},
}  # fmt: skip


def keys_seen(spec: ModelSpec) -> float:
    """Returns the keys that transformers' eager attention sees for each query, averaged over queries and blocks."""
    config: Any = config_of(spec)
    if spec.num_experts:
        config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        tokens = torch.arange(LENGTH)[None]
        attentions = model(tokens, output_attentions=True, use_cache=False, return_dict=True).attentions
    return sum(int((scores[0, 0] > 0).sum()) for scores in attentions) / LENGTH / len(attentions)


@pytest.mark.parametrize("stated", STATED)
@pytest.mark.parametrize("family", architectures.names())
def test_keys_are_those_that_transformers_sees_or_the_file_is_refused(family: str, stated: str) -> None:
    config = {key: value for key, value in whole_config(family).items() if not key.startswith("output_")}
    config = {**config, "max_window_layers": 2, **STATED[stated]}
    if config["layer_types"] is None:
        del config["layer_types"]
    try:
        spec = ModelSpec.from_config(config, name="mine")
    except ValueError as error:
        assert "mine" in str(error) and "\n" not in str(error)
        return
    if build_check.reason_against(spec):
        return
    assert 0 < keys_seen(spec) - spec.keys_per_query(LENGTH) <= 0.5
