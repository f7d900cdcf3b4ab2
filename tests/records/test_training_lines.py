"""The records of a training: read as they are written, and without what a later attempt took back."""

import dataclasses
from pathlib import Path

from trainers.records.training import Begun, Steps, Validated
from trainers.records.training_lines import Reader, without_redone, write

BEGUN = Begun(attempt=1, step=0, tokens=0, startup_s=5.0, layout="DDP", nodes=("a",), matmul_tflops=(1.0,))
STEPS = Steps(
    attempt=1,
    first_step=1,
    losses=(3.0, 2.0, 1.0, 0.5),
    grad_norms=(1.0,) * 4,
    learning_rates=(0.1,) * 4,
    tokens=400,
    tokens_per_step=100,
    train_s=8.0,
    steps_s=4.0,
    data_s=0.4,
    peak_gib=1.5,
)
AGAIN = dataclasses.replace(BEGUN, attempt=2, step=2)


def test_what_is_written_is_read_as_it_comes(tmp_path: Path):
    path = tmp_path / "training.jsonl"
    reader = Reader(path)
    assert reader.read() == []
    write(path, BEGUN)
    assert reader.read() == [BEGUN]
    with path.open("a") as file:
        file.write('{"kind": "st')
    assert reader.read() == []
    write(path, STEPS)
    assert reader.read() == [STEPS]


def test_a_line_that_was_changed_is_left_out(tmp_path: Path):
    path = tmp_path / "training.jsonl"
    write(path, BEGUN)
    path.write_text(path.read_text().replace('"step":0', '"step":7'))
    assert Reader(path).read() == []


def test_steps_after_the_checkpoint_of_a_later_attempt_are_left_out():
    validated = Validated(attempt=1, step=4, tokens=400, loss=2.0, train_s=8.0, wall_s=1.0)
    begun, steps, again = without_redone([BEGUN, STEPS, validated, AGAIN])
    assert (begun, again) == (BEGUN, AGAIN)
    assert isinstance(steps, Steps)
    assert (steps.losses, steps.tokens, steps.train_s, steps.steps_s) == ((3.0, 2.0), 200, 6.0, 2.0)
    assert without_redone([BEGUN, STEPS, dataclasses.replace(AGAIN, step=4)])[1] == STEPS
    assert without_redone([BEGUN, STEPS, dataclasses.replace(AGAIN, step=0)]) == [
        BEGUN,
        dataclasses.replace(AGAIN, step=0),
    ]


def test_tokens_with_a_loss_are_counted_once_where_steps_are_repeated():
    marked = dataclasses.replace(STEPS, trained_tokens=80)
    again = dataclasses.replace(marked, attempt=2, first_step=3, losses=(1.0, 0.5), tokens_per_step=100,
        grad_norms=(1.0,) * 2, learning_rates=(0.1,) * 2, trained_tokens=40)  # fmt: skip
    kept = [record for record in without_redone([BEGUN, marked, AGAIN, again]) if isinstance(record, Steps)]
    assert sum(record.trained_tokens or 0 for record in kept) == 80


def test_a_held_out_loss_that_a_new_beginning_repeats_is_there_once():
    first = Validated(attempt=1, step=0, tokens=0, loss=9.0, train_s=1.0, wall_s=1.0)
    second = dataclasses.replace(first, attempt=2, loss=8.9)
    again = dataclasses.replace(BEGUN, attempt=2)
    assert without_redone([BEGUN, first, STEPS, again, second]) == [BEGUN, again, second]
