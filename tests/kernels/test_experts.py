"""Experts alone, in one process: grouped products, the router in fp32 and forced balance, against transformers' own."""

import dataclasses
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.models.test_model import SPECS
from trainers.engines.model_preparation import kernels_in_effect, prepare
from trainers.kernels.experts import learned_routing
from trainers.models import weights
from trainers.models.model import build, config_of
from trainers.spec.architectures import architecture_of
from trainers.spec.architectures.with_experts import WithExperts
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import Checkpointing, Experts
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

CPU = torch.device("cpu")
NAMES = [name for name, spec in SPECS.items() if spec.num_experts]
SEQ_LEN = 24
TOKENS = torch.randint(97, (3, SEQ_LEN), generator=torch.Generator().manual_seed(0))
LAYOUT = Layout(engine="ddp")


def model_of(name: str, experts: Experts = "loop", balanced_tokens: int = 0, **layout: Any) -> Any:
    """Returns a model with weights."""
    spec = dataclasses.replace(SPECS[name], init_std=0.2)
    model = prepare(
        build(spec, attention="eager", experts=experts, balanced_tokens=balanced_tokens),
        dataclasses.replace(LAYOUT, experts=experts, **layout),
    )
    weights.materialise(model.module, names=model.names, seed=3, std=0.2, device=CPU)
    return model


def router_of(block: Any, name: str) -> Any:
    family = architecture_of(SPECS[name].architecture)
    assert isinstance(family, WithExperts)
    return block.get_submodule(family.router)


def plain(name: str) -> Any:
    """Returns transformers' own model with the same weights, nothing of this project in it."""
    config = config_of(SPECS[name])
    module = AutoModelForCausalLM.from_config(
        CONFIG_MAPPING[config.model_type](**config.to_dict()),
        attn_implementation="eager",
        experts_implementation="eager",
    )
    for parameter_name, parameter in module.named_parameters():
        parameter.data.copy_(weights.draw(parameter_name, parameter.shape, seed=3, std=0.2, device=CPU))
    return module


def loss_and_gradients(module: Any, tokens: torch.Tensor = TOKENS) -> tuple[float, dict[str, torch.Tensor]]:
    loss = module(tokens).logits.float().log_softmax(dim=-1)[..., 5].mean()
    loss.backward()
    return loss.item(), {
        parameter_name.replace("_checkpoint_wrapped_module.", ""): parameter.grad
        for parameter_name, parameter in module.named_parameters()
    }


def assert_same(ours: tuple[float, dict[str, torch.Tensor]], theirs: tuple[float, dict[str, torch.Tensor]]) -> None:
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
    assert ours[1].keys() == theirs[1].keys()
    for name, gradient in theirs[1].items():
        scale = gradient.abs().max().item()
        assert scale > 0, name
        torch.testing.assert_close(ours[1][name], gradient, rtol=1e-3, atol=1e-5 * scale)


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
@pytest.mark.parametrize("experts", ["loop", "grouped"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_transformers_own_model(
    name: str, experts: Experts, checkpointing: Checkpointing
) -> None:
    ours = model_of(name, experts, checkpointing=checkpointing)
    assert_same(loss_and_gradients(ours.module), loss_and_gradients(plain(name)))
    in_effect = kernels_in_effect([ours], dataclasses.replace(LAYOUT, checkpointing=checkpointing))
    assert (in_effect["experts"], in_effect["routing"]) == (experts, "learned")


@pytest.mark.parametrize("name", NAMES)
def test_grouped_products_save_no_view_of_a_parameter(name: str) -> None:
    """Checks what lets ZeRO-3 free gathered experts between the two passes."""
    module = model_of(name, "grouped").module
    stacks = {parameter.data_ptr(): parameter for parameter in module.parameters() if parameter.dim() == 3}
    saved: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        module(TOKENS)
    of_stacks = [tensor for tensor in saved if tensor.data_ptr() in stacks]
    assert len(of_stacks) == len(stacks)
    assert all(tensor.is_leaf and tensor.shape == stacks[tensor.data_ptr()].shape for tensor in of_stacks)


@pytest.mark.parametrize("experts", ["loop", "grouped"])
def test_all_tokens_may_go_to_the_same_experts(experts: Experts) -> None:
    """Checks that experts without a token have gradients of 0, and the others those of transformers' model."""
    ours, theirs = model_of("mixtral", experts).module, plain("mixtral")
    for module in (ours, theirs):
        for block in module.model.layers:
            router_of(block, "mixtral").weight.data.zero_()
    (loss, gradients), (other_loss, others) = loss_and_gradients(ours), loss_and_gradients(theirs)
    assert loss == pytest.approx(other_loss, rel=1e-5)
    for name, gradient in others.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-3, atol=1e-5 * gradient.abs().max().item())
        if "experts" in name:
            assert sorted(bool(of_expert.any()) for of_expert in gradients[name]) == [False, False, True, True]


@pytest.mark.parametrize("name", NAMES)
def test_forced_balance_is_equal_distinct_and_the_same_however_a_batch_is_cut(name: str) -> None:
    spec = SPECS[name]
    model = model_of(name, "grouped", balanced_tokens=SEQ_LEN)
    assert kernels_in_effect([model], LAYOUT)["routing"] == "balanced"
    tables = [router_of(block, name).balanced_experts for block in model.blocks]
    for table in tables:
        counts = torch.bincount(table.flatten(), minlength=spec.num_experts)
        assert counts.max() - counts.min() <= 1
        assert all(len(set(chosen)) == spec.experts_per_token for chosen in table.tolist())
    assert not torch.equal(tables[0], tables[1])
    with torch.no_grad():
        of_batch = model.module(TOKENS).logits
        parts = torch.cat([model.module(tokens[None]).logits for tokens in TOKENS])
        torch.testing.assert_close(of_batch, parts, rtol=1e-4, atol=1e-5)
        with learned_routing(model.module.modules()):
            assert kernels_in_effect([model], LAYOUT)["routing"] == "learned"
            torch.testing.assert_close(model.module(TOKENS).logits, plain(name)(TOKENS).logits, rtol=1e-4, atol=1e-5)
    assert kernels_in_effect([model], LAYOUT)["routing"] == "balanced"
    assert "balanced_experts" not in "".join(model.module.state_dict())
    for parameter_name, gradient in loss_and_gradients(model.module)[1].items():
        assert gradient.abs().max() > 0, parameter_name


def test_loop_and_grouped_products_train_alike_under_forced_balance() -> None:
    ours, theirs = (model_of("qwen3_moe", experts, balanced_tokens=SEQ_LEN).module for experts in ("grouped", "loop"))
    assert_same(loss_and_gradients(ours), loss_and_gradients(theirs))


@pytest.mark.parametrize("name", NAMES)
def test_the_router_is_in_fp32_whatever_it_is_given(name: str) -> None:
    router = router_of(model_of(name).blocks[0], name).to(torch.bfloat16)
    hidden = torch.randn(2, 4, SPECS[name].hidden_size, dtype=torch.bfloat16)
    for autocast in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            scores, chosen_weights, _ = router(hidden)
        exact = hidden.flatten(0, 1).double() @ router.weight.double().t()
        assert scores.dtype == chosen_weights.dtype == torch.float32
        torch.testing.assert_close(scores.double(), exact, rtol=1e-5, atol=1e-6)


def test_grouped_products_are_in_the_type_of_autocast() -> None:
    """Checks the type of what is multiplied: grouped products know no autocast, and fp32 ones would be slow."""
    model = model_of("mixtral", "grouped").module
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, gradients = loss_and_gradients(model)
    exact, others = loss_and_gradients(model_of("mixtral", "grouped").module)
    assert loss != exact and loss == pytest.approx(exact, rel=2e-2)
    name = "model.layers.1.mlp.experts.down_proj"
    rounded = gradients[name].to(torch.bfloat16).float()
    assert torch.equal(gradients[name], rounded) and not torch.equal(others[name], rounded)


MOE = ModelSpec.from_config(
    {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "moe_intermediate_size": 24,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "vocab_size": 97,
    },
    name="mine",
)


def test_only_a_model_with_experts_has_forced_balance_and_its_words_count_tokens() -> None:
    recipe = Recipe(model=MOE, seq_len=24, global_batch=8, routing="balanced")
    assert recipe.forced_balance == (
        "3 tokens of a sequence for each of 16 experts in every block, 3 at most, 0 experts without any"
    )
    few = dataclasses.replace(recipe, seq_len=4)
    assert few.forced_balance == (
        "0.5 tokens of a sequence for each of 16 experts in every block, 1 at most, 8 experts without any"
    )
    assert recipe.as_trained == dataclasses.replace(recipe, routing="learned")
    assert not recipe.as_trained.forced_balance and recipe.id != recipe.as_trained.id
    for changes, sentence in (
        (
            {"model": SPECS["llama"], "routing": "learned", "balance_loss": "aux"},
            "aux needs a model with experts, llama",
        ),
        ({"balance_rate": 0.1}, "balance_rate needs a balance_loss, got 0.1"),
        ({"balance_loss": "bias", "balance_rate": -1.0}, "must be a finite number of at least 0, got -1.0"),
    ):
        with pytest.raises(ValueError, match=sentence):
            dataclasses.replace(recipe, **changes)
    stated = ModelSpec.from_config({**MOE.settings, "router_aux_loss_coef": 0.02}, name="stated")
    rates = [dataclasses.replace(recipe, model=stated, balance_loss=kind).rate_of_balance for kind in ("aux", "bias")]
    assert rates == [0.02, 0.001]
    none = ModelSpec.from_config({**MOE.settings, "router_aux_loss_coef": 0.0}, name="none")
    assert dataclasses.replace(recipe, model=none, balance_loss="aux").rate_of_balance == 0.0
    for value in (-0.5, "0.02", True):
        with pytest.raises(ValueError, match="router_aux_loss_coef"):
            odd = ModelSpec.from_config({**MOE.settings, "router_aux_loss_coef": value}, name="odd")
            dataclasses.replace(recipe, model=odd, balance_loss="aux")
    with pytest.raises(ValueError, match="routing balanced needs a model with experts, llama has none: set routing to"):
        dataclasses.replace(recipe, model=SPECS["llama"])
