"""Tests do the same on each machine, in any order: random numbers, and examples without a limit of their time."""

import random

import hypothesis
import pytest
import torch


@pytest.mark.parametrize("before", [0, 7])
def test_random_numbers_are_those_of_the_test_alone(before: int) -> None:
    drawn = random.random(), float(torch.rand(()))
    random.seed(0)
    torch.manual_seed(0)
    assert drawn == (random.random(), float(torch.rand(())))
    random.seed(before)
    torch.manual_seed(before)  # what the next test would go on from


def test_an_example_takes_the_time_that_it_takes() -> None:
    settings = hypothesis.settings()
    assert settings.deadline is None and settings.derandomize and settings.database is None
