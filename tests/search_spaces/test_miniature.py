"""Miniatures: of models of odd proportions, and of spaces that a file makes of built-in ones."""

from pathlib import Path

import search_spaces
from search_spaces.miniature import small_model
from search_spaces.space import Space
from trainers.spec.model import ModelSpec

_FILE = """
import dataclasses
from search_spaces.gpt2 import gpt2
def space():
    base = gpt2()
    axes = {**base.axes, **%s}
    return dataclasses.replace(base, name="mine", axes=axes, %s)
"""


def _miniature(folder: Path, axes: str, fields: str) -> Space:
    path = folder / "mine.py"
    path.write_text(_FILE % (axes, fields))
    miniature = search_spaces.load(str(path)).miniature
    assert miniature is not None
    return miniature


def test_a_file_s_engines_stages_and_micro_batches_are_those_of_its_miniature(tmp_path: Path) -> None:
    axes = "{'engine': ('fsdp', 'ddp'), 'zero_stage': (2, 0), 'checkpointing': ('full',)}"
    miniature = _miniature(tmp_path, axes, "micro_batches=(4, 8, 16), doubling=False")
    assert miniature.name == "mine-miniature" and miniature.micro_batches == (4, 8)
    kinds = {(candidate.layout.engine, candidate.layout.zero_stage) for candidate in miniature.candidates(2)[0]}
    assert kinds == {("fsdp", 2), ("ddp", 0)}
    assert miniature.axes["checkpointing"] == ("full",)
    assert _miniature(tmp_path, "{}", "micro_batches=(2,)").micro_batches == (2, 4, 8)


def test_a_miniature_of_the_file_s_own_stays(tmp_path: Path) -> None:
    fields = "miniature=dataclasses.replace(base.miniature, is_stand_in=False, micro_batches=(2,))"
    miniature = _miniature(tmp_path, "{'engine': ('fsdp',)}", fields)
    assert miniature.micro_batches == (2,) and len(miniature.candidates(2)[0]) == 3


def test_a_miniature_of_wide_feed_forward_blocks_has_room_for_its_states() -> None:
    """Checks the defaults that transformers gives `Qwen2Config(hidden_size=512)`."""
    wide = ModelSpec(
        name="my-model", architecture="qwen2", num_layers=32, hidden_size=512, num_heads=32, vocab_size=151_936,
        ffn_size=22_016,
    )  # fmt: skip
    states_gib = 16 * small_model(wide).num_parameters / 2**30
    assert states_gib < 0.24 / 2, "under the cap, with activations beside them"
