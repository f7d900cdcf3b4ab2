"""Constants of the cost model: every one has its provenance, and the formulas read all of them."""

import re
from pathlib import Path

import platform
from platform.cost_model import stacks
from platform.cost_model.constants import table
from platform.cost_model.engines import ENGINES

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


def test_every_fact_of_a_stack_has_a_source_and_a_reader() -> None:
    source = "".join((ROOM / name).read_text() for name in ("stacks.py", "table.py"))
    read = set(re.findall(r'has\([\w()]+, "(\w+)"\)', source))
    assert read == {fact for facts in stacks.table().values() for fact in facts}
    assert all(sentence for facts in stacks.table().values() for sentence in facts.values())
    assert set(stacks.table()) == set(ENGINES)
