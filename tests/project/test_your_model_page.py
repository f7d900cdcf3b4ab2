"""docs/your-model.md, your-engine.md and models.md work: a space file, an engine, a table of every architecture."""

import re
from pathlib import Path

import search_spaces
from trainers.engines import base
from trainers.engines.stepper import ABILITIES, methods_of
from trainers.spec import architectures

ROOT = Path(__file__).parents[2]
SPACE, ENGINE, MODELS = (
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("your-model", "your-engine", "models")
)
CODE = [code for page in (SPACE, ENGINE) for code in re.findall(r"(?ms)^```python\n(.*?)^```", page)]
"""A space file and an engine."""


def test_the_space_file_of_the_page_is_one(tmp_path: Path) -> None:
    text = CODE[0]
    path = tmp_path / "my_space.py"
    path.write_text(text, encoding="utf-8")
    space = search_spaces.load(str(path))
    candidates, _ = space.candidates(4)
    assert {candidate.layout.engine for candidate in candidates} == {"fsdp", "ddp"}
    assert {candidate.recipe.global_batch for candidate in candidates} == {256}


def test_the_engine_of_the_page_is_the_one_that_the_contract_compares() -> None:
    source = (ROOT / "tests" / "contract" / "own_engine.py").read_text(encoding="utf-8")
    assert source.split('"""', 2)[2].strip() == CODE[1].strip()
    imported = re.findall(r"(?m)^from (trainers\S+) import (.*)", CODE[1])
    assert [module for module, _ in imported] == ["trainers.engines.base"]
    assert set(imported[0][1].split(", ")) <= set(base.__all__)
    assert not re.findall(r"\b_[a-z]\w*|\._\w", CODE[1].replace("__name__", "")) and len(CODE[1].splitlines()) <= 40


def test_every_method_of_an_ability_has_its_row() -> None:
    named = set(re.findall(r"`(\w+)`", ENGINE.partition("| needs |")[2].partition("\n\n")[0]))
    assert {method for ability in ABILITIES.values() for method in methods_of(ability)} <= named


def test_every_model_type_has_a_row() -> None:
    rows = re.findall(r"(?m)^\| (`\w+`(?:, `\w+`)*) \|", MODELS)
    listed = [name for row in rows[1:] for name in re.findall(r"\w+", row)]
    assert sorted(listed) == sorted(architectures.names())
