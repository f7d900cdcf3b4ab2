"""Constants of the cost model: every one has its provenance, and the formulas read all of them."""

import re
from pathlib import Path

import platform
from platform.cost_model import stacks
from platform.cost_model.constants import table
from platform.cost_model.engines import ENGINES
from platform.validate.row_software import STRATEGIES

ROOMS = [Path(next(iter(platform.__path__))) / room for room in ("cost_model", "plan", "validate")]
"""Rooms that read constants: the model itself, and what reads tables and other people's software."""


def test_every_constant_names_unit_source_and_commit() -> None:
    for module, constants in table().items():
        for name, constant in constants.items():
            assert set(constant) - {"command"} == {"value", "unit", "what", "source", "commit"}, (module, name)
            assert all(constant[field] for field in ("unit", "what", "source")), (module, name)
            assert re.fullmatch(r"[0-9a-f]{7,}", constant["commit"]), (module, name)


def test_the_formulas_read_every_constant_from_the_table() -> None:
    read = {
        (module, name)
        for room in ROOMS
        for path in room.rglob("*.py")
        for module, name in re.findall(r'constants\.\w+\("(\w+)", "(\w+)"\)', path.read_text())
    }
    assert read == {(module, name) for module, constants in table().items() for name in constants}


def test_every_fact_of_an_engine_or_stack_has_a_source_and_a_reader() -> None:
    source = "".join(path.read_text() for room in ROOMS for path in room.glob("*.py"))
    table = stacks.table()
    assert set(table["engines"]) == set(ENGINES)
    of_engines = {fact for facts in table["engines"].values() for fact in facts}
    assert set(re.findall(r'has\([\w()]+, "(\w+)"\)', source)) == of_engines
    assert all(sentence for facts in table["engines"].values() for sentence in facts.values())
    assert set(re.findall(r'(?:fact|ratio)\([\w()]+, "(\w+)"', source)) == set(table["facts"])
    for name, facts in table["stacks"].items():
        assert facts.get("like", name) in table["stacks"]
        for fact, entry in facts.items():
            assert fact == "like" or (fact in table["facts"] and set(entry) - {"tables"} == {"value", "source"}), (
                name,
                fact,
            )
            assert fact == "like" or entry["source"], (name, fact)


def test_the_engine_of_a_software_does_not_depend_on_degrees() -> None:
    for software in stacks.names():
        assert set(stacks.fact(software, "engines", {})) == set(STRATEGIES)
        assert set(stacks.fact(software, "engines", {}).values()) <= set(ENGINES)
