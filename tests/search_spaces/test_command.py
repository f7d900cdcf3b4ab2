"""The space of a user's command: its holes, what they refuse, and what identifies it."""

import dataclasses
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from platform.searchers.guidance.pruning import FALLING, LIGHTER
from platform.searchers.guided import Guided
from platform.searchers.problem import Problem
from search_spaces.command import holes_of, micro_batches_of, space_of_command
from search_spaces.space import Space
from tests.samples import measurement
from trainers.records.measurement import Outcome
from trainers.spec.batch import BatchPoint, values_of
from trainers.spec.codec import from_json, to_json
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.spec.workload import flags_of, holes_in

COMMAND = (
    *("torchrun", "--nproc-per-node", "{gpus}", "train.py", "--batch={micro_batch=8,1,2}", "--accum", "{grad_accum}"),
    *("{ckpt=--checkpoint,}", "--fsdp", "{fsdp=full shard,no}", "--again", "{fsdp}", "--json", '{{"a": 1}}'),
)


def _space(folder: Path, *, command: tuple[str, ...] = COMMAND, tokens: int = 1024, length: int = 16) -> Space:
    (folder / "train.py").touch()
    return space_of_command(command, folder=folder, tokens_per_step=tokens, seq_len=length)


def test_the_holes_are_axes_and_the_accumulation_follows(tmp_path: Path) -> None:
    space = _space(tmp_path)
    candidates, rejected = space.candidates(4)
    assert (space.name, len(candidates), rejected) == ("train", 4, ())
    rungs = tuple(BatchPoint(micro_batch=size, grad_accum=accum) for size, accum in ((1, 16), (2, 8), (8, 2)))
    assert [candidate.batch_points() for candidate in candidates] == [rungs] * 4
    assert {candidate.tokens_per_step for candidate in candidates} == {1024}
    assert candidates[0].layout.label == "ckpt=--checkpoint 'fsdp=full shard'"
    assert flags_of(candidates[0].layout.flags) == {"ckpt": "--checkpoint", "fsdp": "full shard"}
    assert candidates[3].axes == {"recipe": candidates[3].recipe.id, "own ckpt": "", "own fsdp": "no"}


def test_a_filled_command_has_its_values_and_lacks_the_words_of_empty_ones(tmp_path: Path) -> None:
    candidates, _ = _space(tmp_path).candidates(4)
    first, last = candidates[0], candidates[3]
    workload = first.recipe.workload
    assert workload is not None
    batch = BatchPoint(micro_batch=2, grad_accum=8)
    assert workload.filled(values_of(first.layout, batch)) == (
        *("torchrun", "--nproc-per-node", "4", "train.py", "--batch=2", "--accum", "8", "--checkpoint"),
        *("--fsdp", "full shard", "--again", "full shard", "--json", '{"a": 1}'),
    )
    assert "--checkpoint" not in workload.filled(values_of(last.layout, batch))


BRACES = {
    '--json={"a": {"b": 1}}': '--json={"a": {"b": 1}}',
    '--json={{"a": {{"b": 1}}}}': '--json={"a": {"b": 1}}',
    '{"stage": {"level": {level=7}}}': '{"stage": {"level": 7}}',
    '{{"level": {level=7}}}': '{"level": 7}',
    "{{{level=7}}}": "{7}",
    "{{level=7}}": "{level=7}",
    "{{{{ x }}}}": "{{ x }}",
    "{level=7}{level}-{x": "77-{x",
    "}}": "}}",
    "${{HOME}}": "${HOME}",
    '{"env": "A=1"} {% set a = 1 %} {x:=>9}': '{"env": "A=1"} {% set a = 1 %} {x:=>9}',
    "{{zero-stage = 1}}": "{zero-stage = 1}",
    "": "",
}
"""Words of a command, and what the program gets."""


@pytest.mark.parametrize("word", BRACES)
def test_braces_are_read_from_the_left(word: str, tmp_path: Path) -> None:
    assert _words(tmp_path, word)[-1] == BRACES[word]


def _words(folder: Path, *words: str, environment: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Returns what the program gets of the words at the first point."""
    space = space_of_command(
        ("a", "{micro_batch=1}", *words), folder=folder, tokens_per_step=16, seq_len=16, environment=environment
    )
    ((candidate, *_), _) = space.candidates(1)
    assert candidate.recipe.workload is not None
    return candidate.recipe.workload.filled(values_of(candidate.layout, candidate.batch_points()[0]))


TEXTS = st.text(st.characters(exclude_characters=",{}\0", exclude_categories=("Cs",)), min_size=1)


@given(values=st.lists(TEXTS, min_size=1, max_size=4, unique=True), before=TEXTS, after=TEXTS)
def test_every_value_reaches_the_program_as_it_was_written(values: list[str], before: str, after: str) -> None:
    """Checks `=`, quotes, spaces, line ends and what else a word may have, twice in a word and in the environment."""
    words = ("a", "{micro_batch=1}", before, f"{after}{{own={','.join(values)}}}{before}{{own}}", after)
    space = space_of_command(words, folder=Path("/"), tokens_per_step=16, seq_len=16, environment=("MINE=a{own}=b",))
    candidates, _ = space.candidates(1)
    filled: list[tuple[str, ...]] = []
    for candidate in candidates:
        workload = from_json(Recipe, to_json(candidate.recipe)).workload
        assert workload is not None
        point = values_of(candidate.layout, candidate.batch_points()[0])
        (name,) = set(map(str, candidate.axes)) - {"recipe"}
        assert name == "own own" and str(flags_of(candidate.layout.flags)["own"]) in values
        filled.append((*workload.filled(point), *workload.variables(point).values()))
    assert filled == [("a", "1", before, f"{after}{v}{before}{v}", after, f"a{v}=b") for v in values]


@given(word=st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))))
def test_doubled_braces_write_every_word(word: str) -> None:
    doubled = word.replace("{", "{{").replace("}", "}}")
    assert _words(Path("/"), doubled)[-1] == (word if "{" in word else doubled)
    assert not list(holes_in(doubled))


def test_axes_may_have_the_names_of_ours(tmp_path: Path) -> None:
    """Checks that a search takes nothing from a name: text where a degree of ours is a number, and our recipe."""
    names = (*FALLING, *LIGHTER, "recipe")
    command = ("a", "{micro_batch=1,2}", "{grad_accum}", *(f"{{{name}=left,right}}" for name in names[:8]))
    candidates, _ = _space(tmp_path, command=command, tokens=64, length=16).candidates(1)
    guided = Guided(Problem(candidates=candidates[:16]))
    for _ in range(4):
        candidate = guided.suggest()
        assert candidate is not None
        oom = measurement(micro_batch=2, outcome=Outcome.OOM, tokens_per_s=None)
        guided.update(candidate, [measurement(micro_batch=1), oom])
    assert guided.suggest() is not None


def test_a_variable_of_the_environment_may_have_holes(tmp_path: Path) -> None:
    words, variables = ("a", "{micro_batch=1,2}", "{grad_accum}"), ("PATHS={out}/x", "MODE={mode=fast,}", "K={mode}")
    space = space_of_command(words, folder=tmp_path, tokens_per_step=32, seq_len=16, environment=variables)
    candidates, _ = space.candidates(1)
    workload = candidates[1].recipe.workload
    assert workload is not None and workload.holes == {"micro_batch", "grad_accum", "out", "mode"}
    values = {**values_of(candidates[1].layout, candidates[1].batch_points()[0]), "out": "/out"}
    assert workload.variables(values) == {"PATHS": "/out/x", "MODE": "", "K": ""}
    with pytest.raises(ValueError, match=r"hole \{mode\} has no values"):
        space_of_command(words, folder=tmp_path, tokens_per_step=32, seq_len=16, environment=variables[2:])


def test_a_micro_batch_that_does_not_divide_the_step_is_left_out(tmp_path: Path) -> None:
    (candidate, *_), _ = _space(tmp_path, tokens=16 * 4 * 12).candidates(4)
    assert candidate.micro_batches == (1, 2)
    with pytest.raises(ValueError, match=r"global batch 3 is not a multiple of micro_batch 1 x 4"):
        _space(tmp_path, tokens=16 * 3).candidates(4)


def test_the_largest_micro_batch_is_one_of_all_that_divide_the_step(tmp_path: Path) -> None:
    command = ("python", "train.py", "{micro_batch=max}", "{grad_accum}", "{mode=a,b}")
    candidates, _ = _space(tmp_path, command=command, tokens=16 * 4 * 12).candidates(4)
    assert [candidate.micro_batches for candidate in candidates] == [(1, 2, 3, 4, 6, 12)] * 2
    assert all(candidate.finds_largest and not candidate.refine for candidate in candidates)


def test_recipe_and_layout_survive_their_json(tmp_path: Path) -> None:
    (candidate, *_), _ = _space(tmp_path).candidates(4)
    assert from_json(Recipe, to_json(candidate.recipe)) == candidate.recipe
    assert from_json(Layout, to_json(candidate.layout)) == candidate.layout
    assert candidate.recipe.label == "train.py, length 16, global batch 64"
    assert not candidate.recipe.has_model and candidate.recipe.miniature_of is None


def test_the_identity_is_that_of_words_and_files(tmp_path: Path) -> None:
    """Checks script, a file behind `=` and a module; not the folder, the values of holes, or programs."""
    words = (sys.executable, "-m", "package.train", "--config=train.yaml", "{micro_batch=1}", "{grad_accum}")
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        (folder / "package").mkdir(parents=True)
        (folder / "package" / "train.py").write_text("train()")
        (folder / "train.yaml").write_text("rate: 1")
    first, second = (_space(folder, command=words).recipe for folder in folders)
    assert first.id == second.id
    assert (first.name, first.workload and first.workload.folder) == ("train.py", str(folders[0]))
    more_values = (*words[:-2], "{micro_batch=1,2}", "{grad_accum}")
    assert _space(folders[0], command=more_values).recipe.id == first.id
    for changed in ("package/train.py", "train.yaml"):
        path = folders[1] / changed
        before = path.read_text()
        path.write_text("other")
        assert _space(folders[1], command=words).recipe.id != first.id
        path.write_text(before)
    assert _space(folders[1], command=(*words, "--more")).recipe.id != first.id
    assert dataclasses.replace(first, seq_len=32).id != first.id


BAD: dict[tuple[str, ...], str] = {
    ("train.py",): "the command has no hole for the sequences of a device's micro-step",
    ("train.py", "micro_batch=1", "2"): "the shell expanded the braces: quote each hole",
    ("{micro_batch}", "{grad_accum}"): "hole {micro_batch} has no values: write {micro_batch=a,b}, or {{micro_batch}}",
    ("{micro_batch=1}", "{fsdp}"): "hole {fsdp} has no values",
    ("{micro_batch=1}", "{fsdp=a,b}", "{fsdp=a,b}"): "hole {fsdp} has its values twice",
    ("{micro_batch=1,2}",): "with several values of {micro_batch} all points train on equal tokens",
    ("{micro_batch=max}",): "with several values of {micro_batch} all points train on equal tokens",
    ("{micro_batch=max,1}", "{grad_accum}"): "micro-batches are whole numbers of at least 1, got 'max'",
    ("{micro_batch=1,x}", "{grad_accum}"): "micro-batches are whole numbers of at least 1, got 'x'",
    ("{micro_batch=0}", "{grad_accum}"): "micro-batches are whole numbers of at least 1, got '0'",
    ("{micro_batch=1,1}", "{grad_accum}"): "hole {micro_batch} has a value twice: 1,1",
    ("{micro_batch=1}", "{grad_accum=2}"): "hole {grad_accum} is what makes up --tokens-per-step and takes no values",
    ("{micro_batch=1}", "{gpus=2}"): "hole {gpus} is the devices of a node and takes no values",
    ("{micro_batch=1}", "{node_rank=0}"): "hole {node_rank} is the number of a node and takes no values",
    ("{micro_batch=1}", "--x={x=a,}"): "an empty value of {x} leaves its word out",
    ("{micro_batch=1}", "{stage = 1,2}"): "{stage = 1,2} is no hole: a name has letters, digits and _, and = follows",
    ("{micro_batch=1}", "--x={zero-stage=1,2}"): "{{zero-stage=1,2}} are the braces themselves",
}


@pytest.mark.parametrize("command", BAD)
def test_holes_that_mean_nothing_are_refused(command: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as refused:
        holes_of(command)
    assert BAD[command] in str(refused.value)


def test_a_micro_batch_that_is_written_in_two_ways_is_one() -> None:
    assert micro_batches_of(["2", "01", "1"]) == (1, 2)


def test_lengths_and_patterns_that_fit_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--tokens-per-step 1000 is no multiple of the 16 tokens of a sequence"):
        _space(tmp_path, tokens=1000)
    with pytest.raises(ValueError, match=r"--step-line '\(' is no regular expression"):
        space_of_command(COMMAND, folder=tmp_path, tokens_per_step=64, seq_len=16, step_line="(")


def test_flags_are_of_a_training_of_the_user_s_own_alone() -> None:
    with pytest.raises(ValueError, match="the axes of a user's own training, got flags 'a=b' with ddp"):
        Layout(engine="ddp", flags="a=b")
