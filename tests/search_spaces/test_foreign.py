"""Files of other tools in the place of a model: each is told by its name, with what takes it."""

import json
from pathlib import Path

import pytest

import search_spaces


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.yaml", "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n", "accelerate's configuration"),
        ("ds.json", json.dumps({"zero_optimization": {"stage": 2}}), "DeepSpeed's configuration"),
        ("cluster.yml", "# nodes\ncluster_name: a\nprovider:\n    type: aws\n", "Ray's cluster file"),
        ("sft.yml", "base_model: Qwen/Qwen3-8B\ndatasets:\n  - path: a\n", "an Axolotl configuration"),
        ("other.yaml", "a: 1\n", "is YAML and no model"),
    ],
)
def test_a_file_of_another_tool_is_told_by_its_name(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=sentence) as caught:
        search_spaces.load(str(path))
    assert str(path) in str(caught.value) and "a model is given by its config.json" in str(caught.value)


def test_a_model_with_such_a_key_is_a_model(tmp_path: Path) -> None:
    config = {**search_spaces.load("gpt2").recipe.model.to_config(), "zero_optimization": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert search_spaces.load(str(tmp_path)).recipe.model.num_layers == 12


def test_the_cluster_file_of_this_project_is_one() -> None:
    with pytest.raises(ValueError, match=r"Ray's cluster file, .*: `ray up` takes it"):
        search_spaces.load(str(Path(__file__).parents[2] / "cluster.yaml"))
