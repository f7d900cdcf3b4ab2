"""A transformers folder straight into FSDP2's shards: the model is the folder's, and a rank reads its rows alone."""

# pyright: reportPrivateUsage=false

import dataclasses
import resource
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import transformers
from transformers import AutoModelForCausalLM

from platform.train.initial_model import recipe_of
from scripts.tiny_chat import save_tokenizer
from tests.contract.group import run_group
from trainers.engines.create import create_engine
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.training import initial_weights
from trainers.training.export import write_tokenizer

pytestmark = pytest.mark.contract

FSDP = Layout(engine="fsdp", zero_stage=3, dp_shard=2, attention="eager")
_SIZES: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
_SHORT: dict[str, Any] = {**_SIZES, "num_hidden_layers": 2, "head_dim": 64}
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 16}  # fmt: skip
CONFIGS = {
    "llama": transformers.LlamaConfig(**_SIZES, rope_parameters=_LLAMA3),
    "tied": transformers.Qwen3Config(**_SIZES, head_dim=64, tie_word_embeddings=True),
    "experts": transformers.Qwen3MoeConfig(
        **_SHORT,
        moe_intermediate_size=64,
        num_experts=8,
        num_experts_per_tok=2,
    ),
}
_TOKENS = torch.arange(32)[None] % 100


def _begun(folders: list[tuple[Recipe, str]]) -> list[dict[str, Any]]:
    return [_begin(recipe, Path(folder)) for recipe, folder in folders]


def _begin(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Returns the logits of a model that begins with the folder, and what each rank read and how its memory grew."""
    engine: Any = create_engine(recipe, FSDP, torch.device("cpu"))
    engine.training_state()  # the optimizer's states are there before the folder is read
    read, original = [0], initial_weights.WeightFiles._slice

    def counted(self: Any, stored: str, box: tuple[slice, ...]) -> torch.Tensor:
        tensor = original(self, stored, box)
        read[0] += tensor.numel() * tensor.element_size()
        return tensor

    before = _peak_bytes()
    with mock.patch.object(initial_weights.WeightFiles, "_slice", counted):
        initial_weights.load(engine, folder)
    grown = _peak_bytes() - before
    logits = engine.logits(_TOKENS).clone()
    engine.close()
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, (read[0], grown))
    return {"logits": logits, "ranks": ranks}


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in CONFIGS}
    for name, config in CONFIGS.items():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folders[name], max_shard_size="4MB")
    return folders


@pytest.fixture(scope="module")
def results(folders: dict[str, Path]) -> dict[str, dict[str, Any]]:
    recipes = [
        dataclasses.replace(recipe_of(str(folder)).as_trained, compute_precision="fp32", seq_len=32, global_batch=2)
        for folder in folders.values()
    ]
    begun = run_group(_begun, list(zip(recipes, map(str, folders.values()), strict=True)), 2)
    return dict(zip(folders, begun, strict=True))


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_from_pretrained_bit_for_bit(
    name: str, folders: dict[str, Path], results: dict[str, dict[str, Any]]
) -> None:
    model = AutoModelForCausalLM.from_pretrained(folders[name], attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(results[name]["logits"], model(input_ids=_TOKENS).logits)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_rank_reads_its_rows_alone_and_holds_no_copy(
    name: str, folders: dict[str, Path], results: dict[str, dict[str, Any]]
) -> None:
    files = list(folders[name].glob("*.safetensors"))
    assert len(files) > 1, "an index says where tensors lie"
    model_bytes = sum(path.stat().st_size for path in files)
    read = [read_bytes for read_bytes, _ in results[name]["ranks"]]
    assert 0.98 * model_bytes < sum(read) <= model_bytes and max(read) < 0.51 * model_bytes
    # A tensor at a time is mapped and copied: the table has 2 MiB, and an allocator rounds up.
    assert max(grown for _, grown in results[name]["ranks"]) < 6 * 2**20


def test_an_export_has_the_tokenizer_and_template_that_the_training_began_with(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path / "begun")
    (folder / "generation_config.json").write_text('{"eos_token_id": 1}')
    recipe = recipe_of(str(_config_alone(tmp_path / "config")))
    (tmp_path / "out").mkdir()
    assert not write_tokenizer(recipe, tmp_path / "out")
    (folder / "vocab.txt").symlink_to(tmp_path / "begun" / ".." / "key")
    (tmp_path / "key").write_text("private")
    with pytest.raises(ValueError, match=r"vocab\.txt is a link to .*key, outside of its folder"):
        write_tokenizer(recipe, tmp_path / "out", initial_weights=str(folder))
    (folder / "vocab.txt").unlink()
    assert write_tokenizer(recipe, tmp_path / "out", initial_weights=str(folder))
    exported, begun = (transformers.AutoTokenizer.from_pretrained(path) for path in (tmp_path / "out", folder))
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "there"}]
    assert exported.apply_chat_template(chat)["input_ids"] == begun.apply_chat_template(chat)["input_ids"]
    assert (tmp_path / "out" / "generation_config.json").is_file()


def _config_alone(folder: Path) -> Path:
    CONFIGS["llama"].save_pretrained(folder)
    return folder
