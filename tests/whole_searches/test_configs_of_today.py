"""Searches of configurations as transformers writes them, on two CPU workers."""

from pathlib import Path

import pytest

from platform.study.result.result import StudyResult
from tests.search_spaces.test_configs_of_today import ACCEPTED, config_of
from tests.whole_searches.studies import ANSWERED, RAN, WITHOUT_MLFLOW, Run, start

pytestmark = [pytest.mark.ray, pytest.mark.search, pytest.mark.heavy]

BATCH = ("--set", "global_batch=8", "--set", "micro_batch=4")
"""One rung a layout."""
ONE_LAYOUT = ("attention=sdpa", "loss=plain", "grad_sync=last", "tp=1", "pp=1", "cp=1")
"""Values that leave a recipe one layout: a trial and a gate each."""


def test_two_precisions_have_a_winner_each_and_the_answer_says_what_fp8_costs(tmp_path: Path) -> None:
    config_of("llama").save_pretrained(tmp_path / "llama")
    changes = ("compute_precision=bf16,fp8_tensorwise", "engine=ddp", "checkpointing=none")
    sets = [word for change in (*changes, *ONE_LAYOUT) for word in ("--set", change)]
    options = ("--steps", "4", "--repeats", "0")
    argv = (str(tmp_path / "llama"), "--name", "price", *options, *BATCH, *sets)
    with start(tmp_path, "price", 1, *argv, environment=WITHOUT_MLFLOW) as session:
        session_end = session.end()
    assert session_end.code in ANSWERED, session_end.err
    result = StudyResult.of(Run(path=session.journal.parent, sessions=(session_end,)).history)
    speeds = [recipe_result.winner.tokens_per_s or 0.0 for recipe_result in result.of_study if recipe_result.winner]
    assert len(speeds) == 2 and session_end.out.count("Fastest of 1 ") == 2
    price = result.float8_price(result.of_study[1])
    assert price is not None and price.speed_ratio == pytest.approx(speeds[1] / speeds[0])
    assert price.steps >= 2 and price.mean_loss_change and abs(price.mean_loss_change) < 0.05
    assert price.sentence.startswith("fp8_tensorwise beside bf16: ")
    assert price.sentence in " ".join(session_end.out.split())


SPACE = """
import dataclasses
from pathlib import Path

import search_spaces


def together(spaces):
    first, *others = spaces
    return dataclasses.replace(first, name="families", further_recipes=tuple(other.recipe for other in others))


def space():
    folders = sorted(path.parent for path in Path(__file__).parent.glob("*/config.json"))
    spaces = [search_spaces.load(str(folder)) for folder in folders]
    return dataclasses.replace(together(spaces), miniature=together(space.miniature for space in spaces))
"""


@pytest.fixture(scope="module")
def families(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    """Returns one study with a recipe for each family that is asked for, of one layout and one rung each."""
    folder = tmp_path_factory.mktemp("families")
    for item in request.session.items:
        kind = getattr(getattr(item, "callspec", None), "params", {}).get("kind")
        if kind and item.path == request.path:
            config_of(kind).save_pretrained(folder / kind)
    (folder / "families.py").write_text(SPACE)
    changes = ("seq_len=64", "engine=fsdp", "zero_stage=3", "attention=sdpa", "loss=chunked", "checkpointing=full",
               "compile=none", "grad_sync=last", "dp_shard=2", "virtual=1")  # fmt: skip
    sets = [word for change in changes for word in ("--set", change)]
    options = ("--steps", "4", "--repeats", "0", "--time-budget-s", "1200", *BATCH, *sets)
    argv = (str(folder / "families.py"), "--name", "families", *options)
    with start(folder, "families", 1, *argv, environment=WITHOUT_MLFLOW) as session:
        session_end = session.end()
    assert session_end.code in ANSWERED, session_end.err
    return StudyResult.of(Run(path=session.journal.parent, sessions=(session_end,)).history)


@pytest.mark.parametrize("kind", ACCEPTED)
def test_a_model_of_the_family_is_searched(kind: str, families: StudyResult) -> None:
    """Checks that it has a winner with a figure; that gradients are right is the contract's. `-k` picks families."""
    (of_family,) = [result for result in families.of_study if result.recipe.model.name == kind]
    assert of_family.leader is not None and of_family.leader.main_run.tokens_per_s
    assert of_family.leader.main_run.outcome in RAN
