"""A user's own command is searched to a confirmed answer, resumed, reported and mirrored: a loop of twenty lines, and
transformers' Trainer.
"""

import collections
import datetime
import json
import shlex
import shutil
import statistics
import sys
from pathlib import Path

import pytest

import platform.report.__main__ as report  # pyright takes `from platform import` for the standard module
from platform.common.errors import NOT_RESOLVED
from platform.study.result.result import StudyResult
from platform.study.study import read
from tests.train.pages import ROOT, followed
from tests.whole_searches.own_page import whole_example
from tests.whole_searches.studies import ANSWERED, RAN, WITHOUT_MLFLOW, Run, nothing_twice, start
from trainers.commands import step_lines
from trainers.records.measurement import Outcome

TRL = Path(__file__).parent / "trl_training.py"
ACCELERATE = Path(__file__).parent / "accelerate_training.py"
LOOP = """
import argparse, json, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
parser.add_argument("--accum", type=int)
parser.add_argument("--mode")
parser.add_argument("--out")
options = parser.parse_args()
assert os.listdir(options.out) == []
with open(os.path.dirname(__file__) + "/out", "a") as file:
    file.write(options.out + "\\n")
if options.mode == "broken":
    raise ValueError("no such mode")
if options.mode == "large" and options.batch > 2:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
for number in range(10**6):
    began = time.perf_counter()
    for _ in range(options.accum):
        time.sleep(0.02 + 0.002 * options.batch)
    line = {"tokens": options.batch * options.accum * 2 * 16, "s": time.perf_counter() - began, "loss": 3.0}
    with open(os.environ["LAYOUT_SEARCH_STEPS"], "a") as file:
        file.write(json.dumps(line) + "\\n")
"""


@pytest.mark.heavy
@pytest.mark.ray
@pytest.mark.search
def test_a_loop_that_tells_its_steps_is_searched_and_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Checks the length that the first step tells, a broken value, the winner's command, a second session, trust, and
    that nothing of a run is left.
    """
    (tmp_path / "loop.py").write_text(LOOP)
    words = ("--batch", "{micro_batch=1,2}", "--accum", "{grad_accum}", "--out", "{out}")
    command = ("--", sys.executable, str(tmp_path / "loop.py"), *words, "--mode", "{mode=plain,broken}")
    options = ("--name", "own", "--searcher", "sweep", "--steps", "5", "--repeats", "1", "--tokens-per-step", "128")
    environment = {**WITHOUT_MLFLOW, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with start(tmp_path, "own", 1, *options, "--max-trials", "1", *command, environment=environment) as session:
        first = session.end()
    assert "shows the length of a sequence" in first.err
    shutil.rmtree(tmp_path / "cache")
    with start(tmp_path, "own", 2, "--resume", "own", environment=environment) as session:
        refused = session.end()
    assert refused.code == 2 and "which this user did not begin to search" in refused.err
    with start(tmp_path, "own", 3, "--resume", "own", "--trust", environment=environment) as session:
        resumed = session.end()
    run = Run(path=tmp_path / "studies" / "own", sessions=(first, refused, resumed))
    assert resumed.code in ANSWERED, resumed.err
    nothing_twice(run)
    header, by_mode = run.history.header, _outcomes(run)
    assert header is not None and (header.recipes[0].seq_len, header.recipes[0].global_batch) == (16, 8)
    assert by_mode["mode=broken"] == {Outcome.FAILED} and by_mode["mode=plain"] <= RAN
    (broken,) = [measured for measured in run.measured if measured.outcome is Outcome.FAILED]
    assert "ValueError: no such mode" in broken.reason
    assert "raise ValueError" in (run.path / f"output-{broken.trial_id}.txt").read_text()
    best = StudyResult.of(run.history).of_study[0].winner
    if best is not None:  # on a busy machine it may not be resolved
        assert best.layout.label == "mode=plain" and best.repeat
        line = (run.path / "command.txt").read_text()
        assert shlex.split(line)[-2:] == ["--mode", "plain"] and line.strip() in resumed.out
        assert "not gated" in resumed.out and "first losses" in resumed.out
    assert report.main(["own", "--studies", str(run.path.parent), "--no-mlflow"]) in ANSWERED
    assert "mode=plain" in capsys.readouterr().out
    assert statistics.median(_overheads_s(run.path)) < 2
    folders = (tmp_path / "out").read_text().split()
    assert len(set(folders)) == len(folders) > len(run.measured)
    assert not [folder for folder in folders if Path(folder).parent.exists()]


def _overheads_s(path: Path) -> list[float]:
    """Returns the seconds of each trial beside those of its command's own processes."""
    began_s: dict[str, float] = {}
    overheads_s: list[float] = []
    own_s: collections.Counter[str] = collections.Counter()
    for line in map(json.loads, (path / "journal.jsonl").read_text().splitlines()):
        at_s = datetime.datetime.fromisoformat(line["at"]).timestamp()
        if line["kind"] == "trial_start":
            began_s[line["trial_id"]] = at_s
        elif line["kind"] == "measurement":
            measured = line["measurement"]
            own_s[measured["trial_id"]] += (measured["startup_s"] or 0) + sum(measured["step_times_s"])
        elif line["kind"] == "trial_end":
            overheads_s.append(at_s - began_s[line["trial_id"]] - own_s[line["trial_id"]])
    return overheads_s


@pytest.mark.ray
@pytest.mark.search
@pytest.mark.heavy
def test_the_largest_micro_batch_is_found_and_recorded(tmp_path: Path) -> None:
    """Checks what is measured of four sizes, in one trial of each layout, and that nothing of it is missing after."""
    (tmp_path / "loop.py").write_text(LOOP)
    words = (
        "--batch",
        "{micro_batch=max}",
        "--accum",
        "{grad_accum}",
        "--out",
        "{out}",
        "--mode",
        "{mode=plain,large}",
    )
    command = ("--", sys.executable, str(tmp_path / "loop.py"), *words)
    options = ("--name", "own", "--searcher", "sweep", "--steps", "5", "--repeats", "0", "--seq-len", "16")
    environment = {**WITHOUT_MLFLOW, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with start(tmp_path, "own", 1, *options, "--tokens-per-step", "256", *command, environment=environment) as session:
        ended = session.end()
    run = Run(path=tmp_path / "studies" / "own", sessions=(ended,))
    assert ended.code in ANSWERED, ended.err
    sizes = [(m.layout.label, m.batch.micro_batch, m.outcome is Outcome.OOM) for m in run.measured if not m.repeat]
    assert sizes == [("mode=plain", 8, False), ("mode=large", 2, False), ("mode=large", 4, True)]
    nothing_twice(run)
    with start(tmp_path, "own", 2, "--resume", "own", environment=environment) as session:
        assert "nothing is left to run" in session.end().err


def _outcomes(run: Run) -> dict[str, set[Outcome]]:
    labels = {measured.layout.label for measured in run.measured}
    return {label: {m.outcome for m in run.measured if m.layout.label == label} for label in labels}


@pytest.mark.ray
@pytest.mark.search
@pytest.mark.heavy
def test_the_page_s_whole_example_is_searched_to_a_confirmed_answer(tmp_path: Path) -> None:
    """Checks the commands of docs/your-training.md as they stand there: transformers' Trainer under torchrun, with the
    callback as it is copied.
    """
    for tree in ("tests", "trainers"):
        (tmp_path / tree).symlink_to(ROOT / tree)
    script, _ = whole_example()
    with followed(f"{script} || [ $? = {NOT_RESOLVED} ]", tmp_path, timeout_s=1800):
        _check_of_trainer(tmp_path / "my-project" / "studies" / "train-1")
    output = (tmp_path / "output").read_text()
    assert "not gated" in output and "Its command: torchrun --nproc-per-node 2 train.py" in " ".join(output.split())


@pytest.mark.ray
@pytest.mark.search
@pytest.mark.heavy
def test_accelerate_s_template_is_searched(tmp_path: Path) -> None:
    """Checks docs/templates/accelerate.yaml, with values that suit a CPU worker, beside a loop of its own."""
    shutil.copy(ACCELERATE, tmp_path / "train.py")
    text = (ROOT / "docs" / "templates" / "accelerate.yaml").read_text()
    changes = {
        "micro_batch: max": "micro_batch: [2, 4]",
        ", inductor]": "]",
        "131072": "256",
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "run.yaml").write_text(text)
    environment = {**WITHOUT_MLFLOW, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    options = (str(tmp_path / "run.yaml"), "--gpus", "1", "--name", "own", "--repeats", "0", "--steps", "5")
    with start(tmp_path, "own", 1, *options, environment=environment) as session:
        ended = session.end()
    assert ended.code in ANSWERED, ended.err
    run = Run(path=tmp_path / "studies" / "own", sessions=(ended,))
    measured = [each for each in run.measured if not each.repeat]
    assert [(each.batch.micro_batch, each.batch.grad_accum) for each in measured] == [(2, 4), (4, 2)]
    assert all(each.outcome in RAN and each.losses and each.recipe.seq_len == 32 for each in measured)
    assert run.history.header is not None and "accelerate launch --num_processes 1" in ended.out


@pytest.mark.ray
@pytest.mark.search
@pytest.mark.heavy
def test_trl_is_searched_on_two_workers(tmp_path: Path) -> None:
    """Checks TRL, which no lock holds: `pip install trl` where its test is to run."""
    pytest.importorskip("trl", reason="to run this test, pip install trl, which no lock holds")
    shutil.copy(TRL, tmp_path / "train.py")
    shutil.copy(step_lines.__file__, tmp_path)
    torchrun = str(Path(sys.executable).parent / "torchrun")
    flags = (
        *("--packing", "true", "--packing_strategy", "wrapped", "--max_length", "64", "--bf16", "false"),
        *("--output_dir", "{out}", "--max_steps", "1000", "--logging_steps", "1", "--use_cpu", "--report_to", "none"),
        *("--save_strategy", "no", "--per_device_train_batch_size", "{micro_batch=2,8}"),
        *("--gradient_accumulation_steps", "{grad_accum}", "--gradient_checkpointing", "{ckpt=true,false}"),
    )
    command = ("--", torchrun, "--nproc-per-node", "{gpus}", str(tmp_path / "train.py"), *flags)
    options = ("--name", "hf", "--repeats", "2", "--tokens-per-step", "2048")
    environment = {**WITHOUT_MLFLOW, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with start(tmp_path, "hf", 1, *options, *command, environment=environment) as session:
        ended = session.end()
    assert ended.code in ANSWERED, ended.err
    _check_of_trainer(tmp_path / "studies" / "hf")


def _check_of_trainer(path: Path) -> None:
    """Checks that a Trainer's two layouts were measured, at equal first losses, and the best one several times."""
    history, _ = read(path)
    measured = history.measurements
    assert history.header is not None and history.header.recipes[0].seq_len == 64
    assert {each.outcome for each in measured} <= RAN and len({each.layout.label for each in measured}) == 2
    assert all(each.losses for each in measured)
    assert len({round(each.losses[0], 4) for each in measured}) == 1, "the same data and weights at every point"
    (result,) = StudyResult.of(history).of_study
    assert result.leader is not None and len(result.leader.runs) >= 2
    assert result.leader.main_run.peak_device_gib is not None and 0.2 < result.leader.main_run.peak_device_gib < 4
