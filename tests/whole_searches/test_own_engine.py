"""An engine outside this project, named by its import path, is searched, recorded, mirrored, reported and resumed."""

import csv
import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import platform.plan.__main__ as plan  # pyright takes `from platform import` for the standard module
import platform.report.__main__ as report
import platform.validate.__main__ as validate
from platform.common.errors import InputError
from platform.cost_model import engines as cost_engines
from platform.report.measurement_table import strategy
from platform.search.session.header import check_engines
from platform.study.layout_file import read_layout
from tests.contract.cases import BLOOM, recipe
from tests.samples import header
from tests.whole_searches.session import write_space
from tests.whole_searches.studies import ANSWERED, RAN, Run, start
from trainers.spec import engines
from trainers.spec.layout import Layout
from trainers.spec.support import standing_refusal

SOURCE = Path(__file__).parents[1] / "contract" / "own_engine.py"
MEASURED = Path(__file__).parents[2] / "docs" / "measurements"
ENGINE = "own_engine_of_a_test:ENGINE"


def _write_engine(folder: Path) -> Path:
    folder.mkdir()
    path = folder / "own_engine_of_a_test.py"
    path.write_text(SOURCE.read_text())
    return path


@pytest.fixture
def engine_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields the engine's file, in a folder on the path."""
    path = _write_engine(tmp_path / "modules")
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.delitem(sys.modules, path.stem, raising=False)
    engines.imported_rules.cache_clear()
    yield path
    sys.modules.pop(path.stem, None)
    engines.imported_rules.cache_clear()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Searched(Run):
    """A study of the engine over two accumulations."""

    environment: dict[str, str]
    """Environment with which a search can import the engine."""

    @property
    def engine_file(self) -> Path:
        return Path(self.environment["PYTHONPATH"]) / "own_engine_of_a_test.py"


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Searched:
    """Returns the study, searched once for the tests of the engine and those of the accumulations."""
    folder = tmp_path_factory.mktemp("own")
    environment = {"PYTHONPATH": str(_write_engine(folder / "modules").parent)}
    space = write_space(folder / "space.py", seq_len=32, axes={"engine": ("ddp",)}, micro_batches=(1, 2))
    arguments = (str(space), "--name", "own", "--set", f"engine={ENGINE}", "--set", "grad_accum=1,2")
    with start(folder, "own", 1, *arguments, environment=environment) as session:
        session_end = session.end()
    return Searched(path=folder / "studies" / "own", sessions=(session_end,), environment=environment)


@pytest.mark.heavy
@pytest.mark.ray
@pytest.mark.search
class TestSearched:
    """One real search of two trials: what is true of the engine, and of accumulations, each of which makes a recipe."""

    def test_it_is_measured_recorded_reported_and_mirrored(self, searched: Searched) -> None:
        (session_end,) = searched.sessions
        assert session_end.code in ANSWERED, session_end.err
        measured = {
            (measurement.layout.engine, measurement.outcome in RAN, measurement.num_devices)
            for measurement in searched.measured
        }
        assert measured == {(ENGINE, True, 2)}
        assert ENGINE in session_end.out
        header_line, source_hash = searched.history.header, hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
        assert header_line is not None and header_line.engines == {ENGINE: source_hash}
        assert _engines_in_mlflow(searched.path.parent) == {ENGINE}

    def test_each_accumulation_has_its_ladder_its_winner_and_its_row(self, searched: Searched) -> None:
        """Checks also that each row states the global batch that its accumulation makes."""
        (session_end,) = searched.sessions
        points = {
            (measurement.batch.grad_accum, measurement.batch.micro_batch): measurement
            for measurement in searched.measured
            if not measurement.repeat
        }
        batches = {point: measurement.global_batch for point, measurement in points.items()}
        assert batches == {(1, 1): 2, (1, 2): 4, (2, 1): 4, (2, 2): 8}
        assert len({measurement.trial_id for measurement in points.values()}) == 2, (
            "a trial climbs the micro-batches of one of them"
        )
        for measurement in points.values():
            assert measurement.tokens_per_s is not None and measurement.step_time_s is not None
            assert measurement.tokens_per_s * measurement.step_time_s == pytest.approx(measurement.global_batch * 32)
        assert "What accumulation buys, and the global batch it makes" in session_end.out
        if session_end.code == 0:  # else no layout is named for the first recipe
            first = read_layout(searched.path / "layout.json")
            assert first.recipe is not None and first.batch is not None
            assert (first.recipe.grad_accum, first.recipe.global_batch) == (0, 2 * first.batch.micro_batch)

    def test_a_resume_wants_it_unchanged(self, searched: Searched) -> None:
        folder = searched.path.parent.parent
        before = searched.engine_file.read_text()
        searched.engine_file.write_text(before + "\n# another version\n")
        with start(folder, "own", 2, "--resume", "own", environment=searched.environment) as session:
            changed = session.end()
        with start(folder, "own", 3, "--resume", "own") as session:
            gone = session.end()
        assert changed.code == gone.code == 2
        assert f"engine {ENGINE} has changed since the study began" in changed.err
        assert f"engine {ENGINE} cannot be imported: ModuleNotFoundError" in gone.err
        assert "Traceback" not in changed.err + gone.err

    def test_it_is_reported_where_it_cannot_be_imported(
        self, searched: Searched, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert report.main(["own", "--studies", str(searched.path.parent), "--no-mlflow"]) in ANSWERED
        assert ENGINE in capsys.readouterr().out


def _engines_in_mlflow(studies: Path) -> set[str]:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{studies / 'mlflow.db'}")
    experiments = [search_experiment.experiment_id for search_experiment in client.search_experiments()]
    return {run.data.params["engine"] for run in client.search_runs(experiments) if "engine" in run.data.params}


def test_a_layout_of_it_is_read_and_named_where_it_cannot_be_imported() -> None:
    """Checks that the engine is not imported to read the layout: a journal may be somebody else's."""
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
    assert "has no tp, got tp 2" in str(refusal(tp=2))
    assert "keeps everything on the device" in str(refusal(offload="all"))
    assert "has no bucket size to set" in str(refusal(bucket_mib=25))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("raise RuntimeError('no licence')", "cannot be imported: RuntimeError: no licence"),
        ("ENGINE = 3", "is no trainers.spec.engines.rules.EngineRules, got int"),
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


def _name_costs(engine_file: Path) -> None:
    """Makes the engine's rules name the costs of DDP in later imports."""
    costs = "    costs='platform.cost_model.engines.ddp:COSTS',\n"
    engine_file.write_text(engine_file.read_text().replace("    title=", f"{costs}    title="))
    sys.modules.pop(engine_file.stem, None)
    engines.imported_rules.cache_clear()


def test_its_rows_are_validated_by_the_costs_that_its_rules_name(
    engine_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks that DDP's measured rows, labelled as the engine's, have the same errors when the same costs predict
    them.
    """
    costs = dict(cost_engines._COSTS)  # type: ignore[reportPrivateUsage]
    monkeypatch.setattr(cost_engines, "_COSTS", {name: costs[name] for name in cost_engines.ENGINES})
    with (MEASURED / "gpt2-exhaustive-1xH200.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["engine"] == "ddp"]

    def table(engine: str) -> str:
        path = tmp_path / "table.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows({**row, "engine": engine} for row in rows)
        return str(path)

    assert validate.main([table("ddp"), "--json"]) == 0
    of_ddp = json.loads(capsys.readouterr().out)
    assert of_ddp["overall"]["rows_scored"] > 20
    assert validate.main([table(ENGINE)]) == 2
    assert f"engine '{ENGINE}' is not one of" in (err := capsys.readouterr().err) and "--engine names one" in err
    assert validate.main([table(ENGINE), "--engine", ENGINE]) == 2
    assert "has no costs in its rules (Rules.costs)" in capsys.readouterr().err
    assert validate.main([table(ENGINE), "--engine", "nowhere.at_all:ENGINE"]) == 2
    assert "cannot be imported: ModuleNotFoundError" in capsys.readouterr().err
    _name_costs(engine_file)
    assert validate.main([table(ENGINE), "--engine", ENGINE, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["overall"] == of_ddp["overall"]


def test_it_is_planned_and_predicted_where_its_rules_name_its_costs(
    engine_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "gpt2",
        "--cluster",
        "1xH200",
        "--set",
        "compile=none",
        "--set",
        "loss=plain",
        "--set",
        "cuda_graphs=off",
        "--json",
    ]

    def best(engine: str) -> dict[str, Any]:
        assert plan.main([*arguments, "--set", f"engine={engine}"]) == 0
        return json.loads(capsys.readouterr().out)["recipes"][0]["layouts"][0]

    assert plan.main([*arguments, "--set", f"engine={ENGINE}"]) == 2
    assert "the cost model does not know engine" in capsys.readouterr().err
    _name_costs(engine_file)
    mine, ddp = best(ENGINE), best("ddp")
    assert mine["layout"] != ddp["layout"]
    assert {name: mine[name] for name in ("step_time_s", "needed_gib")} == {
        name: ddp[name] for name in ("step_time_s", "needed_gib")
    }
