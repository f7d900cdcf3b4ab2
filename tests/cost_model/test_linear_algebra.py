"""Linear algebra of the driver has one thread: more only wait for each other beside other work."""

from collections.abc import Callable

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from platform.cost_model.calibration import calibrate
from platform.searchers.guided import Guided
from tests.cost_model.test_calibration import PLACES, PREDICTION, STEP_S
from tests.samples import oom
from tests.searchers.test_guided import BLOOM, PLANNED, ran


def _suggested() -> None:
    searcher = Guided(PLANNED)
    searcher.update(BLOOM[0], ran(BLOOM[0], 10.0))
    searcher.suggest()


def _deferred() -> None:
    searcher = Guided(PLANNED)
    first, second = BLOOM[:2]
    searcher.update(first, ran(first, 10.0))
    smallest = min(second.micro_batches)
    searcher.update(second, [oom(recipe=second.recipe, on=second.layout, micro_batch=smallest)])
    searcher.deferred(second)


def _calibrated() -> None:
    index = np.arange(4)
    assert len(calibrate(PLACES, PREDICTION, index, 1.1 * STEP_S[index]).corrected.step.total_s) == len(STEP_S)


@pytest.mark.parametrize("ask", [_suggested, _deferred, _calibrated])
def test_what_asks_the_regression_inverts_in_one_thread(
    ask: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, libraries, invert = set[int](), ThreadpoolController(), np.linalg.inv

    def inverse(matrix: np.ndarray) -> np.ndarray:
        threads.update(info["num_threads"] for info in libraries.info() if info["user_api"] == "blas")
        return invert(matrix)

    monkeypatch.setattr(np.linalg, "inv", inverse)
    with libraries.limit(limits=2, user_api="blas"):
        ask()
        assert {info["num_threads"] for info in libraries.info() if info["user_api"] == "blas"} == {2}, "as before"
    assert threads == {1}
