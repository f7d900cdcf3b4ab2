"""A user's input is accepted, or refused by one sentence: texts, files and spaces made by hypothesis.

Only `ValueError` (an `InputError` is one) may come out of the parsing layer; anything else would be a traceback.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import search_spaces
from platform.cluster.probing import probe_store
from platform.cost_model.hardware import find_cluster
from platform.plan.__main__ import PARSER as PLAN
from platform.plan.sizes import parse_counts, parse_phases
from platform.search.__main__ import parse
from platform.search.setup.request import read_request
from platform.study.folder import located
from platform.study.layout_file import read_layout
from search_spaces.changes import axes
from search_spaces.space import Point, Space
from search_spaces.transformers_config import space_of_config
from trainers.host.node import error_of
from trainers.spec.codec import to_json
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

few = settings(
    max_examples=60,
    database=None,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

MODEL = ModelSpec(
    name="tiny", architecture="gpt2", num_layers=1, hidden_size=32, num_heads=2, vocab_size=64, max_positions=64
)
RECIPE = Recipe(model=MODEL, seq_len=16, global_batch=4)
LAYOUT = Layout(engine="ddp", dp_replicate=2)
CONFIG = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256, "n_positions": 64}

odd_numbers = st.sampled_from([0, -1, 1, 3, 10**19, 10**400, 1.5, float("nan"), float("inf"), -0.0, True])
odd_texts = st.sampled_from(["", " ", "~nouser/x", "x" * 5000, "\0", "\ud800", "a\nb", "²", "1_0", "٣", "None"])
texts = st.one_of(odd_texts, st.text(max_size=20))
leaves = st.one_of(st.none(), odd_numbers, texts)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
"""Values that JSON, or a space file, may hold."""


@contextlib.contextmanager
def refusing() -> Generator[None]:
    """Accepts a refusal of one sentence; any other error fails the test."""
    with contextlib.suppress(ValueError):
        try:
            yield
        except ValueError as error:
            assert str(error).strip(), "a refusal says why"
            raise


def changed(original: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Returns `original` with a few values, at any depth, replaced or left out."""
    paths = list(_paths(original))

    def change(replacements: list[tuple[tuple[str, ...], Any]]) -> dict[str, Any]:
        changed_copy = json.loads(json.dumps(original))
        for path, value in replacements:
            inner: Any = changed_copy
            for step in path[:-1]:
                inner = inner.get(step) if isinstance(inner, dict) else None
            if isinstance(inner, dict):
                inner[path[-1]] = value
        return changed_copy

    return st.lists(st.tuples(st.sampled_from(paths), values), min_size=1, max_size=3).map(change)


def _paths(value: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, inner in value.items():
        yield (*before, key)
        if isinstance(inner, dict):
            yield from _paths(inner, (*before, key))


def written(path: Path, data: Any) -> Path:
    """Returns the file with `data` as JSON; numbers beyond JSON are written as Python writes them."""
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@few
@given(st.lists(st.tuples(st.sampled_from([*axes(), "x"]), st.lists(texts | odd_numbers.map(str), max_size=3))))
@example([("learning_rate", ["1" + "0" * 400])])
@example([("micro_batch", ["1" + "0" * 19])])
@example([("tp", ["9" * 5000])])
def test_changes_of_axes(changes: list[tuple[str, list[str]]]) -> None:
    with refusing():
        space = search_spaces.load("gpt2").with_changes([f"{axis}={','.join(listed)}" for axis, listed in changes])
        space.candidates(4)


@few
@given(texts | st.text(alphabet="~/.ab\0", max_size=12))
def test_names_and_paths(text: str) -> None:
    with refusing():
        search_spaces.load(text)
    with refusing():
        located(Path("studies"), text)
    with refusing():
        search_spaces.load(f"{text}/config.json")
    with refusing():
        read_layout(located(Path("studies"), f"./{text}")[0])


@few
@given(changed({**CONFIG, "n_inner": 128, "initializer_range": 0.02, "tie_word_embeddings": True}))
@example({**CONFIG, "n_layer": 10**19})
@example({**CONFIG, "initializer_range": "wide"})
def test_configurations(tmp_path: Path, config: dict[str, Any]) -> None:
    with refusing():
        space_of_config(written(tmp_path / "config.json", config)).candidates(2)


ROTARY = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 256,
    "max_position_embeddings": 64,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
    "use_sliding_window": True,
    "sliding_window": 8,
    "max_window_layers": 1,
    "seq_length": 32,
}
PARTLY_GLOBAL = {**ROTARY, "model_type": "gemma3_text", "sliding_window_pattern": 2, "final_logit_softcapping": 3.0}
WITH_IMAGES = {"model_type": "mistral3", "text_config": {**ROTARY, "model_type": "mistral"}}


@few
@given(st.sampled_from([ROTARY, PARTLY_GLOBAL, WITH_IMAGES]).flatmap(changed))
@example({**ROTARY, "num_hidden_layers": 10**25})
@example({**PARTLY_GLOBAL, "sliding_window_pattern": "local"})
@example({**ROTARY, "layer_types": [["full_attention"], {}]})
@example({**ROTARY, "rope_scaling": {"type": "yarn", "factor": 1e999}})
@example({**WITH_IMAGES, "model_type": ["mistral3"]})
@example({**ROTARY, "sliding_window": 10**25})
def test_configurations_of_rotary_models(tmp_path: Path, config: dict[str, Any]) -> None:
    with refusing():
        space = space_of_config(written(tmp_path / "config.json", config))
        assert all("\n" not in sentence for sentence in space.sentences)
        space.candidates(2)


LAYOUT_FILE = {"layout": to_json(LAYOUT), "recipe": to_json(RECIPE), "batch": {"micro_batch": 1, "grad_accum": 2}}


@few
@given(changed(LAYOUT_FILE))
@example({**LAYOUT_FILE, "recipe": {**LAYOUT_FILE["recipe"], "data": 5}})
@example({**LAYOUT_FILE, "batch": {"micro_batch": 10**19, "grad_accum": 1}})
def test_layout_files(tmp_path: Path, data: dict[str, Any]) -> None:
    path = written(tmp_path / "layout.json", data)
    with refusing():
        read_layout(path)
    with refusing():
        read_request(parse(["--layout", str(path), "--studies", str(tmp_path)]))


@pytest.mark.parametrize("read", [read_layout, space_of_config, probe_store.read])
def test_deeply_nested_json_is_refused(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"nested|recursion"):
        read(path)
    path.write_text('{"a":' + "9" * 5000 + "}")
    with pytest.raises(ValueError, match="digits"):
        read(path)


@few
@given(
    st.dictionaries(
        st.sampled_from(["axes", "micro_batches", "points", "further_recipes", "recipe", "tokens", "num_workers"]),
        values | st.tuples(values) | st.dictionaries(st.sampled_from([*axes(), "x"]), values | st.tuples(values)),
    )
)
@example({"axes": {"engine": "fsdp"}})
@example({"axes": {"zero_stage": (0,)}})
@example({"axes": {"engine": ("megatron",)}})
@example({"axes": {"engine": ("ddp",), "zero_stage": ("0",)}})
@example({"axes": {"engine": ("ddp",), "tp": 1}})
@example({"micro_batches": 1})
@example({"points": (Point(name="a", micro_batch=1, layout={"engin": "ddp"}),)})
@example({"recipe": dataclasses.replace(RECIPE, data=5)})  # type: ignore[arg-type]
def test_spaces(fields: dict[str, Any]) -> None:
    defaults: dict[str, Any] = {"recipe": RECIPE, "axes": {"engine": ("ddp",)}, "micro_batches": (1, 2)}
    with refusing():
        space = Space(name="mine", summary="by hand", **{**defaults, **fields})
        space.candidates(2)
        space.with_changes(["seq_len=8"])


@few
@given(texts | st.from_regex(r"\A\d{0,25}[x,.:]{0,2}\d{0,25}[x:]?(H100|A100-80GB)?\Z"))
@example("9" * 5000 + "xH100")
@example("1..9" + "9" * 30)
def test_clusters_counts_and_phases(text: str) -> None:
    for read in (find_cluster, parse_counts, parse_phases):
        with refusing():
            read(text)


@few
@given(st.lists(st.sampled_from(["top", "tokens", "micro_batch", "device_memory_gib"]), unique=True), odd_numbers)
def test_bounds_of_a_plan(names: list[str], number: Any) -> None:
    options = dataclasses.replace(PLAN.read(["gpt2", "--max-model"]), **dict.fromkeys(names, number))
    with refusing():
        options.check(search_spaces.load("gpt2"))


@few
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["--seed", "--repeats", "--steps", "--max-trials", "--time-budget-s", "--gpus", "--tokens",
                             "--data", "--learn-from", "--studies", "--layout", "--name",
                             "--resume", "--price-per-gpu-h"]),
            texts | odd_numbers.map(str),
        ),
        max_size=3,
    )
)  # fmt: skip
def test_options_of_a_search(tmp_path: Path, options: list[tuple[str, str]]) -> None:
    argv = [f"{option}={text}" for option, text in options]
    with refusing():
        read_request(parse(["gpt2", "--studies", str(tmp_path), *argv]))


@pytest.mark.parametrize("text", ["import sys\nsys.exit(3)", "raise KeyboardInterrupt", "raise BaseException('no')",
                                  "def space():\n    raise GeneratorExit"])  # fmt: skip
def test_a_space_file_may_raise_whatever_it_likes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"cannot load a space from .*mine\.py: \w+"):
        search_spaces.load(str(path))


@pytest.mark.parametrize("host", ["x" * 300, "a\0b", "..", "\ud800"])
def test_a_host_of_any_name_has_an_answer(host: str) -> None:
    assert isinstance(error_of(host, 6379, timeout_s=0.1), OSError)


@pytest.mark.parametrize("size", ["64", 2.0, None, True])
def test_a_size_of_a_model_that_is_no_whole_number_is_named(size: Any) -> None:
    with pytest.raises(ValueError, match=r"hidden_size of tiny must be a whole number, got "):
        dataclasses.replace(MODEL, hidden_size=size)
