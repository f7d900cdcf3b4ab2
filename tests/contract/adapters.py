"""Adapters on two ranks: cases, faults, the work of a rank, and a model in one process with merged weights."""

# pyright: reportPrivateUsage=false

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Mapping
from typing import Any
from unittest import mock

import torch
from torch.func import functional_call
from transformers.pytorch_utils import Conv1D

from tests.contract.cases import recipe
from tests.contract.family_cases import FAMILIES
from tests.contract.mesh_cases import MODELS as NARROW
from tests.contract.mesh_cases import MeshCase
from tests.contract.mesh_group import Trained, in_one_process, run_all
from tests.contract.reference import dense_model, make_optimizer
from trainers.engines import torch_engine
from trainers.kernels.spans import ids_of
from trainers.mesh import tensor_parallel
from trainers.models import adapters, nf4, weights
from trainers.models.weights import draw
from trainers.spec.layout import Layout
from trainers.spec.nf4 import scales_of_factor
from trainers.spec.recipe import Recipe
from trainers.spec.recipe_axes import Adapter

WORLD_SIZE = 2
# Blocks of NF4 have 64 weights.
MODELS = {
    **NARROW,
    **FAMILIES,
    "wide llama": dataclasses.replace(NARROW["llama"], name="wide llama", hidden_size=64, num_kv_heads=4, ffn_size=0),
    "wide gpt2": dataclasses.replace(NARROW["gpt2"], name="wide gpt2", hidden_size=64, ffn_size=0),
}
DEVIATION = 0.2
"""Deviation of an adapter's second layer. With its usual zeros the first layer has no gradient."""
_DDP: dict[str, Any] = {"engine": "ddp", "attention": "sdpa"}
_STAGE_2: dict[str, Any] = {"engine": "fsdp", "zero_stage": 2, "attention": "sdpa"}
_STAGE_3: dict[str, Any] = {"engine": "fsdp", "zero_stage": 3, "attention": "sdpa"}


def _case(
    name: str,
    layout: Mapping[str, Any],
    precision: str = "fp32",
    targets: str = "all-linear",
    fault: str = "",
    adapter: Adapter = "lora_4",
    **changes: Any,
) -> MeshCase:
    chosen = dataclasses.replace(
        recipe(MODELS[name], precision),
        adapter=adapter, lora_targets=targets, lora_alpha=6.0, **changes,
    )  # fmt: skip
    return MeshCase(recipe=chosen, layout=Layout(**layout), fault=fault)


CASES = (
    _case("llama", {**_DDP, "dp_replicate": 2}),
    _case("gpt2", {**_DDP, "dp_replicate": 2, "loss": "chunked", "checkpointing": "full"}),
    _case("qwen3", {**_STAGE_3, "dp_shard": 2, "loss": "chunked", "checkpointing": "selective"}),
    _case("bloom", {**_STAGE_2, "dp_shard": 2, "grad_sync": "every"}),
    _case("phi3", {**_STAGE_3, "dp_shard": 2, "checkpointing": "every_2"}, targets="qkv_proj+mlp.down_proj"),
    _case("qwen3", {**_STAGE_3, "dp_shard": 2, "compile": "block", "checkpointing": "full"}),
    _case("llama", {**_DDP, "tp": 2, "loss": "chunked"}),
    _case("llama", {**_STAGE_3, "dp_shard": 2, "loss": "chunked"}, trained_tokens="marked"),
    _case("gpt2", {**_STAGE_3, "tp": 2}),
    _case("qwen3", {**_STAGE_2, "cp": 2}),
    _case("qwen3_moe", {**_STAGE_3, "dp_shard": 2, "experts": "grouped"}, targets="q_proj+v_proj"),
    _case("wide llama", {**_DDP, "dp_replicate": 2, "checkpointing": "selective"}, adapter="qlora_4"),
    _case("wide llama", {**_STAGE_3, "dp_shard": 2, "loss": "chunked"}, adapter="qlora_4"),
    _case("wide llama", {**_STAGE_2, "cp": 2, "compile": "block"}, adapter="qlora_4"),
    _case("wide gpt2", {**_STAGE_3, "dp_shard": 2, "checkpointing": "full"}, targets="c_attn", adapter="qlora_4"),
)
IN_HALF = (
    _case("llama", {**_DDP, "dp_replicate": 2}, "bf16"),
    _case("llama", {**_STAGE_3, "dp_shard": 2, "loss": "chunked"}, "bf16"),
    _case("wide llama", {**_STAGE_3, "dp_shard": 2}, "bf16", adapter="qlora_4"),
)
ON_FOUR = (
    *(
        _case(name, {**_STAGE_3, "dp_shard": 4}, targets="q_proj+o_proj" if model.num_experts else "all-linear")
        for name, model in FAMILIES.items()
    ),
    _case("llama", {**_STAGE_3, "dp_shard": 2, "tp": 2, "checkpointing": "selective"}),
    _case("starcoder2", {**_DDP, "dp_replicate": 2, "tp": 2}),
    _case("qwen3", {**_STAGE_3, "dp_replicate": 2, "dp_shard": 2, "grad_sync": "every"}),
    _case("gpt2", {**_DDP, "dp_replicate": 2, "cp": 2}),
    _case("glm4", {**_STAGE_2, "cp": 2, "tp": 2, "loss": "chunked"}),
    _case("wide llama", {**_STAGE_3, "dp_replicate": 2, "dp_shard": 2}, adapter="qlora_4"),
    _case("wide gpt2", {**_STAGE_2, "dp_shard": 4, "grad_sync": "every"}, adapter="qlora_4"),
)
"""Every family, and combinations of degrees."""
FAULTS = (
    _case("llama", {**_DDP, "dp_replicate": 2}, fault="a frozen norm moves"),
    _case("llama", {**_STAGE_3, "dp_shard": 2}, fault="not divided by the rank"),
    _case("llama", {**_DDP, "tp": 2}, fault="adapters added after the sum over ranks"),
    _case("llama", {**_STAGE_3, "dp_shard": 2}, fault="adapters cast to bf16"),
    _case("wide llama", {**_STAGE_3, "dp_shard": 2}, fault="a scale in NF4 moves", adapter="qlora_4"),
    _case("wide llama", {**_DDP, "dp_replicate": 2}, fault="both levels of a byte exchanged", adapter="qlora_4"),
)


def run(cases: list[MeshCase]) -> list[dict[str, Any]]:
    """Runs the cases of one rank, starting from adapters with two random layers; see `mesh_group.run_all`."""
    results: list[dict[str, Any]] = []
    for case in cases:
        with mock.patch.object(weights, "first_deviation", lambda *_: DEVIATION), _planted(case.fault):
            results += run_all([dataclasses.replace(case, fault="")])
    return results


@contextlib.contextmanager
def _planted(fault: str) -> Generator[None]:
    make: Mapping[str, Callable[[], Any]] = {
        "a frozen norm moves": lambda: _moved("norm", lambda norm: norm.mul_(1.001)),
        "a scale in NF4 moves": lambda: _moved("nf4_scales", lambda scales: scales.bitwise_xor_(1)),
        "adapters cast to bf16": lambda: mock.patch.object(adapters, "adapted", _in_bf16(adapters.adapted)),
        "both levels of a byte exchanged": lambda: mock.patch.object(
            nf4, "_pairs", lambda factors, make=nf4._pairs: make(factors).flip(1)
        ),
        "not divided by the rank": lambda: mock.patch.object(
            Recipe, "lora_scale", property(lambda self: self.lora_alpha)
        ),
        "adapters added after the sum over ranks": lambda: mock.patch.object(
            tensor_parallel, "adapted", lambda *of_layer: of_layer[2] + 0 * adapters.adapted(*of_layer)
        ),
    }
    with make[fault]() if fault else contextlib.nullcontext():
        yield


def _moved(kind: str, move: Callable[[torch.Tensor], Any]) -> Any:
    """Moves the first frozen parameter with `kind` in its name before each optimizer step."""
    step = torch_engine.TorchEngine._optimizer_step

    def changed(self: Any) -> Any:
        parameter = next(parameter for name, parameter in self._frozen if kind in name)
        move(self._place_of(parameter)[0].data)
        return step(self)

    return mock.patch.object(torch_engine.TorchEngine, "_optimizer_step", changed)


def _in_bf16(adapted: Any) -> Any:
    return lambda layer, input, output: output + (adapted(layer, input, output) - output).bfloat16().to(output.dtype)


def merged(case: MeshCase) -> Trained:
    """Trains the plain model in one process with the gradients of its merged weights; base and adapters are fp32."""
    trained_recipe = dataclasses.replace(case.recipe, compute_precision="fp32")
    model = dense_model(dataclasses.replace(trained_recipe, adapter="none", lora_targets="all-linear", lora_alpha=32.0))
    base = {name: parameter.detach() for name, parameter in model.named_parameters()}
    if case.recipe.compute_precision == "bf16":
        base = {name: weight.bfloat16().float() for name, weight in base.items()}
    for path in trained_recipe.quantised_layers:
        for name in [name for name in base if name.endswith(f".{path}.weight")]:
            base[name] = _by_torchao(base[name], case.recipe.compute_precision)
    adapter = dict(_drawn(model, trained_recipe))
    optimizer = make_optimizer(_Holder(adapter), trained_recipe)

    def logits_of(tokens: torch.Tensor) -> torch.Tensor:
        changed = dict(base)
        for name, down in adapter.items():
            if name.endswith("lora_A.weight"):
                path = name.removesuffix(".lora_A.weight")
                product = 6.0 / 4 * adapter[f"{path}.lora_B.weight"] @ down
                transposed = isinstance(model.get_submodule(path), Conv1D)
                changed[f"{path}.weight"] = base[f"{path}.weight"] + (product.T if transposed else product)
        return functional_call(model, changed, (ids_of(tokens),)).logits

    trained = in_one_process(trained_recipe, adapter, logits_of, optimizer)
    return dataclasses.replace(trained, weights={**base, **trained.weights}, stepped={**base, **trained.stepped})


def _by_torchao(weight: torch.Tensor, precision: str) -> torch.Tensor:
    """Returns the values of a weight in torchao's NF4, except that the mean of the scales is fp32, whose last bit
    depends on the order of a sum.
    """
    from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import to_nf4

    weight = weight.bfloat16() if precision == "bf16" else weight
    with mock.patch.object(torch.Tensor, "mean", lambda scales: scales.double().sum().div(len(scales)).to(scales)):
        in_nf4: Any = to_nf4(weight, 64, scales_of_factor(weight.numel()))
    return in_nf4.get_original_weight().float()


def _drawn(model: Any, trained_recipe: Recipe) -> Generator[tuple[str, torch.nn.Parameter]]:
    rank = trained_recipe.adapter_rank
    for path, (outputs, inputs) in trained_recipe.adapted_layers.items():
        for place in range(trained_recipe.model.num_layers):
            blocks = next(name for name, _ in model.named_modules() if name.endswith((".layers", ".h")))
            for name, shape in (("lora_A", (rank, inputs)), ("lora_B", (outputs, rank))):
                name = f"{blocks}.{place}.{path}.{name}.weight"
                value = draw(
                    name, torch.Size(shape), seed=trained_recipe.seed, std=DEVIATION, device=torch.device("cpu")
                )
                yield name, torch.nn.Parameter(value)


class _Holder(torch.nn.Module):
    """Has the adapters as its parameters, for `make_optimizer`."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        super().__init__()
        for name, parameter in parameters.items():
            self.register_parameter(name.replace(".", "/"), parameter)


def differences(trained: Trained, expected: Trained, *, tolerance: float) -> list[str]:
    """Returns a sentence for each difference of a run from `expected`; frozen weights must be equal."""
    wrong: list[str] = []
    if trained.gradients.keys() != expected.gradients.keys():
        wrong.append(f"other parameters train: {sorted(trained.gradients.keys() ^ expected.gradients.keys())[:4]}")
    for name, gradient in expected.gradients.items():
        other = trained.gradients.get(name, torch.zeros(()))
        if other.shape != gradient.shape or not (other - gradient).norm() <= tolerance * gradient.norm():
            error = (other - gradient).norm() / gradient.norm() if other.shape == gradient.shape else torch.nan
            wrong.append(f"the gradient of {name} differs by {float(error):.1e}")
    for name, weight in trained.stepped.items():
        if name not in expected.gradients and not torch.equal(weight, trained.weights[name]):
            wrong.append(f"{name} is frozen and moved")
    for kind in ("losses", "grad_norms"):
        pairs = zip(getattr(trained, kind), getattr(expected, kind), strict=True)
        wrong += [f"{kind} {a} and {b}" for a, b in pairs if not abs(a - b) <= 10 * tolerance * abs(b)]
    error = (trained.logits.float() - expected.logits).abs().max() / expected.logits.abs().max()
    if not error <= 10 * tolerance:
        wrong.append(f"logits differ by {float(error):.1e}")
    return wrong
