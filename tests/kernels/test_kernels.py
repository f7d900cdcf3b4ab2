"""The kernels alone, in one process: attention and loss give what the plain ones give, and graphs are reused."""

import dataclasses
import inspect
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from transformers import AttentionInterface, masking_utils
from transformers.models.bloom import modeling_bloom
from transformers.models.gpt_oss import modeling_gpt_oss

from trainers.distributed.groups import Mesh
from trainers.engines.model_preparation import kernels_in_effect, prepare
from trainers.kernels import attention, compiled, head
from trainers.kernels.compiled import num_compilations
from trainers.mesh.context_parallel import ContextParallel, order_of
from trainers.models import weights
from trainers.models.model import Model, build
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {"num_layers": 3, "hidden_size": 48, "vocab_size": 97, "init_std": 0.3}
SPECS = {
    "bloom": ModelSpec(name="bloom", architecture="bloom", num_heads=4, **SIZES),
    "bloom of 6 heads": ModelSpec(name="bloom6", architecture="bloom", num_heads=6, **SIZES),
    "gpt2": ModelSpec(name="gpt2", architecture="gpt2", num_heads=4, max_positions=32, **SIZES),
    "gpt_neox": ModelSpec(name="neox", architecture="gpt_neox", num_heads=4, max_positions=32, **SIZES),
    "llama": ModelSpec(name="llama", architecture="llama", num_heads=4, num_kv_heads=2, **SIZES),
}


def filled(spec: ModelSpec, **layout: Any) -> tuple[Model, Layout]:
    """Returns a model of `spec` with weights, prepared for a layout with these kernels, and that layout."""
    filled_layout = Layout(engine="ddp", **layout)
    model = build(spec, attention=filled_layout.attention)
    model = prepare(model, filled_layout)
    assert kernels_in_effect([model], filled_layout) == {
        "dropout": 0.0,
        "experts": "loop",
        "routing": "learned",
        "balance_loss": "none",
        **{name: getattr(filled_layout, name) for name in ("attention", "mlp", "loss", "compile", "checkpointing")},
    }
    weights.materialise(model.module, names=model.names, seed=1, std=spec.init_std, device=CPU)
    return model, filled_layout


def loss_and_gradients(spec: ModelSpec, tokens: torch.Tensor, **layout: Any) -> tuple[float, dict[str, torch.Tensor]]:
    model, _ = filled(spec, **layout)
    loss = head.loss_of(model.module, model.head, tokens)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.module.named_parameters()}
    plain = {name.replace("_checkpoint_wrapped_module.", ""): value for name, value in gradients.items()}
    return loss.item(), {name: value for name, value in plain.items() if value is not None}


@pytest.mark.parametrize("kernel", ["sdpa", "flex"])
@pytest.mark.parametrize("name", SPECS)
def test_attention_gives_what_eager_attention_gives(name: str, kernel: str) -> None:
    tokens = torch.randint(97, (2, 22), generator=torch.Generator().manual_seed(0))
    loss, gradients = loss_and_gradients(SPECS[name], tokens, attention="eager")
    fused_loss, fused = loss_and_gradients(SPECS[name], tokens, attention=kernel)
    assert fused_loss == pytest.approx(loss, rel=1e-6)
    assert fused.keys() == gradients.keys()
    for parameter_name, gradient in gradients.items():
        torch.testing.assert_close(fused[parameter_name], gradient, rtol=1e-3, atol=1e-5 * gradient.abs().max().item())


def test_the_seam_into_bloom_is_still_there() -> None:
    """Checks transformers' call of BLOOM's attention: a release that changes it must show here, not in a wrong loss."""
    parameters = inspect.signature(modeling_bloom.BloomAttention.forward).parameters
    assert list(parameters)[:3] == ["self", "hidden_states", "residual"] and "attention_mask" in parameters
    model, layout = filled(SPECS["bloom"], attention="sdpa")
    kinds = {type(module).__name__ for module in model.module.modules() if "Attention" in type(module).__name__}
    assert kinds == {"AlibiAttention"}
    for module in model.module.modules():
        if type(module).__name__ == "AlibiAttention":
            module.__class__ = modeling_bloom.BloomAttention
            break
    assert kernels_in_effect([model], layout)["attention"] == "AlibiAttention+BloomAttention"


@pytest.mark.parametrize("num_heads", [4, 6, 12, 32])
def test_slopes_are_those_of_transformers(num_heads: int) -> None:
    mask = torch.ones(1, 2, dtype=torch.int64)
    theirs = modeling_bloom.build_alibi_tensor(mask, num_heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(attention.alibi_slope(torch.arange(num_heads), num_heads), theirs)


def test_alibi_as_a_score_modification_is_the_additive_bias() -> None:
    """Checks the score modification of the GPU's kernel against the bias; FlexAttention's forward pass runs on CPUs."""
    query, key, value = torch.randn(3, 2, 6, 128, 16).unbind(0)
    module: Any = nn.Module()
    module.score_mod = attention.alibi_score(attention.Share(num_heads=6, heads=range(6)))
    mask = attention._block_mask(128, CPU, None)  # pyright: ignore[reportPrivateUsage]
    flex = flex_attention(query, key, value, score_mod=module.score_mod, block_mask=mask)
    config = type("Config", (), {"num_attention_heads": 6})
    bias = attention._alibi_bias(kv_length=128, dtype=torch.float32, device=CPU, config=config)  # pyright: ignore[reportPrivateUsage]
    ours, _ = attention.attend(module, query, key, value, bias)
    assert isinstance(flex, torch.Tensor)
    torch.testing.assert_close(flex.transpose(1, 2), ours, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [None, 5])
def test_sinks_by_the_sum_of_flex_attention_are_those_of_transformers(window: int | None) -> None:
    """Checks what a compiler is handed, fullgraph, against a softmax over scores and sinks; gradients need a GPU."""
    query, key, value = (torch.randn(2, heads, 128, 16) for heads in (6, 2, 2))
    module: Any = nn.Module()
    module.num_key_value_groups, module.sinks, module.training = 3, torch.randn(6), False
    blocks = attention._block_mask(128, CPU, None, window)  # pyright: ignore[reportPrivateUsage]
    visible = attention._seen_mask(128, window, CPU, None)  # pyright: ignore[reportPrivateUsage]
    added = torch.where(visible, 0.0, -torch.inf)
    library: Any = modeling_gpt_oss
    theirs, _ = library.eager_attention_forward(module, query, key, value, added, 0.3)
    compiled = torch.compile(
        lambda q, k, v: attention.attend(module, q, k, v, blocks, 0.3, s_aux=module.sinks)[0],
        backend="eager",
        fullgraph=True,
    )
    with torch.no_grad():
        torch.testing.assert_close(compiled(query, key, value), theirs, rtol=1e-4, atol=1e-5)
    ours, _ = attention.attend(module, query, key, value, visible, 0.3, s_aux=module.sinks)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "backend"), [("flex", "AUTO"), ("flash4", "FLASH")])
@pytest.mark.parametrize("position", ["alibi", "rotary"])
def test_flash4_is_flex_attention_with_its_own_backend(position: Any, kind: Any, backend: str) -> None:
    """Checks what a compiler is handed for both ways to the kernel, which itself runs on GPUs alone."""
    name = attention.transformers_name(position, kind)
    assert attention.layout_name(name) == kind and "flash" not in name  # transformers would look for its own
    options: list[Any] = []

    def capture(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        nodes = [node for node in graph.graph.nodes if "flex_attention" in str(node.target)]
        options.extend(arg["BACKEND"] for node in nodes for arg in node.args if isinstance(arg, dict))
        return graph.forward

    module: Any = nn.Module()
    query, key, value = torch.randn(3, 1, 2, 128, 16).unbind(0)
    mask = attention._block_mask(128, CPU, None)  # pyright: ignore[reportPrivateUsage]
    function: Any = AttentionInterface()[name]
    torch.compile(lambda *parts: function(module, *parts, mask)[0], backend=capture, fullgraph=True)(query, key, value)
    assert options == [backend]


_COMPILED = {("bloom", "block", "selective"), ("gpt2", "block", "full")}
"""Compiled blocks that run at every change; the compiler takes ten seconds for each."""


@pytest.mark.parametrize(
    ("name", "compile_", "checkpointing"),
    [
        pytest.param(*case, marks=pytest.mark.heavy if case[1] == "block" and case not in _COMPILED else ())
        for case in itertools.product(("bloom", "gpt2"), ("none", "block"), ("none", "selective", "full"))
    ],
)
def test_a_fused_feed_forward_block_gives_what_the_plain_one_gives(
    name: str, compile_: str, checkpointing: str
) -> None:
    """Checks all but the kernels of quack-kernels, in whose place torch's run on a CPU."""
    tokens = torch.randint(97, (2, 22), generator=torch.Generator().manual_seed(0))
    loss, gradients = loss_and_gradients(SPECS[name], tokens, attention="sdpa")
    options = {"compile": compile_, "checkpointing": checkpointing}
    fused_loss, fused = loss_and_gradients(SPECS[name], tokens, attention="sdpa", mlp="quack", **options)
    assert fused_loss == pytest.approx(loss, rel=1e-6)
    assert fused.keys() == gradients.keys()
    for parameter_name, gradient in gradients.items():
        assert fused[parameter_name].stride() == gradient.stride()  # else autograd copies it into place
        torch.testing.assert_close(fused[parameter_name], gradient, rtol=1e-3, atol=1e-5 * gradient.abs().max().item())


def test_a_fused_feed_forward_block_keeps_one_tensor_of_inner_width() -> None:
    """Checks what autograd saves of the feed-forward blocks between both passes."""
    tokens = torch.randint(97, (2, 23), generator=torch.Generator().manual_seed(0))
    saved: dict[str, list[torch.Size]] = {}
    for mlp in ("plain", "quack"):
        model, _ = filled(SPECS["gpt2"], attention="sdpa", mlp=mlp)
        shapes = saved[mlp] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, to=shapes: to.append(tensor.shape) or tensor, _same
        ):
            head.loss_of(model.module, model.head, tokens)
    inner = {mlp: sum(shape.numel() == 2 * 22 * 4 * 48 for shape in shapes) for mlp, shapes in saved.items()}
    assert inner["quack"] == 3 and inner["plain"] > 6  # of three blocks


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def test_blocks_of_both_kinds_are_told_apart() -> None:
    model, layout = filled(SPECS["bloom"], mlp="quack")
    block: Any = model.blocks[1]
    block.mlp.__class__ = modeling_bloom.BloomMLP
    assert kernels_in_effect([model], layout)["mlp"] == "quack in 2 of 3 blocks"


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("rows", [7, 1000])
@pytest.mark.parametrize("vocab", [96, 97])
def test_chunks_give_the_loss_and_gradients_of_all_logits(
    monkeypatch: pytest.MonkeyPatch, vocab: int, rows: int, dtype: torch.dtype, tolerance: float
) -> None:
    monkeypatch.setattr(head, "CHUNK_LOGITS", vocab * rows)
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(32, vocab, bias=False).to(dtype)
    hidden = torch.randn(2, 20, 32, generator=generator).to(dtype)
    labels = torch.randint(vocab, (2, 20), generator=generator)
    expected_hidden = hidden.float().requires_grad_()
    expected_weight = layer.weight.detach().float().requires_grad_()
    expected = head.causal_lm_loss(F.linear(expected_hidden, expected_weight), labels)
    (expected / 3).backward()
    head.use_loss_head(layer, "chunked", compiled=False)
    hidden.requires_grad_()
    assert isinstance(layer, head.LossHead)
    with layer.with_labels(labels):
        loss = layer(hidden)
    assert layer(hidden).shape == (2, 20, vocab)
    (loss / 3).backward()
    assert loss.item() == pytest.approx(expected.item(), rel=tolerance)
    for actual, expected_gradient in ((hidden.grad, expected_hidden.grad), (layer.weight.grad, expected_weight.grad)):
        assert actual is not None and expected_gradient is not None and actual.dtype == dtype
        error = (actual.float() - expected_gradient).abs().max() / expected_gradient.abs().max()
        assert error.item() <= tolerance


def test_a_compiled_chunk_is_the_plain_one() -> None:
    """Checks the function that a compiler gets, run without being compiled."""
    logits = torch.randn(5, 12)
    logits[:, 10:] = float("-inf")
    labels = torch.tensor([0, 3, 9, 9, 1])
    for plain, other in zip(head._part(logits, labels), head._fused_part(logits, labels), strict=True):  # pyright: ignore[reportPrivateUsage]
        torch.testing.assert_close(plain, other)


@pytest.mark.parametrize("checkpointing", ["selective", "every_4", "every_2", "full"])
def test_checkpointing_saves_less_and_changes_nothing(checkpointing: str) -> None:
    tokens = torch.randint(97, (2, 22), generator=torch.Generator().manual_seed(0))

    def run(kind: str) -> tuple[float, dict[str, torch.Tensor], int]:
        saved: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
            loss, gradients = loss_and_gradients(SPECS["gpt2"], tokens, attention="sdpa", checkpointing=kind)
        return loss, gradients, sum(saved)

    plain, checkpointed = run("none"), run(checkpointing)
    assert checkpointed[0] == pytest.approx(plain[0])
    for name, gradient in plain[1].items():
        torch.testing.assert_close(checkpointed[1][name], gradient)


@pytest.mark.slow
def test_a_budget_of_activations_is_kept_by_compiled_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks budgets with nothing compiled further: the partitioner is torch's own whatever the compiler behind it."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    tokens = torch.randint(97, (2, 22), generator=torch.Generator().manual_seed(0))

    def run(kind: str) -> tuple[float, dict[str, torch.Tensor], int]:
        held: dict[int, int] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            if not isinstance(tensor, nn.Parameter):
                held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            outputs = loss_and_gradients(SPECS["gpt2"], tokens, attention="sdpa", compile="block", checkpointing=kind)
        return *outputs, sum(held.values())

    plain, half, quarter = run("none"), run("budget_50"), run("budget_25")
    assert quarter[2] < half[2] < 0.8 * plain[2]
    assert run("none")[2] == plain[2]  # and no budget stays behind for the next engine
    for loss, gradients, _ in (half, quarter):
        assert loss == pytest.approx(plain[0])
        for name, gradient in plain[1].items():
            torch.testing.assert_close(gradients[name], gradient)


@pytest.mark.slow
def test_every_block_runs_the_first_one_s_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that three blocks take one compilation, and that another micro-batch takes one more.

    Dynamo's own limit of 8 graphs does not end this. It makes no difference which compiler takes the graphs; inductor
    runs in the contract of one rank.
    """
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    model, _ = filled(SPECS["gpt2"], compile="block", attention="sdpa", checkpointing="selective")
    before = num_compilations()
    new_compilations = []
    with torch.no_grad():
        for batch in (1, 2, 1, 2):
            model.module(torch.zeros(batch, 16, dtype=torch.int64))
            new_compilations.append(num_compilations() - before)
    assert new_compilations == [1, 2, 2, 2]


def test_a_model_of_another_head_is_told() -> None:
    with pytest.raises(ValueError, match="the chunked loss needs a linear head without a bias"):
        head.use_loss_head(nn.Linear(4, 4), "chunked", compiled=False)


def test_layouts_tell_which_blocks_are_checkpointed() -> None:
    layout = Layout(engine="ddp", checkpointing="every_2")
    assert "every second block checkpointed" in layout.label
    for word, every in (("none", 0), ("selective", 1), ("every_4", 4), ("full", 1), ("budget_50", 0)):
        assert dataclasses.replace(layout, checkpointing=word).checkpoint_every == every  # type: ignore[arg-type]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_share_of_attention_is_the_same_by_flex_as_by_a_bias(rank: int) -> None:
    """Checks some heads at some positions, as tensor and context parallelism give them to a rank."""
    orders = [order_of(cp_rank, 2, 512) for cp_rank in range(2)]
    share = attention.Share(num_heads=6, heads=range(3, 6), queries=orders[rank], keys=torch.cat(orders))
    query, (key, value) = torch.randn(2, 3, 256, 16), torch.randn(2, 2, 3, 512, 16).unbind(0)
    mask = attention._block_mask(256, CPU, share)  # pyright: ignore[reportPrivateUsage]
    flex = flex_attention(query, key, value, score_mod=attention.alibi_score(share), block_mask=mask)
    config = type("Config", (), {"num_attention_heads": 6, attention.SHARE: share})
    bias = attention._alibi_bias(kv_length=256, dtype=torch.float32, device=CPU, config=config)  # pyright: ignore[reportPrivateUsage]
    assert bias.shape == (1, 3, 256, 512)
    assert isinstance(flex, torch.Tensor)
    by_bias = nn.functional.scaled_dot_product_attention(query, key, value, bias)
    torch.testing.assert_close(flex, by_bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "llama", "llama with a window"])
def test_the_host_reads_nothing_back_for_a_mask(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that transformers does not look at the positions: the host would wait for a GPU in each forward pass."""
    window = ModelSpec(name="mistral", architecture="mistral", num_heads=4, window=8, window_layers=3, **SIZES)
    model, layout = filled(window if "window" in name else SPECS[name], attention="flex")
    mesh = Mesh(layout, "cpu")
    context = ContextParallel([model], mesh, range(4), seq_len=16, device=CPU)
    looked: list[torch.Tensor] = []
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", looked.append)
    tokens = torch.randint(97, (2, 17), generator=torch.Generator().manual_seed(0))
    head.loss_of(model.module, model.head, tokens, context.inputs)
    assert not looked


def test_sequences_of_another_length_than_the_parts_are_refused() -> None:
    share = attention.Share(num_heads=2, heads=range(2), tokens=torch.arange(8), keys=torch.arange(16))
    with pytest.raises(ValueError, match="parts of 8 tokens, got 9"):
        share.num_queries(9)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_parts_of_a_sequence_look_back_on_as_many_tokens(size: int) -> None:
    orders = [order_of(rank, size, 64) for rank in range(size)]
    assert torch.equal(torch.cat(orders).sort().values, torch.arange(64))
    assert len({int((order + 1).sum()) for order in orders}) == 1


@pytest.mark.parametrize(("count", "reduces"), [(8, False), (16, False), (64, True)])
def test_a_sum_of_few_rows_is_compiled_into_additions_of_whole_rows(count: int, reduces: bool) -> None:
    from torch._inductor.utils import run_and_get_code

    rows = torch.randn(32, count, 64, dtype=torch.bfloat16)
    compiled_sum = compiled.static(lambda rows: rows.sum(dim=1))
    sums, (code, *_) = run_and_get_code(compiled_sum, rows)
    assert ("tmp_acc" in code) == reduces
    torch.testing.assert_close(sums, rows.sum(dim=1), rtol=1e-2, atol=0.05)
