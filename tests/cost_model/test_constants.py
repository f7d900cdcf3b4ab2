"""Constants of the cost model: every one has its provenance, and the formulas read all of them."""

import re
from pathlib import Path

import platform
from platform.cost_model.constants import table

ROOM = Path(next(iter(platform.__path__))) / "cost_model"


def test_every_constant_names_unit_source_and_commit() -> None:
    for module, constants in table().items():
        for name, constant in constants.items():
            assert set(constant) - {"command"} == {"value", "unit", "what", "source", "commit"}, (module, name)
            assert all(constant[field] for field in ("unit", "what", "source")), (module, name)
            assert re.fullmatch(r"[0-9a-f]{7,}", constant["commit"]), (module, name)


def test_the_formulas_read_every_constant_from_the_table() -> None:
    read = {
        (module, name)
        for path in ROOM.rglob("*.py")
        for module, name in re.findall(r'constants\.\w+\("(\w+)", "(\w+)"\)', path.read_text())
    }
    assert read == {(module, name) for module, constants in table().items() for name in constants}
