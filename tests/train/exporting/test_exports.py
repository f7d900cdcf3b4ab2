"""Exports are run as their users run them, by CPU processes, and train as this project does."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import platform.train.exporting.command as command  # pyright takes `from platform import` for the standard module
from platform.train.training_folder import TrainingFolder, steps_of
from tests.training.environment import ENVIRONMENT
from tests.training.layout_file import write_layout
from tests.training.values import DDP, RECIPE, STEP
from trainers.spec.layout import Layout
from trainers.training.export import write_config

pytestmark = pytest.mark.contract

IN_ORDER = dataclasses.replace(RECIPE, data_order="file")
STEPS = 8
ONE = Layout(engine="ddp")
ZERO_0 = Layout(engine="deepspeed", zero_stage=0, dp_replicate=2)
ZERO_1 = Layout(engine="deepspeed", zero_stage=1, dp_shard=2)
ZERO_3 = Layout(engine="deepspeed", zero_stage=3, dp_shard=2, grad_sync="every")
SENTENCE = re.compile(
    r"The same layout in (\w+): [\d.]+% (?:slower|faster): [\d,]+ tokens/s \(±[\d.]+%\), in this project [\d,]+"
    r" tokens/s \(±[\d.]+%\), over 5 steps each, .*; loss after 8 steps ([\d.]+) and ([\d.]+)\."
)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a transformers folder with which both trainings begin."""
    folder = tmp_path_factory.mktemp("weights")
    write_config(RECIPE.model, folder)
    torch.manual_seed(3)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("program", "layout"),
    [
        pytest.param("accelerate", ONE, marks=pytest.mark.heavy),
        pytest.param("accelerate", DDP, marks=pytest.mark.heavy),
        pytest.param("deepspeed", ZERO_1, marks=pytest.mark.heavy),
    ],
    ids=["accelerate alone", "accelerate", "deepspeed 1"],
)
def test_an_export_has_the_losses_of_this_project_and_its_speed_stands_beside(
    program: str, layout: Layout, weights: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    target = write_layout(tmp_path / "layout.json", layout, recipe=IN_ORDER)
    argv = [str(target), "--to", program, "--tokens", str(40 * STEP), "--start-from", str(weights), "--device", "cpu"]
    assert command.main([*argv, "--out", str(tmp_path / "out"), "--run", str(STEPS)]) == 0, capfd.readouterr().err
    output = capfd.readouterr()
    assert (matched := SENTENCE.fullmatch(output.out.strip())), output.out
    assert matched[1] == program
    assert float(matched[2]) == pytest.approx(float(matched[3]), rel=2e-4)
    losses = json.loads((tmp_path / "out" / "steps.json").read_text())["losses"]
    assert len(losses) == STEPS and losses[-1] < losses[0]
    assert "- held-out losses and MLflow: the script only trains\n" in output.err
    assert not list(tmp_path.glob("out/checkpoints/*")) and not (tmp_path / "out" / "trained").exists()


def launched(out: Path, *argv: str) -> tuple[list[float], str]:
    """Runs an export as its users do; returns the losses of its steps and what it printed."""
    environment = {**ENVIRONMENT, "PYTHON": sys.executable, "DS_ACCELERATOR": "cpu"}
    command = [str(out / "launch.sh"), *argv]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr[-3000:]
    return json.loads((out / "steps.json").read_text())["losses"], completed.stdout


@pytest.mark.parametrize(
    ("program", "layout"),
    [
        ("accelerate", ONE),
        pytest.param("accelerate", DDP, marks=pytest.mark.heavy),
        pytest.param("deepspeed", ZERO_0, marks=pytest.mark.heavy),
        pytest.param("deepspeed", ZERO_1, marks=pytest.mark.heavy),
        pytest.param("deepspeed", ZERO_3, marks=pytest.mark.heavy),
    ],
    ids=["accelerate alone", "accelerate", "deepspeed 0", "deepspeed 1", "deepspeed 3"],
)
def test_a_script_goes_on_from_its_checkpoint_and_ends_with_a_model_and_its_tokenizer(
    program: str, layout: Layout, tmp_path: Path
):
    """Checks a training whose last checkpoint and model are lost: its last step is repeated bit for bit."""
    out, recipe = tmp_path / "out", dataclasses.replace(IN_ORDER, decay="matrices")
    target = write_layout(tmp_path / "layout.json", layout, recipe=recipe)
    argv = [str(target), "--to", program, "--tokens", str(STEPS * STEP), "--device", "cpu", "--out", str(out)]
    assert command.main(argv) == 0
    text = (out / "launch.sh").read_text()
    assert f"# {recipe.label}. {recipe.regularization}\n# Data: included, " in text
    losses, _ = launched(out, "--checkpoint-s", "0")
    assert len(losses) == STEPS and len(list((out / "checkpoints").glob("checkpoint-*"))) == 2
    model = AutoModelForCausalLM.from_pretrained(out / "trained")
    shutil.rmtree(out / "trained")
    (out / "checkpoints" / f"checkpoint-{STEPS}" / "complete").unlink(missing_ok=True)
    again, _ = launched(out)
    assert again == losses[-1:]
    repeated = AutoModelForCausalLM.from_pretrained(out / "trained")
    assert all(map(torch.equal, model.state_dict().values(), repeated.state_dict().values()))
    assert repeated.num_parameters() == RECIPE.model.num_parameters and repeated.dtype == torch.float32
    tokenizer = AutoTokenizer.from_pretrained(out / "trained")
    assert tokenizer("a\u00fc\n")["input_ids"] == [*"a\u00fc\n".encode()]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("program", "layout"), [("accelerate", DDP), ("deepspeed", ZERO_1)], ids=["accelerate", "deepspeed"]
)
def test_a_script_that_is_ended_saves_first(program: str, layout: Layout, tmp_path: Path):
    out = tmp_path / "out"
    target = write_layout(tmp_path / "layout.json", layout, recipe=IN_ORDER)
    argv = [str(target), "--to", program, "--tokens", str(100_000 * STEP), "--device", "cpu", "--out", str(out)]
    assert command.main([*argv, "--data", str(_tokens(tmp_path))]) == 0
    environment = {**ENVIRONMENT, "PYTHON": sys.executable, "DS_ACCELERATOR": "cpu"}
    with subprocess.Popen([str(out / "launch.sh"), "--checkpoint-s", "0.1"], env=environment) as process:
        while not list((out / "checkpoints").glob("*/complete")):
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        process.wait(300)
    steps = [int(path.parent.name.rpartition("-")[2]) for path in (out / "checkpoints").glob("*/complete")]
    losses, _ = launched(out, "--steps", str(max(steps) + 3))
    assert len(losses) == 3


def _tokens(folder: Path) -> Path:
    path = folder / "tokens.parquet"
    rows = torch.randint(0, 256, (400, 400), generator=torch.Generator().manual_seed(0)).tolist()
    pq.write_table(pa.table({"tokens": rows}), path)
    return path


def test_torchrun_trains_without_ray_and_the_training_goes_on_and_is_exported(tmp_path: Path):
    target = write_layout(tmp_path / "layout.json", DDP)
    out, away = tmp_path / "out", tmp_path / "away"
    argv = ["--to", "torchrun", "--tokens", str(12 * STEP), "--device", "cpu", "--out", str(out)]
    assert command.main([str(target), *argv]) == 0
    (away / "ray").mkdir(parents=True)
    (away / "ray" / "__init__.py").write_text("raise ImportError('a training under torchrun needs no Ray')")
    environment = {**ENVIRONMENT, "PYTHON": sys.executable, "PYTHONPATH": str(away)}
    # The folder without Ray comes first on the path: the script puts the checkout before it, where no ray is.
    environment |= {"LAYOUT_SEARCH": str(Path(__file__).parents[3])}
    completed = subprocess.run([str(out / "launch.sh")], env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr[-3000:]
    assert f"Trained on {12 * STEP} tokens" in completed.stdout
    folder = TrainingFolder(out)
    assert [
        step for record in steps_of(folder.read_records()) for step in range(record.first_step, record.last_step + 1)
    ] == [*range(1, 13)]
    assert folder.tokens_saved() == 12 * STEP
    assert command.main([str(out), "--out", str(tmp_path / "model")]) == 0
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").num_parameters() == RECIPE.model.num_parameters


def test_a_rank_that_refuses_ends_with_its_sentence_and_code(tmp_path: Path):
    command = [sys.executable, "-m", "trainers.training.torchrun", str(tmp_path)]
    completed = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert completed.returncode == 2 and "give the folder of a training" in completed.stderr
    assert "Traceback" not in completed.stderr


@pytest.mark.heavy
def test_torchrun_refuses_in_one_sentence_what_its_devices_cannot_run(tmp_path: Path):
    recipe = dataclasses.replace(RECIPE, compute_precision="bf16")
    target = write_layout(tmp_path / "layout.json", dataclasses.replace(DDP, loss="quack"), recipe=recipe)
    argv = ["--to", "torchrun", "--tokens", str(12 * STEP), "--device", "cpu", "--out", str(tmp_path / "out")]
    assert command.main([str(target), *argv]) == 0
    environment = {**ENVIRONMENT, "PYTHON": sys.executable, "LAYOUT_SEARCH": str(Path(__file__).parents[3])}
    launch = [str(tmp_path / "out" / "launch.sh")]
    completed = subprocess.run(launch, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode != 0 and "Traceback" not in completed.stderr.partition("torch/distributed")[0]
    assert completed.stderr.count("error: loss quack needs a CUDA device of compute capability 9.0 or more") == 1


def test_a_model_s_config_is_written_without_warnings_of_libraries_that_are_not_used(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.training.values import MODEL\n"
        "from trainers.training.export import write_config\n"
        "write_config(MODEL, Path(sys.argv[1])); print(*sorted({'torchao', 'deepspeed'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    child = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=300)
    assert (child.returncode, child.stdout, child.stderr) == (0, "\n", "")
    assert (tmp_path / "config.json").exists()


def test_a_run_longer_than_the_training_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    target = write_layout(tmp_path / "layout.json", DDP)
    argv = ["--to", "torchrun", "--tokens", str(4 * STEP), "--device", "cpu", "--out", str(tmp_path / "out")]
    assert command.main([str(target), *argv, "--run", "10"]) == 2
    expected = f"of which 3 warm up, and the training has 4: give --tokens {5 * STEP} or more"
    assert expected in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.heavy
def test_an_end_before_the_steps_that_were_asked_for_is_told(tmp_path: Path):
    target, out = write_layout(tmp_path / "layout.json", DDP), tmp_path / "out"
    argv = ["--to", "torchrun", "--tokens", str(2 * STEP - 1), "--device", "cpu", "--out", str(out)]
    assert command.main([str(target), *argv]) == 0
    environment = {**ENVIRONMENT, "PYTHON": sys.executable}
    for options, words in (
        (["--steps", "9"], "Ended after step 2, without a checkpoint."),
        ([], f"Trained on {2 * STEP:,} tokens;"),
    ):
        launch = [str(out / "launch.sh"), *options]
        completed = subprocess.run(launch, env=environment, capture_output=True, text=True, check=False)
        assert completed.returncode == 0 and words in completed.stdout, completed.stdout + completed.stderr[-2000:]
