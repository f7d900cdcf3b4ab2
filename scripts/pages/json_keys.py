"""The pages of keys in each command's JSON, made from the declared forms."""

import ast
import dataclasses
import enum
import functools
import inspect
import sys
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from platform.cluster.probing.probe_tables import JudgedProbeForm
from platform.common.json_form import SCHEMA, further, keys_of
from platform.plan.comparison_form import ClustersForm
from platform.plan.plan_form import PlanForm
from platform.report.difference import Difference
from platform.report.study_form import ScalingForm, SeveralForm, StudyForm
from platform.search.rechecking.verdict import RecheckForm
from platform.search.session.dry_run import DryRunForm
from platform.train.converging.conclusion import ConvergenceForm
from platform.train.summary import TrainingForm
from platform.validate.replaying.command import ReplayForm
from platform.validate.validation import ValidationForm
from trainers.data.index import TokenIndex
from trainers.spec.axis import axes_of
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

FORMS: Mapping[str, Mapping[str, type]] = {
    "platform.plan": {"": PlanForm, "of several models or clusters": ClustersForm},
    "platform.search": {"": StudyForm, "--gpus 1,2": ScalingForm, "--dry-run": DryRunForm},
    "platform.report": {
        "": StudyForm, "of several numbers of devices": ScalingForm, "--html with several studies": SeveralForm,
        "--compare": Difference,
    },
    "platform.recheck": {"": RecheckForm},
    "platform.probe": {"": JudgedProbeForm},
    "platform.train": {"": TrainingForm},
    "platform.converge": {"": ConvergenceForm},
    "platform.prepare": {"": TokenIndex},
    "platform.validate": {"": ValidationForm},
    "platform.replay": {"": ReplayForm},
}  # fmt: skip
"""The forms that each command prints with `--json`, by the options that select them."""
_TOP = f"""# JSON

What `--json` prints, alone on standard output. Each object at the top has `"schema": {SCHEMA}` in front. Within a
version keys are added, and none is removed or changes its meaning; keys marked * may be left out. Figures are in the
units that their names end with (`_s`, `_gib`, `_tokens_per_s`).
"""
_WORDS: Mapping[Any, str] = {
    str: "text", int: "whole number", float: "number", bool: "true, false", type(None): "null", Any: "any",
    Path: "text",
}  # fmt: skip


_STUDIES = frozenset((StudyForm, ScalingForm, SeveralForm))
"""Top-level forms whose parts have a page of their own."""
_RECORDS = "json-records.md"
PAGES: Mapping[str, str] = {
    "json-plan.md": "What `platform.plan --json` prints.",
    "json-study.md": "What `platform.search` and `platform.report` print of studies.",
    "json-other.md": "What the other commands print.",
    _RECORDS: "Records within other objects, as the journal of a study has them too.",
}
"""The pages of the forms, with their subjects."""


def page() -> str:
    lines = [_TOP, "| command | | object |", "|---|---|---|"]
    for command, forms in FORMS.items():
        lines += [f"| `{command}` | {options} | {_link(form)} |" for options, form in forms.items()]
    return "\n".join([*lines, ""])


def page_of(name: str) -> str:
    """Returns a page of forms in Markdown, in the order in which the forms are first named."""
    lines = [f"# JSON: {name.removeprefix('json-').removesuffix('.md')}", "", f"{PAGES[name]} [Commands](json.md)."]
    for form, page_name in _places().items():
        if page_name == name:
            lines += ["", *_section(form)]
    return "\n".join([*lines, ""])


@functools.cache
def _places() -> Mapping[type, str]:
    """Returns the page of each form."""
    tops = [form for forms in FORMS.values() for form in forms.values()]
    of_plans, of_studies = forms_within([PlanForm, ClustersForm]), forms_within(_STUDIES)
    return {
        form: _RECORDS
        if dataclasses.is_dataclass(form)
        else "json-plan.md"
        if form in of_plans
        else "json-study.md"
        if form in of_studies
        else "json-other.md"
        for form in forms_within(tops)
    }


def forms_within(forms: typing.Iterable[type]) -> dict[type, None]:
    """Returns these forms and all forms in their keys, each once."""
    listed: dict[type, None] = {}
    waiting = list(forms)
    while waiting:
        form = waiting.pop(0)
        if form not in listed:
            listed[form] = None
            waiting[:0] = [inner for key in keys_of(form).values() for inner in _forms_of(key.hint)]
            waiting += [kind for kind in further(form)[:1] if kind is not None]
    return listed


def _forms_of(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or typing.is_typeddict(hint)):
        yield hint
    for part in typing.get_args(hint):
        yield from _forms_of(part)


def _section(form: type) -> Iterator[str]:
    yield f"## {title(form)}\n"
    purpose, _, _ = (inspect.getdoc(form) or "").partition("\n\n")
    yield f"{_cell(purpose)}\n"
    yield "| key | | |\n|---|---|---|"
    documented, (inherited, optional) = abouts(form), further(form)
    if inherited is not None:
        yield f"| all{'*' if optional else ''} keys of {_link(inherited)} | | those below count |"
    axes = axes_of(form) if form in (Layout, Recipe) else {}
    if axes:
        yield "| each [axis](axes.md) of it | | |"
    for name, key in keys_of(form).items():
        if name in axes or (inherited is not None and name not in form.__annotations__):
            continue
        yield f"| `{name}`{'' if key.required else '*'} | {_type(key.hint)} | {_cell(documented.get(name, ''))} |"


def title(form: type) -> str:
    name = form.__name__.removesuffix("Form")
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()


def _link(form: type) -> str:
    return f"[{title(form)}]({_places()[form]}#{title(form).replace(' ', '-')})"


def _type(hint: Any) -> str:
    """Returns a type in words."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint in _WORDS:
        return _WORDS[hint]
    if origin in (types.UnionType, typing.Union):
        return " or ".join(map(_type, parts))
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in parts)
    if origin is tuple and ... not in parts:
        return f"list of {len(parts)}: {', '.join(map(_type, parts))}"
    if origin is not None and issubclass(origin, Mapping):
        return f"object of {_type(parts[1])} by name"
    if origin is not None and issubclass(origin, Sequence):
        return f"list of {_type(parts[0])}"
    if issubclass(hint, enum.Enum):
        return ", ".join(f"`{value.value}`" for value in hint)
    return _link(hint)


@functools.cache
def abouts(form: type) -> Mapping[str, str]:
    """Returns the docstrings of a form's keys by name, and of its bases' keys."""
    texts: dict[str, str] = {}
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(form))).body
    assert isinstance(body, ast.ClassDef)
    bases = [vars(sys.modules[form.__module__]).get(ast.unparse(base)) for base in body.bases]
    for other in (further(form)[0], *bases):  # a `TypedDict` knows its bases from Python 3.12 on
        if typing.is_typeddict(other) or dataclasses.is_dataclass(other):
            texts |= abouts(other)
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            texts[field.target.id] = inspect.cleandoc(ast.literal_eval(text.value))
    return texts


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
