"""A constant or a fact that has another value is the one that formulas read."""

import re

import pytest

from benchmarks import one_constant
from tests.cost_model.points import TABLES


@pytest.mark.slow
@pytest.mark.parametrize("change", ["hardware.BANDWIDTH_SHARE=0.6", 'stacks.bigscience.matmul_ratio={"Volta": 0.5}'])
def test_every_constant_is_read_after_it_is_changed(
    change: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["one_constant", change, str(TABLES / "tr3m_1b3.csv")])
    one_constant.main()
    median, *_ = re.findall(r"([\d.]+%) -> ([\d.]+%)", capsys.readouterr().out)
    assert median[0] != median[1]
