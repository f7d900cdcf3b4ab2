"""Odd files in place of those that commands read end in a sentence: a sample of `benchmarks.fuzz_files`."""

import pytest

from benchmarks.fuzz_files import CONTENTS, PLACES, SPECIAL, tried

REFUSED_OTHERWISE = {
    "plan, old study": "unknown device 'Made-up GPU'",
    "prepare, plan": "was begun with different inputs",
    "replay, table": "nothing to search in",
    "export, plan": "is of another model",
    "export, manifest": "is of another model",
}


@pytest.mark.heavy
@pytest.mark.parametrize("place", PLACES)
def test_sound_files_are_taken_up_to_where_a_ray_would_start(place: str) -> None:
    """Checks the other files: otherwise each odd file could be refused for what is wrong with another."""
    end, trace, printed = tried(place, "0", "sound")
    reached = end == "taken" or REFUSED_OTHERWISE.get(place, "no Ray answers at") in printed
    assert reached and not trace, printed


@pytest.mark.slow
@pytest.mark.parametrize("number", range(24))
def test_odd_files_end_in_a_sentence(number: int) -> None:
    places, kinds = list(PLACES), [*SPECIAL, *CONTENTS]
    place, kind = places[number * 7 % len(places)], kinds[number * 5 % len(kinds)]
    end, trace, printed = tried(place, str(number), kind)
    assert end != "traceback", f"{place}, {kind}: {trace or printed}"


@pytest.mark.heavy
@pytest.mark.parametrize("place", PLACES)
def test_a_hundred_odd_files_a_place(place: str) -> None:
    for number in range(112):
        end, trace, printed = tried(place, f"112/{number}")
        assert end != "traceback", f"{number}: {trace or printed}"
