"""The promise of `layout_search`: no public name, parameter or key of JSON is lost unnoticed (docs/python.md)."""

import dataclasses
import inspect
import json
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platform.api as api
from platform.common.json_form import SCHEMA
from scripts.pages.json_keys import FORMS, forms_within

PROMISED = Path(__file__).with_name("public.json")
REGENERATE = "python -m tests.api.test_public"


def public() -> dict[str, Any]:
    """Returns the names with their parameters or members, and the keys of JSON that forms declare themselves."""
    names = {name: _members(getattr(api, name)) for name in api.__all__}
    forms = forms_within(form for by_option in FORMS.values() for form in by_option.values())
    declared = [form for form in sorted(forms, key=lambda form: form.__name__) if typing.is_typeddict(form)]
    keys = {form.__name__: sorted(form.__annotations__) for form in declared}
    return {"names": names, "schema": SCHEMA, "keys": keys}


def _members(value: Any) -> list[str]:
    """Returns a function's parameters, or the public members of a class with theirs."""
    if not inspect.isclass(value):
        return [parameter.name for parameter in inspect.signature(value).parameters.values()]
    fields = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    members = {name: member for name, member in vars(value).items() if not name.startswith("_")}
    called = [
        f"{name}({', '.join(list(inspect.signature(member).parameters)[1:])})" if inspect.isfunction(member) else name
        for name, member in members.items()
    ]
    return sorted({*fields, *called})


def test_nothing_that_was_promised_is_lost() -> None:
    promised, present = json.loads(PROMISED.read_text(encoding="utf-8")), public()
    for part in ("names", "keys") if promised["schema"] == SCHEMA else ("names",):
        assert _lost(promised[part], present[part]) == [], f"deprecate it first; once it may go: {REGENERATE}"


def _lost(promised: Mapping[str, list[str]], present: Mapping[str, list[str]]) -> list[str]:
    return [
        f"{name}.{member}"
        for name, members in promised.items()
        for member in members or [""]
        if name not in present or (member and member not in present[name])
    ]


def test_new_names_are_promised_too() -> None:
    assert json.loads(PROMISED.read_text(encoding="utf-8"))["names"] == public()["names"], f"a new name: {REGENERATE}"


def test_the_package_has_the_same_names() -> None:
    root = Path(__file__).parents[2] / "scripts" / "package_root" / "__init__.py"
    assert all(f'"{name}"' in root.read_text(encoding="utf-8") for name in api.__all__)


if __name__ == "__main__":
    PROMISED.write_text(json.dumps(public(), indent=1) + "\n", encoding="utf-8")
