"""An engine outside this project, named by its import path, is searched, recorded, mirrored, reported and resumed."""

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import platform.plan as plan  # pyright takes `from platform import` for the standard module
import platform.report
from platform.common.errors import InputError
from platform.reports.table import strategy
from platform.session.first_line import check_engines
from tests.contract.cases import BLOOM, recipe
from tests.samples import header
from tests.search.session import write_space
from tests.search.studies import Run, start
from trainers import engines
from trainers.support import standing_refusal
from trainers.values.layout import Layout
from trainers.values.measurement import Outcome

SOURCE = Path(__file__).parents[1] / "contract" / "own_engine.py"
ENGINE = "own_engine_of_a_test:ENGINE"


@pytest.fixture
def engine_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The engine's file, in a folder on the path."""
    path = tmp_path / "modules" / "own_engine_of_a_test.py"
    path.parent.mkdir()
    path.write_text(SOURCE.read_text())
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.delitem(sys.modules, path.stem, raising=False)
    engines.imported_rules.cache_clear()
    yield path
    sys.modules.pop(path.stem, None)
    engines.imported_rules.cache_clear()


@pytest.mark.ray
@pytest.mark.search
def test_it_is_searched_and_mirrored_and_a_resume_wants_it_unchanged(tmp_path: Path, engine_file: Path) -> None:
    space = write_space(tmp_path / "space.py", axes={"engine": ("ddp",)}, micro_batches=(1,))
    environment = {"PYTHONPATH": str(engine_file.parent)}
    asked = (str(space), "--name", "own", "--set", f"engine={ENGINE}")
    with start(tmp_path, "own", 1, *asked, environment=environment) as session:
        ended = session.end()
    assert ended.code == 0, ended.err
    run = Run(path=tmp_path / "studies" / "own", sessions=(ended,))
    (measured,) = run.measured
    assert (measured.layout.engine, measured.outcome, measured.num_devices) == (ENGINE, Outcome.OK, 2)
    assert ENGINE in ended.out
    assert run.history.header is not None and run.history.header.engines == {ENGINE: engines.source_hash(ENGINE)}
    assert _engines_in_mlflow(tmp_path) == {ENGINE}

    engine_file.write_text(engine_file.read_text() + "\n# another version\n")
    with start(tmp_path, "own", 2, "--resume", "own", environment=environment) as session:
        changed = session.end()
    with start(tmp_path, "own", 3, "--resume", "own") as session:
        gone = session.end()
    assert changed.code == gone.code == 2
    assert f"engine {ENGINE} has changed since the study began" in changed.err
    assert f"engine {ENGINE} cannot be imported: ModuleNotFoundError" in gone.err
    assert "Traceback" not in changed.err + gone.err

    engine_file.unlink()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert platform.report.main(["own", "--studies", str(tmp_path / "studies"), "--no-mlflow"]) == 0
    assert ENGINE in out.getvalue()


def _engines_in_mlflow(folder: Path) -> set[str]:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder / 'studies' / 'mlflow.db'}")
    experiments = [each.experiment_id for each in client.search_experiments()]
    return {run.data.params["engine"] for run in client.search_runs(experiments) if "engine" in run.data.params}


def test_a_layout_of_it_is_read_and_named_where_it_cannot_be_imported() -> None:
    """A journal may be somebody else's: nothing of it is imported to read it."""
    layout = Layout(engine="nowhere.at_all:ENGINE", dp_replicate=2)
    assert layout.label.startswith("nowhere.at_all:ENGINE, ")
    assert strategy(layout) == "ddp"
    refusal = standing_refusal(recipe(BLOOM), layout, 2)
    assert refusal is not None and refusal.startswith("engine nowhere.at_all:ENGINE cannot be imported: ModuleNotFound")


def test_what_it_does_not_state_it_refuses(engine_file: Path) -> None:
    def refusal(**changes: object) -> str | None:
        layout = Layout(**{"engine": ENGINE, "dp_replicate": 2, **changes})  # type: ignore[arg-type]
        return standing_refusal(recipe(BLOOM), layout, layout.world_size)

    assert refusal() is None
    assert refusal(zero_stage=3) == f"zero_stage of {ENGINE} must be one of 0, got 3"
    assert "has grad_sync 'last' alone" in str(refusal(grad_sync="every"))
    assert "has no tp yet" in str(refusal(tp=2))
    assert "keeps everything on the device" in str(refusal(offload="all"))
    assert "has no buckets of a size to be set" in str(refusal(bucket_mib=25))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("raise RuntimeError('no licence')", "cannot be imported: RuntimeError: no licence"),
        ("ENGINE = 3", "is no trainers.engines.rules.Rules, got int"),
        ("from tests.contract.own_engine import ENGINE", "has rules of another name"),
    ],
)
def test_what_is_no_engine_is_one_sentence(engine_file: Path, text: str, sentence: str) -> None:
    engine_file.write_text(text)
    with pytest.raises(ValueError, match=sentence):
        engines.imported_rules(ENGINE)


def test_a_study_that_named_none_goes_on_whatever_is_on_the_path(engine_file: Path) -> None:
    check_engines(header("plain"))
    check_engines(header("own", engines={ENGINE: engines.source_hash(ENGINE)}))
    with pytest.raises(InputError, match="has changed since the study began"):
        check_engines(header("own", engines={ENGINE: "0123456789ab"}))


def test_it_is_planned_and_predicted_where_its_rules_name_its_costs(
    engine_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["gpt2", "--cluster", "1xH200", "--set", "compile=none", "--set", "loss=plain", "--json"]

    def best(engine: str) -> dict[str, Any]:
        assert plan.main([*asked, "--set", f"engine={engine}"]) == 0
        return json.loads(capsys.readouterr().out)["recipes"][0]["layouts"][0]

    assert plan.main([*asked, "--set", f"engine={ENGINE}"]) == 2
    assert "the cost model does not know engine" in capsys.readouterr().err
    costs = "    costs='platform.cost_model.engines.ddp:COSTS',\n"
    engine_file.write_text(engine_file.read_text().replace("    title=", f"{costs}    title="))
    sys.modules.pop(engine_file.stem)
    engines.imported_rules.cache_clear()
    mine, ddp = best(ENGINE), best("ddp")
    assert mine["layout"] != ddp["layout"]
    assert {name: mine[name] for name in ("step_time_s", "needed_gib")} == {
        name: ddp[name] for name in ("step_time_s", "needed_gib")
    }
