"""Facts that a row leaves open: each prediction is the mean over their readings, and its interval holds them all."""

import numpy as np
import pytest

from platform.cost_model.columns import from_rows
from platform.cost_model.predict import predict
from platform.validate.cells import Row
from platform.validate.evaluation import predicted
from platform.validate.facts import normalized
from platform.validate.published_run import PublishedRun, RowReader, interpret
from platform.validate.readings import recomputation_chances
from tests.cost_model.points import PRINTED_ROW

NEMO = {
    **PRINTED_ROW, "software": "megatron-core", "gpu": "H100", "gpu_mem_gb": "80", "gpus": "64", "nodes": "8",
    "tp": "8", "pp": "2", "dp": "4", "strategy": "zero1", "micro_batch": "1", "grad_accum": "8", "global_batch": "32",
    "attention_kernel": "te", "vp": "", "activation_ckpt": "none", "iter_time_s": "3", "tflops_per_gpu": "",
    "notes": "", "source": "", "node_gbps": "3200",
}  # fmt: skip


def run_of(**changes: str) -> PublishedRun:
    """Returns the run of `NEMO` with these changes."""
    return interpret(normalized({**NEMO, **changes}))


def seconds(row: Row) -> float:
    """Returns the predicted step of a row that states all."""
    return float(predict(from_rows([interpret(normalized(row)).values])).step.total_s[0])


def test_an_open_fact_is_averaged_and_widens_the_interval() -> None:
    stated = {"dp_overlap": "yes"}
    interleaved, plain = (seconds({**NEMO, **stated, "vp": vp}) for vp in ("12", "1"))
    run = run_of(**stated)
    prediction = predicted([run])
    assert [(reading.fact, reading.chance) for reading in run.readings] == [("vp", 0.5)]
    assert float(prediction.step.total_s[0]) == pytest.approx(np.sqrt(interleaved * plain))
    spread = abs(np.log(interleaved / plain)) / 2
    alone = predict(from_rows([run.values])).sigma[0]
    assert float(prediction.sigma[0]) == pytest.approx(np.hypot(alone, spread))
    assert prediction.low_s[0] < min(interleaved, plain) * np.exp(spread) and "vp not stated" in " ".join(run.assumed)


def test_a_row_that_states_all_has_no_readings() -> None:
    assert not run_of(vp="1", dp_overlap="no").readings
    assert not run_of(vp="1", source="NeMo 25.02").readings  # its recipes are known to overlap


def test_a_stated_schedule_decides_whether_a_pipeline_is_interleaved() -> None:
    stages = {word: run_of(schedule=word).values["virtual"] for word in ("", "interleaved", "1f1b")}
    assert stages == {"": 12, "interleaved": 12, "1f1b": 1}
    assert run_of(source="NeMo 25.02", schedule="1f1b").values["virtual"] == 1


def test_recomputation_that_is_not_stated_is_averaged_by_the_chance_of_fitting() -> None:
    assert recomputation_chances(80.0, [1.0, 1.0, 1.0]) == pytest.approx([1.0, 0.0, 0.0])
    assert recomputation_chances(80.0, [800.0, 800.0, 1.0]) == pytest.approx([0.0, 0.0, 1.0])
    at_the_edge = recomputation_chances(80.0, [80.0, 80.0, 20.0])
    assert at_the_edge == pytest.approx([0.5, 0.0, 0.5])


def test_rows_that_differ_in_their_figures_alone_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [normalized({**NEMO, "vp": "1", "iter_time_s": f"{seconds}"}) for seconds in (1, 2, 3)]
    alone = [interpret(row) for row in rows]
    reader, read = RowReader(), []
    monkeypatch.setattr(
        "platform.validate.published_run.interpret",
        lambda row, *, measured=True: read.append(row) or interpret(row, measured=measured),
    )
    runs = [reader.run_of(row) for row in rows]
    assert len(read) == 1 and [run.step_time_s for run in runs] == [1, 2, 3]
    assert [run.values for run in runs] == [run.values for run in alone]
    with pytest.raises(ValueError, match="neither time"):
        reader.run_of({**rows[0], "iter_time_s": ""})
    with pytest.raises(ValueError, match="neither time"):
        interpret({**rows[0], "iter_time_s": ""})
