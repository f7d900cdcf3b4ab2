"""Numbers with units among a command's options."""

import argparse

import pytest

import platform.search.__main__ as search  # pyright takes `from platform import` for the standard module
import search_spaces
from platform.common.errors import InputError
from platform.common.quantities import amount, duration, length, positive, whole_number


@pytest.mark.parametrize(
    ("text", "value"),
    [("100B", 1e11), ("2e9", 2e9), ("300M", 3e8), ("1.5 T", 1.5e12), ("10k", 1e4), ("0.1k", 100.0), (".5b", 5e8)],
)
def test_amounts(text: str, value: float) -> None:
    assert amount(text) == value


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("90s", 90.0), ("10m", 600.0), ("10 min", 600.0), ("1.5h", 5400.0), ("2D", 172800.0), ("1e3", 1000)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5", "ten", "5x", "nan", "inf", "1e999", "k", "1 0", "5mm", "٣x"])
@pytest.mark.parametrize("read", [amount, duration, positive, whole_number(1), length])
def test_what_is_none_is_refused(read: type, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a"):
        read(text)


def test_whole_numbers() -> None:
    assert whole_number(0)("0") == 0
    assert whole_number(1)("2B") == 2_000_000_000
    assert whole_number(1)("9007199254740993") == 9007199254740993  # beyond a double's whole numbers
    with pytest.raises(argparse.ArgumentTypeError, match="at least 2"):
        whole_number(2)("1")
    with pytest.raises(argparse.ArgumentTypeError, match="whole number"):
        whole_number(1)("1.5")


@pytest.mark.parametrize("text", ["8k", "8K", "8192", "2000"])
def test_a_length_means_the_same_wherever_it_is_set(text: str) -> None:
    command = ["--tokens-per-step", "1000000", "--seq-len", text, "--", "train", "{micro_batch=1}"]
    stated = search_spaces.load("llama3_8b").with_changes([f"seq_len={text}"]).recipe.seq_len
    assert search.parse(command).study.seq_len == length(text) == stated


def test_a_search_takes_natural_units_and_the_older_spelling() -> None:
    options = search.parse(["gpt2", "--time-budget", "10m", "--gpu-s", "2h", "--tokens", "100B"])
    assert (options.time_budget_s, options.gpu_s) == (600.0, 7200.0)
    assert search.parse(["gpt2", "--time-budget-s", "90"]).time_budget_s == 90.0
    with pytest.raises(InputError, match=r"--time-budget.*a duration above 0, as in 90"):
        search.parse(["gpt2", "--time-budget", "soon"])
