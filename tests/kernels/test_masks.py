"""Attention masks that depend on the data, by parts: flags, spans, block masks, losses without some labels, costs."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_mask, flex_attention

from platform.cost_model.features import TrainingWork, from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.memory import peak_memory
from trainers import data
from trainers.data.flags import FLAG
from trainers.data.mask_density import keys_per_query, mask_density
from trainers.kernels import compiled, head, spans
from trainers.mesh.context_parallel import order_of
from trainers.spec.batch import BatchPoint
from trainers.spec.engines import rules_of
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe
from trainers.spec.support import standing_refusal

SIZES: dict[str, Any] = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "vocab_size": 104}
LLAMA = ModelSpec(name="llama", architecture="llama", **SIZES)
MISTRAL = ModelSpec(name="mistral", architecture="mistral", window=7, window_layers=2, **SIZES)
DOCUMENT = Recipe(model=LLAMA, seq_len=24, global_batch=8, attention_mask="document")
PREFIX = dataclasses.replace(DOCUMENT, attention_mask="prefix")


def _flags(recipe: Recipe, count: int = 8) -> np.ndarray[Any, Any]:
    source = data.source(recipe)
    return source.tokens(source.position_after(0), range(count)) >= FLAG


class TestFlags:
    def test_documents_of_a_file_begin_with_a_flag_and_ids_stay(self, tmp_path: Path) -> None:
        documents = [[1, 2, 3], [4, 5], [6], [7, 8, 9, 10, 11]]
        pq.write_table(pa.table({"tokens": documents}), tmp_path / "tokens.parquet")
        recipe = dataclasses.replace(DOCUMENT, data=str(tmp_path), seq_len=10, global_batch=1)
        tokens = data.source(recipe).sequences(0, [0])[0]
        assert (tokens % FLAG).tolist() == list(range(1, 12))
        assert (tokens >= FLAG).nonzero()[0].tolist() == [3, 5, 6]

    @pytest.mark.parametrize("recipe", [DOCUMENT, PREFIX])
    def test_a_sample_has_its_flags_wherever_it_is_taken_from(self, recipe: Recipe) -> None:
        model = dataclasses.replace(recipe.model, vocab_size=256)
        source = data.source(dataclasses.replace(recipe, data="included", model=model))
        step = source.sequences(3, range(8))
        assert np.array_equal(step[5], source.tokens(source.position_after(24), [5])[0])
        assert np.array_equal(step[5], source.tokens(source.position_after(29), [0])[0])
        assert np.array_equal(step[5], source.of_batch(4).sequences(7, [1])[0])

    def test_samples_and_seeds_draw_other_prefixes_of_every_length(self) -> None:
        lengths = _flags(PREFIX, 2000).sum(axis=1)
        assert set(lengths) == set(range(1, 25)) and abs(lengths.mean() - 12.5) < 0.5
        assert not np.array_equal(lengths, _flags(dataclasses.replace(PREFIX, seed=1), 2000).sum(axis=1))

    def test_documents_of_the_stream_have_the_mean_length_that_the_recipe_states(self) -> None:
        for recipe, mean in ((DOCUMENT, 6), (dataclasses.replace(DOCUMENT, document_tokens=3), 3)):
            flags = _flags(recipe, 2000)
            assert not flags[:, 0].any() and flags[:, 1:].mean() == pytest.approx(1 / mean, rel=0.05)

    def test_the_length_of_documents_is_refused_under_another_mask(self) -> None:
        with pytest.raises(ValueError, match="document_tokens is the length of documents under a document mask, got 9"):
            dataclasses.replace(PREFIX, document_tokens=9)


def _tokens(recipe: Recipe, length: int) -> torch.Tensor:
    recipe = dataclasses.replace(recipe, seq_len=length, global_batch=2)
    return torch.from_numpy(data.source(recipe).sequences(0, range(2)))[:, :-1]


def _by_hand(tokens: torch.Tensor, mask: str, window: int | None) -> torch.Tensor:
    """Returns whether queries see keys, from the numbers of documents or the prefix: [batch, queries, keys]."""
    flags, places = tokens >= FLAG, torch.arange(tokens.shape[1])
    document, distance = flags.cumsum(1), places[:, None] - places[None]
    past = (distance >= 0) & (distance < (window or len(places)))
    if mask == "document":
        return past & (document[:, :, None] == document[:, None])
    return past | (flags[:, :, None] & flags[:, None])


@pytest.mark.parametrize(("recipe", "window"), [(DOCUMENT, None), (DOCUMENT, 40), (PREFIX, None)])
@pytest.mark.parametrize("ranks", [1, 2])
def test_flex_attention_visits_the_blocks_that_are_seen_and_gives_what_sdpa_gives(
    recipe: Recipe, window: int | None, ranks: int
) -> None:
    length = 300 if ranks == 1 else 520  # no multiple of a block
    tokens = _tokens(recipe, length)
    places = None if ranks == 1 else order_of(0, ranks, length)
    keys = torch.arange(length) if ranks == 1 else torch.cat([order_of(rank, ranks, length) for rank in range(ranks)])
    query_spans = spans.spans_of(tokens, recipe.attention_mask, places).within(window)
    visible = _by_hand(tokens, recipe.attention_mask, window)[:, :, keys]
    visible = visible if places is None else visible[:, places]
    assert torch.equal(query_spans.sees(keys)[:, 0], visible)

    blocks = spans.block_mask(query_spans, keys)
    rows, columns = visible.shape[1:]
    padded = F.pad(visible, (0, -columns % 128, 0, -rows % 128)).unflatten(1, (-1, 128)).unflatten(3, (-1, 128))
    assert bool((blocks.to_dense()[:, 0].bool() >= padded.any(4).any(2)).all()), "every block that is seen is visited"
    assert torch.equal(create_mask(blocks.mask_mod, 2, 1, rows, columns, device="cpu")[:, 0], visible)
    query, key, value = (torch.randn(2, 2, size, 16) for size in (rows, columns, columns))
    with torch.no_grad():
        out = flex_attention(query, key, value, block_mask=blocks)
        assert isinstance(out, torch.Tensor)
        expected = F.scaled_dot_product_attention(query, key, value, query_spans.sees(keys))
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)


def test_micro_batches_of_other_documents_share_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    flex, before = compiled.static(flex_attention), compiled.num_compilations()
    for border in (37, 74, 111):
        tokens, keys = torch.zeros(1, 300, dtype=torch.int64), torch.arange(300)
        tokens[:, border] = FLAG
        query_spans = spans.spans_of(tokens, "document", None)
        query = torch.randn(1, 2, 300, 16)
        with torch.no_grad():
            out = flex(query, query, query, None, spans.block_mask(query_spans, keys))
        expected = F.scaled_dot_product_attention(query, query, query, query_spans.sees(keys))
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)
    assert compiled.num_compilations() == before + 1


def test_blocks_of_other_documents_are_not_visited() -> None:
    tokens = torch.zeros(1, 1024, dtype=torch.int64)
    tokens[0, 256::256] = FLAG
    blocks = spans.block_mask(spans.spans_of(tokens, "document", None), torch.arange(1024))
    assert blocks.to_dense().sum().item() == 4 * 3, "two blocks a document: a triangle of three each"
    assert blocks.full_kv_num_blocks is not None and blocks.full_kv_num_blocks.sum().item() == 4


def test_labels_left_out_have_no_loss_and_no_gradient_in_any_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "CHUNK_LOGITS", 104 * 7)
    hidden, weight = torch.randn(2, 12, 32), torch.randn(104, 32)
    labels = torch.randint(104, (2, 12))
    labels[0, :5] = labels[1, 11] = head.IGNORED
    num_labels = torch.tensor(9.0)

    def run(loss: Any) -> tuple[torch.Tensor, ...]:
        inputs = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        value = loss(*inputs)
        return (value, *torch.autograd.grad(value, inputs))

    def chosen(rows: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        has_label = labels != head.IGNORED
        return F.cross_entropy(rows[has_label] @ table.t(), labels[has_label], reduction="sum") / 9

    def chunked(rows: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        layer: Any = torch.nn.Linear(32, 104, bias=False)
        head.use_loss_head(layer, "chunked", compiled=False)
        del layer.weight
        layer.weight = table
        with layer.with_labels(labels, num_labels):
            return layer(rows)

    def plain(rows: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return head.causal_lm_loss(rows @ table.t(), labels, num_labels)

    expected = run(chosen)
    for loss_of in (plain, chunked):
        for actual, expected_value in zip(run(loss_of), expected, strict=True):
            torch.testing.assert_close(actual, expected_value, atol=1e-5, rtol=1e-4)
    losses = [part(hidden[1] @ weight.t(), labels[1].clamp(min=0)) for part in (head._part, head._fused_part)]  # pyright: ignore[reportPrivateUsage]
    torch.testing.assert_close(losses[0], losses[1], atol=1e-5, rtol=1e-4)


class TestCosts:
    def _recipe(self, folder: Path, lengths: list[int], **changes: Any) -> Recipe:
        pq.write_table(pa.table({"tokens": [[1] * length for length in lengths]}), folder / "tokens.parquet")
        recipe = dataclasses.replace(DOCUMENT, data=str(folder), seq_len=1024, global_batch=1)
        return dataclasses.replace(recipe, **changes)

    def test_keys_are_those_of_the_datas_documents(self, tmp_path: Path) -> None:
        keys = mask_density(self._recipe(tmp_path, [256] * 16 + [1]))
        assert keys is not None and keys.num_keys == pytest.approx(128)
        assert (keys.visited, keys.visited_causally) == (128 * 1.5, 128 * 4.5)

    def test_a_long_document_costs_more_than_short_ones_of_as_many_tokens(self, tmp_path: Path) -> None:
        for name in ("even", "mixed"):
            (tmp_path / name).mkdir()
        even = self._recipe(tmp_path / "even", [128] * 32 + [1])
        mixed = self._recipe(tmp_path / "mixed", [768, 256] * 4 + [1])
        assert keys_per_query(even) == pytest.approx(64)
        assert keys_per_query(mixed) == pytest.approx(0.75 * 384 + 0.25 * 128)
        assert keys_per_query(dataclasses.replace(mixed, attention_mask="causal")) == 512

    def test_a_window_within_documents_counts(self) -> None:
        recipe = dataclasses.replace(DOCUMENT, model=MISTRAL, seq_len=1024, document_tokens=1024)
        assert 5 < keys_per_query(recipe) < 7

    def test_a_prefix_is_seen_by_all_of_it(self) -> None:
        recipe = dataclasses.replace(PREFIX, seq_len=1024)
        assert keys_per_query(recipe) == pytest.approx(1024 * 2 / 3, rel=0.05)

    def test_flex_skips_other_documents_and_sdpa_holds_a_mask(self) -> None:
        causal = Recipe(model=dataclasses.replace(LLAMA, num_layers=1), seq_len=2048, global_batch=8)
        document = dataclasses.replace(causal, attention_mask="document", document_tokens=128)
        work = TrainingWork.of(document)
        assert work.mask_density is not None
        layouts = [Layout(engine="ddp", attention=attention) for attention in ("flex", "sdpa")]
        points = [
            (recipe, layout, BatchPoint.of(recipe, layout, 2)) for recipe in (causal, document) for layout in layouts
        ]
        columns = from_points(points, find_cluster("1xH100"))
        flex, sdpa, flex_documents, sdpa_documents = columns.flash.tolist()
        assert flex_documents > 3 * flex and sdpa_documents < sdpa
        assert columns.mask_bytes.tolist() == [0, 0, 0, 2048**2]
        flex_gib, sdpa_gib, *documents_gib = peak_memory(columns).allocated_gib.tolist()
        assert documents_gib == [flex_gib, pytest.approx(sdpa_gib + 2 * 2048**2 / 2**30, rel=0.01)]


@pytest.mark.parametrize(
    ("recipe", "layout", "sentence"),
    [
        (dataclasses.replace(PREFIX, model=MISTRAL), {}, "does not say which later tokens of a prefix a token sees"),
        (DOCUMENT, {"compile": "model", "attention": "sdpa"}, "makes no attention mask of document kind"),
        (DOCUMENT, {"engine": "tests.contract.own_engine:ENGINE"}, "supports only a causal attention mask"),
    ],
)
def test_what_a_mask_cannot_run_with_is_refused(recipe: Recipe, layout: dict[str, Any], sentence: str) -> None:
    chosen: dict[str, Any] = {"engine": "ddp", **layout}
    assert sentence in (standing_refusal(recipe, Layout(**chosen), 1) or "")
    assert standing_refusal(dataclasses.replace(DOCUMENT, model=MISTRAL), Layout(engine="ddp"), 1) is None


def test_rotary_positions_that_follow_the_length_are_refused_under_a_document_mask() -> None:
    config = {**LLAMA.to_config(), "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}
    recipe = dataclasses.replace(DOCUMENT, model=ModelSpec.from_config(config, name="stretched"))
    assert "rotary positions of kind dynamic" in (standing_refusal(recipe, Layout(engine="ddp"), 1) or "")
    assert standing_refusal(dataclasses.replace(recipe, attention_mask="prefix"), Layout(engine="ddp"), 1) is None


def test_every_engine_of_this_project_has_masks() -> None:
    assert all(rules_of(name).has_attention_masks for name in ("ddp", "fsdp", "deepspeed"))
