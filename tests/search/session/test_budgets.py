"""The division of one command's budgets over several numbers of devices."""

import dataclasses

import pytest

from platform.search.__main__ import parse
from platform.search.session import several
from platform.search.setup.options import SearchOptions


def _share(counts: list[int], spent_s: float, spent_gpu_s: float, **options_given: float) -> SearchOptions:
    """Returns the options of the first of these numbers, of which each is a part of its own."""
    options = dataclasses.replace(parse(["gpt2"]), **options_given)
    share = several._with_budget  # pyright: ignore[reportPrivateUsage]
    return share(options, counts[0], counts, len(counts), spent_s, spent_gpu_s)


def test_numbers_that_search_at_the_same_time_have_all_of_their_time() -> None:
    options = dataclasses.replace(parse(["gpt2"]), time_budget_s=300.0, gpu_s=700.0)
    share = several._with_budget  # pyright: ignore[reportPrivateUsage]
    shares = [share(options, count, [1, 2, 4], 1, 0.0, 0.0) for count in (1, 2, 4)]
    assert [(share.time_budget_s, share.gpu_s) for share in shares] == [(300, 100), (300, 200), (300, 400)]


def test_each_number_gets_the_same_share_of_the_time_that_is_left() -> None:
    assert _share([1, 2, 4], 0, 0, time_budget_s=300).time_budget_s == 100
    assert _share([2, 4], 40, 0, time_budget_s=300).time_budget_s == 130  # what an early end left goes on
    assert _share([4], 400, 0, time_budget_s=300).time_budget_s == 1  # spent: it ends at once, and says so


def test_device_seconds_go_by_the_devices() -> None:
    shares: list[float] = []
    for counts in ([1, 2, 4], [2, 4], [4]):
        shares.append(_share(counts, 0, sum(shares), gpu_s=700).gpu_s or 0.0)
    assert shares == pytest.approx([100, 200, 400])


def test_no_budget_stays_none() -> None:
    share = _share([1, 2], 10, 10)
    assert (share.time_budget_s, share.gpu_s) == (None, None)
