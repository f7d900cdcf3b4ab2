"""An axis is named where it is declared, implemented, costed, read from tables, shown in views or searched; an engine
likewise. Everything else asks declarations (`trainers/spec/axis.py`) and rules (`trainers/spec/engines/rules.py`).
"""

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from trainers.spec import engines
from trainers.spec.axis import axes_of
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import DEGREES

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("platform", "search_spaces", "trainers")
MODULES = ("compiler", "re", "torch")
"""`re.compile`, `torch.compile` and that of DeepSpeed's `compiler` are no axes."""
EVERY = frozenset(axes_of(Layout))
OF_ENGINES = EVERY & {path.stem for path in (ROOT / "trainers" / "spec" / "engines" / "axes").glob("*.py")}
"""Axes that some engines have, each in files of its own: its place follows from its name."""
SHARED = EVERY - OF_ENGINES - frozenset(DEGREES)
DECLARATIONS = "trainers/spec/layout_axes.py"

AXES: Mapping[str, frozenset[str]] = {
    # The declarations.
    DECLARATIONS: EVERY,
    # What a layout is called and how its degrees number ranks.
    "trainers/spec/layout.py": SHARED
    - {"attention", "bucket_mib", "compile", "experts", "loss", "mlp", "schedule", "virtual"},
    "trainers/spec/degree.py": frozenset({"experts"}),  # what ranks may share out
    "trainers/distributed/collectives.py": frozenset({"experts"}),  # the same: its name in a profile
    # What engines, kernels and degrees can do, asked before a trial.
    "trainers/spec/engines/": SHARED,
    "trainers/spec/adapter_rules.py": frozenset({"experts", "offload"}),
    "trainers/spec/expert_rules.py": frozenset({"checkpointing", "compile", "experts"}),
    "trainers/spec/float8.py": frozenset({"offload"}),
    "trainers/spec/host_moments.py": frozenset({"offload", "zero_stage"}),
    "trainers/spec/kernel_rules.py": frozenset({"attention", "checkpointing", "compile", "loss", "mlp"}),
    "trainers/spec/mesh_rules.py": frozenset({"attention", "compile", "cp_exchange", "grad_sync", "virtual"}),
    "trainers/spec/optional_kernels.py": frozenset({"attention", "loss", "mlp"}),
    "trainers/spec/stages.py": frozenset({"checkpointing", "schedule", "virtual"}),
    "trainers/spec/support.py": frozenset({"offload"}),  # refuses it where all memory is the host's
    # Engines, kernels and degrees that implement axes.
    "trainers/engines/": SHARED,
    "trainers/kernels/": SHARED,
    "trainers/mesh/": SHARED,
    "trainers/trial/worker.py": frozenset({"engine"}),  # loads it, and holds its source against the search's
    "trainers/measuring/rung.py": frozenset({"compile"}),  # the first step's time is that of compiling
    # Their costs.
    "platform/cost_model/": SHARED,
    "platform/plan/offers.py": frozenset({"attention", "compile", "engine", "schedule", "virtual", "zero_stage"}),
    "platform/plan/software.py": frozenset({"checkpointing", "engine", "zero_stage"}),
    "platform/study/result/gate.py": frozenset({"loss"}),  # a figure of a step, not the axis
    # Search spaces, and the one that a layout's file makes.
    "search_spaces/": EVERY,
    "platform/search/setup/request.py": frozenset({"engine"}),
    # What compiling takes before a first trial.
    "platform/search/setup/forecast.py": frozenset({"compile"}),
    # Readers and writers of tables.
    "platform/validate/evaluation.py": frozenset({"attention", "compile", "engine", "loss", "offload"}),
    "platform/validate/facts.py": frozenset({"attention", "compile", "engine", "loss", "mlp", "offload", "schedule"})
    | {"experts"},
    "platform/validate/metrics.py": frozenset({"engine", "zero_stage"}),
    "platform/validate/published.py": frozenset({"attention", "compile", "engine", "loss", "mlp"}),
    "platform/validate/published_run.py": SHARED,
    "platform/validate/readings.py": frozenset({"attention", "schedule"}),
    "platform/validate/row_parts.py": SHARED,
    "platform/validate/row_software.py": frozenset({"engine"}),
    "platform/validate/rows.py": frozenset({"schedule"}),
    "platform/validate/validation_tables.py": SHARED,
    # Published tables' words.
    "platform/report/measurement_table.py": frozenset({"attention", "experts"}),
    # Files of other programs, and what these cannot carry.
    "platform/train/exporting/": frozenset(
        {
            "attention",
            "bucket_mib",
            "checkpointing",
            "compile",
            "engine",
            "experts",
            "grad_sync",
            "loss",
            "mlp",
            "offload",
            "zero_stage",
        }
    ),
    # Definitions of views: names of columns.
    "platform/tracking/views.py": SHARED,
    "platform/tracking/content.py": frozenset({"checkpointing", "flags"}),
    "platform/report/columns.py": frozenset({"engine", "checkpointing"}),
    # A command's own axes, and the loss that its steps tell.
    "trainers/spec/batch.py": frozenset({"flags"}),
    "trainers/commands/": frozenset({"loss"}),
    # A kind of block has the axis's name.
    "trainers/spec/blocks/experts.py": frozenset({"experts"}),
    # The same words for other things: a curve of losses, kinds of kernels in a profile; a profile of code compiled
    # whole tells kernels apart by their shapes.
    "platform/tracking/series.py": frozenset({"loss"}),
    "platform/report/lessons.py": frozenset({"attention"}),
    "platform/report/profile.py": frozenset({"attention"}),
    "platform/train/": frozenset({"loss"}),
    "platform/report/html/loss_sections.py": frozenset({"loss"}),
    # Another engine keeps the first one's kernels, not its own stages.
    "platform/train/converging/strategies.py": frozenset({"engine", "grad_sync", "zero_stage"}),
    # Its workers load the engine, and an export is of the plain model.
    "trainers/training/": frozenset({"attention", "engine", "loss"}),
    # The plain model is asked for.
    "trainers/models/build_check.py": frozenset({"attention", "experts"}),
    # Kinds of kernels, and exposed communication by mesh axis; a profile of compiled code is told apart by shapes.
    "trainers/marks/kinds.py": frozenset({"attention", "loss"}),
    "trainers/profiling/": frozenset({"compile"}),
    "trainers/records/sums.py": frozenset({"attention", "loss"}),
    "trainers/text/make_text.py": frozenset({"flags"}),  # those of a regular expression
    "trainers/marks/step.py": frozenset({"schedule"}),  # all micro-batches of a step
}
"""Axes that a file, or a folder with a slash, names, beside those of engines in their own files."""

DEGREES_IN = (
    # What ranks run, and their groups.
    "trainers/distributed/groups.py",
    "trainers/engines/",
    "trainers/mesh/",
    # What that refuses.
    "trainers/spec/engines/",
    "trainers/spec/mesh_rules.py",
    "trainers/spec/stages.py",
    # Its communication in a profile.
    "trainers/marks/kinds.py",
    "trainers/records/sums.py",
    # Its costs; `dp_shard` is a sharding engine's.
    "platform/cost_model/blocks/",
    "platform/cost_model/degrees/",
    "platform/cost_model/engines/",
    "platform/cost_model/features.py",
    "platform/cost_model/mesh.py",
    # Replicas and shards in words; columns that every table has.
    "platform/plan/offers.py",
    "platform/report/measurement_table.py",
    "platform/validate/row_parts.py",
    "platform/validate/rows.py",
    # Values that a space tries, and degrees filled.
    "search_spaces/",
)
"""Files, and folders with a slash, that name a degree, beside its declaration."""

ENGINES = (
    "trainers/engines/",
    "trainers/spec/engines/",
    "platform/cost_model/engines/",
    # Stacks of published runs, and the words of tables.
    "platform/validate/facts.py",
    "platform/validate/published.py",
    "platform/validate/row_software.py",
    "platform/train/exporting/",  # the programs that exports are for
    "search_spaces/",
)
"""Files, and folders with a slash, that name engines of this project."""


def _named(tree: ast.AST, words: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yields (line, word) wherever one of `words` is an attribute, a keyword or a whole string."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name)) if name in MODULES:
                continue
            case ast.Attribute(attr=word) | ast.Constant(value=str(word)):
                line = node.lineno
            case ast.keyword(arg=str(word)):
                line = node.value.lineno
            case ast.Name(id=word) | ast.arg(arg=word) if word in DEGREES:  # no other thing has such a name
                line = node.lineno
            case _:
                continue
        if word in words:
            yield line, word


@functools.cache
def _uses() -> tuple[tuple[str, int, str], ...]:
    """Returns (file, line, word) of every use of an axis or an engine in the product; each file is walked once."""
    files = (path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py")))
    words = EVERY | frozenset(engines.names())
    return tuple(
        (str(path.relative_to(ROOT)), line, word)
        for path in files
        for line, word in _named(ast.parse(path.read_text()), words)
    )


def _covers(place: str, name: str) -> bool:
    return name.startswith(place) if place.endswith("/") else name == place


def _places(words: frozenset[str]) -> Iterator[tuple[str, int, str]]:
    """Yields (file, line, word) of every use of one of `words` in the product."""
    return (use for use in _uses() if use[2] in words)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("layout.prefetch", ["prefetch"]),
        ("replace(layout, prefetch=2)", ["prefetch"]),
        ("values['prefetch']", ["prefetch"]),
        ("'prefetch to'; prefetch = 2; re.compile('x'); torch.compile", []),
        ("layout.compile", ["compile"]),
    ],
)
def test_uses_are_seen(source: str, words: list[str]):
    assert [word for _, word in _named(ast.parse(source), EVERY)] == words


def test_axes_are_named_only_where_they_belong():
    wrong = [
        f"{name}:{line} names the axis {word}: ask its declaration or the engine's rules"
        for name, line, word in _places(SHARED)
        if not any(_covers(place, name) and word in words for place, words in AXES.items())
    ]
    assert not wrong, "\n".join(wrong)


def test_degrees_are_named_where_they_are_implemented():
    named = {(name, line, word) for name, line, word in _places(frozenset(DEGREES)) if name != DECLARATIONS}
    wrong = [
        f"{name}:{line} names the degree {word}: ask its declaration (DEGREES, CUTTING)"
        for name, line, word in sorted(named)
        if not any(_covers(place, name) for place in DEGREES_IN)
    ]
    assert not wrong, "\n".join(wrong)
    assert {place for place in DEGREES_IN for name, *_ in named if _covers(place, name)} == set(DEGREES_IN)


@pytest.mark.parametrize("axis", sorted(OF_ENGINES))
def test_an_axis_of_engines_is_named_in_three_files(axis: str):
    """Checks the three files: that of its declaration, where it is a field, which counts as no use, that of what its
    engines do, and that of what it costs; search spaces may try it.
    """
    places = {name for name, _, _ in _places(frozenset({axis})) if not _covers("search_spaces/", name)}
    costs = {name for name in places if _covers("platform/cost_model/", name)}
    assert places - costs == {f"trainers/spec/engines/axes/{axis}.py"}
    assert len(costs) <= 1, f"costs of {axis} belong in one file"


def test_engines_are_named_only_where_they_belong():
    wrong = [
        f"{name}:{line} names the engine {word}: ask its rules"
        for name, line, word in _places(frozenset(engines.names()))
        if not any(_covers(place, name) for place in ENGINES)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_lists_allow_no_more_than_is_used():
    axes = {(place, word) for name, _, word in _places(EVERY) for place in AXES if _covers(place, name)}
    few = {(place, word) for place, words in AXES.items() if words not in (EVERY, SHARED) for word in words}
    assert few <= axes
    assert {place for place, _ in axes} == set(AXES)
    named = {place for name, *_ in _places(frozenset(engines.names())) for place in ENGINES if _covers(place, name)}
    assert named == set(ENGINES)
