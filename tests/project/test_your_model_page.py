"""docs/your-model.md works: its space file is searched, and its table has every architecture."""

import re
from pathlib import Path

import search_spaces
from trainers.spec import architectures

PAGE = (Path(__file__).parents[2] / "docs" / "your-model.md").read_text(encoding="utf-8")


def test_the_space_file_of_the_page_is_one(tmp_path: Path) -> None:
    (text,) = re.findall(r"(?ms)^```python\n(.*?)^```", PAGE)
    path = tmp_path / "my_space.py"
    path.write_text(text, encoding="utf-8")
    space = search_spaces.load(str(path))
    candidates, _ = space.candidates(4)
    assert {candidate.layout.engine for candidate in candidates} == {"fsdp", "ddp"}
    assert {candidate.recipe.global_batch for candidate in candidates} == {256}


def test_every_model_type_has_a_row() -> None:
    listed = re.findall(r"(?m)^\| `(\w+)` \|", PAGE.partition("## Which models")[2])
    assert sorted(listed[1:]) == sorted(architectures.names())
