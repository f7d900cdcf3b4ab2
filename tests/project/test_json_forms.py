"""Each command's JSON is as its declared forms say, in both directions: no key is undeclared and no declared key is
missing from what commands print.
"""

import collections
import dataclasses
import enum
import json
import re
import subprocess
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import platform.plan.__main__ as plan_command
import platform.report.__main__ as report_command
import platform.train.preparing.command as prepare_command
import platform.validate.__main__ as validate_command
import platform.validate.replaying.command as replay_command
from platform.cluster.probing.probe_tables import JudgedProbeForm, to_object
from platform.common.json_form import SCHEMA, keys_of, with_schema
from platform.plan.comparison_form import ClustersForm
from platform.plan.plan_form import PlanForm
from platform.report.difference import Difference
from platform.report.json_report import as_json
from platform.report.study_form import ScalingForm, SeveralForm, StudyForm
from platform.search.rechecking.verdict import RecheckForm, recheck_of
from platform.search.session.dry_run import DryRunForm
from platform.search.setup.rechecked import subject_of
from platform.study.group import StudyGroup, member, write_group
from platform.study.result.result import StudyResult
from platform.study.study import Study, read
from platform.train import summary
from platform.train.converging import conclusion
from platform.train.converging.rates import Rate
from platform.train.summary import TrainingForm
from platform.train.training_folder import TrainingFolder
from platform.validate.replaying.command import ReplayForm
from platform.validate.validation import ValidationForm
from scripts.pages.json_keys import FORMS, abouts, forms_within, title
from tests.cluster.probing.samples import probe
from tests.samples import CONDITIONS, RECIPE, header, layout, measurement, oom, profile, result_of, skipped
from tests.train.converging.made_up import compared
from tests.training.values import plan as training_plan
from trainers.data.index import TokenIndex
from trainers.records.journal import End, GateCurves, Measured, Planned, PlannedLayout
from trainers.spec.codec import to_json

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "cost_model" / "tables" / "tr3m_1b3.csv"
AT = "2026-01-01T00:00:00+00:00"
_PLAIN = {str: str, int: int, float: (int, float), bool: bool, type(None): type(None), Path: str}
PrintedKeys = collections.defaultdict[type, set[str]]
"""The keys that were printed, by form."""


def mistakes(hint: Any, value: Any, printed_keys: PrintedKeys, at: str = "") -> Iterator[str]:
    """Yields where a JSON value is not of a declared type; what is printed of each form is added to `printed_keys`."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        tried = [list(mistakes(part, value, printed_keys, at)) for part in parts]
        yield from min(tried, key=len)
    elif origin is typing.Literal:
        yield from [] if value in parts else [f"{at}: {value!r} is none of {parts}"]
    elif hint is Any:
        return
    elif hint in _PLAIN:
        is_value = isinstance(value, _PLAIN[hint]) and (hint is bool or not isinstance(value, bool))
        yield from [] if is_value else [f"{at}: {value!r} is no {hint.__name__}"]
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        yield from [] if value in [member.value for member in hint] else [f"{at}: {value!r} is no {hint.__name__}"]
    elif isinstance(hint, type) and (typing.is_typeddict(hint) or dataclasses.is_dataclass(hint)):
        yield from _mistakes_of_object(typing.cast(type, hint), value, printed_keys, at)
    elif issubclass(origin, Mapping):
        yield from [f"{at}: {value!r} is no object"] if not isinstance(value, dict) else ()
        for name, item in value.items() if isinstance(value, dict) else ():
            yield from mistakes(parts[1], item, printed_keys, f"{at}.{name}")
    else:
        assert issubclass(origin, Sequence), hint
        yield from [f"{at}: {value!r} is no list"] if not isinstance(value, list) else ()
        of_each = [part for part in parts if part is not ...]
        for number, item in enumerate(value if isinstance(value, list) else ()):
            yield from mistakes(of_each[number % len(of_each)], item, printed_keys, f"{at}[{number}]")


def _mistakes_of_object(form: type, value: Any, printed_keys: PrintedKeys, at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at}: {value!r} is no object of {form.__name__}"
        return
    declared = keys_of(form)
    printed_keys[form] |= value.keys()
    yield from (f"{at}: {name} is not declared in {form.__name__}" for name in value.keys() - declared.keys())
    yield from (
        f"{at}: {name} of {form.__name__} is missing"
        for name, key in declared.items()
        if key.required and name not in value
    )
    for name in value.keys() & declared.keys():
        yield from mistakes(declared[name].hint, value[name], printed_keys, f"{at}.{name}")


def test_a_mistake_is_found() -> None:
    """Holds the check itself to three mistakes: a key too many, one too few and one of another type."""
    value = {"documents": 1, "tokens": "2", "colour": "red", "files": [], "format": 1, "vocab_size": 256}
    wrong = list(mistakes(TokenIndex, value, collections.defaultdict(set)))
    for part in (": colour is not declared", "tokenizer of TokenIndex is missing", ".tokens: '2' is no int"):
        assert any(part in mistake for mistake in wrong), wrong


Printed = Iterator[tuple[type, dict[str, Any]]]
"""Objects of JSON with their declared forms."""


def _plans(capsys: pytest.CaptureFixture[str]) -> Printed:
    for arguments in (
        ["gpt2", "--cluster", "8xH100", "--top", "2"],
        ["gpt2", "--cluster", "8xH100", "--gpus", "8,3"],
        ["gpt2", "--cluster", "2x8xH100", "--sweep", "node-gbps=10"],
        ["gpt2", "--cluster", "8xA100-80GB", "--min-nodes"],
        ["gpt2", "--cluster", "8xH100", "--batch-rampup", "64,128"],
        ["gpt2", "--cluster", "8xH100", "--max-model"],
        ["qwen3_30b_a3b", "--cluster", "8xH100", "--balance", "1,2"],
        ["bloom7b", "--cluster", "1xA100-40GB", "--set", "engine=ddp,fsdp", "--set", "optimizer=adamw,adafactor"],
        ["gpt2", "--cluster", "8xH100", "--set", "global_batch=512,3"],
        ["bloom7b_kinds", "--cluster", "2xH200", "--device-memory-gib", "60"],
    ):
        code = plan_command.main([*arguments, "--json"])
        printed = capsys.readouterr()
        if code < 2 and printed.out:
            yield PlanForm, json.loads(printed.out)
    clusters = ("--cluster", "2x8xH100@400", "--cluster", "1xA100-40GB")
    for demands in ((), ("--deadline", "9d", "--max-cost", "20000", "--price", "A100-40GB=2", "--price", "H100=3")):
        plan_command.main(["gpt2", "bloom7b", *clusters, *demands, "--json"])
        yield ClustersForm, json.loads(capsys.readouterr().out)


def _study() -> dict[str, Any]:
    """Returns the JSON of a study in which every part of a result is there."""
    plain, other = layout(checkpointing="full"), layout(zero_stage=2)
    curves: dict[str, Any] = {"at": AT, "trial_id": "t1", "recipe": RECIPE, "steps": 2, "sequences": 32}
    curves |= {"losses": (12.0, 11.0), "grad_norms": (3.0, 2.0)}
    runs = [
        measurement(on=on, tokens_per_s=speed + number, repeat=number)
        for on, speed in ((layout(), 40000.0), (other, 39000.0))
        for number in range(4)
    ]
    planned = [PlannedLayout(recipe=RECIPE.id, layout=on, micro_batches=(1,)) for on in (layout(), other, plain)]
    return as_json(
        result_of(
            [*runs, oom(micro_batch=4), skipped(micro_batch=8)],
            Planned(at=AT, layouts=tuple(planned)),
            dataclasses.replace(profile(), at=AT),
            *(GateCurves(layout=on, is_reference=on == plain, **curves) for on in (plain, layout())),
            End(at=AT, exit_code=0, wall_s=60.0, gpu_s=240.0),
        )
    )


def _reports(folder: Path, capsys: pytest.CaptureFixture[str]) -> Printed:
    yield StudyForm, with_schema(_study())
    write_group(folder / "group", StudyGroup(counts=(1, 2), options={}))
    for count in (1, 2):
        with Study.create(folder, member("group", count)) as study:
            study.record(header(study.path.name))
            study.record(Measured(measurement=measurement(on=layout(dp_shard=count))))
    both = [member("group", count) for count in (1, 2)]
    for form, arguments in (
        (StudyForm, both[:1]),
        (ScalingForm, ["group"]),
        (SeveralForm, [*both, "--html", str(folder / "page.html")]),
        (Difference, ["--compare", *both]),
    ):
        assert report_command.main([*arguments, "--studies", str(folder), "--json", "--no-mlflow"]) == 0
        yield form, json.loads(capsys.readouterr().out)


def _recheck(folder: Path) -> Printed:
    for name, factor in (("old", 1.0), ("old-recheck-1", 0.9)):
        with Study.create(folder, name) as study:
            study.record(header(name))
            for on, speed in ((layout(), 40000.0), (layout(zero_stage=2), 39000.0)):
                conditions = dataclasses.replace(CONDITIONS, commit=name)
                run = measurement(on=on, tokens_per_s=factor * speed, conditions=conditions)
                study.record(Measured(measurement=run))
    subject = subject_of(folder / "old")
    new = StudyResult.of(read(folder / "old-recheck-1", last=True)[0])
    yield RecheckForm, with_schema(to_json(recheck_of(subject, new).to_json()))


def _dry_run(folder: Path) -> Printed:
    command = [sys.executable, "-m", "platform.search", "gpt2", "--dry-run", "--json", "--address", "local"]
    run = subprocess.run([*command, "--studies", str(folder)], cwd=ROOT, check=True, capture_output=True, text=True)
    yield DryRunForm, json.loads(run.stdout)


def _others(folder: Path, capsys: pytest.CaptureFixture[str]) -> Printed:
    yield JudgedProbeForm, with_schema(to_object(probe(), folder / "probe.json"))
    yield TrainingForm, with_schema(summary.summary(TrainingFolder(folder / "training"), training_plan()))
    _, verdict = compared(folder)
    rates = {name: Rate(value=1e-3, source="given") for name in verdict.marks}
    yield conclusion.ConvergenceForm, with_schema(conclusion.to_object(verdict, rates, ["a sentence"]))
    (folder / "text.txt").write_text("some words\n" * 100)
    assert prepare_command.main([str(folder / "text.txt"), "--out", str(folder / "tokens"), "--json"]) == 0
    yield TokenIndex, json.loads(capsys.readouterr().out)
    assert validate_command.main([str(TABLE), "--json"]) == 0
    yield ValidationForm, json.loads(capsys.readouterr().out)
    assert replay_command.main([str(TABLE), "--searcher", "random", "--seeds", "1", "--json"]) == 0
    yield ReplayForm, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_what_commands_print_is_what_is_declared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed_keys: PrintedKeys = collections.defaultdict(set)
    wrong: list[str] = []
    printed = [
        *_plans(capsys),
        *_reports(tmp_path, capsys),
        *_recheck(tmp_path),
        *_dry_run(tmp_path),
        *_others(tmp_path, capsys),
    ]
    for form, value in printed:
        value = json.loads(json.dumps(value))
        assert value.pop("schema") == SCHEMA
        wrong += mistakes(form, value, printed_keys, form.__name__)
    assert wrong == []
    assert {form for form, _ in printed} == {form for by_option in FORMS.values() for form in by_option.values()}
    unseen = {(form.__name__, name) for form in printed_keys for name in keys_of(form).keys() - printed_keys[form]}
    assert unseen == set()


def test_json_is_printed_by_one_function() -> None:
    prints = re.compile(r"(?<![.\w])print\(json\.dumps\(")
    printing = [path for path in (ROOT / "platform").rglob("*.py") if prints.search(path.read_text())]
    assert [str(path.relative_to(ROOT)) for path in printing] == ["platform/common/json_form.py"]


def test_every_declared_key_is_documented() -> None:
    forms = forms_within(form for by_option in FORMS.values() for form in by_option.values())
    titles = collections.Counter(map(title, forms))
    assert [words for words, number in titles.items() if number > 1] == []
    declared = {form for form in forms if typing.is_typeddict(form)}
    assert [
        (form.__name__, name) for form in declared for name in form.__annotations__ if not abouts(form).get(name)
    ] == []
