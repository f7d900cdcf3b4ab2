"""Data: the same sample whatever the layout, each sample taken once, and Parquet read or refused in one sentence."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainers.data import ParquetTokens, Stream, sample_indices
from trainers.spec.batch import BatchPoint


def _write(path: Path, **columns: pa.Array) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def _read(path: Path, *, vocab_size: int = 100, seq_len: int = 4, global_batch: int = 3) -> ParquetTokens:
    return ParquetTokens(path, vocab_size=vocab_size, seq_len=seq_len, global_batch=global_batch)


def _factorizations(total: int) -> list[tuple[int, int, int]]:
    divisors = [n for n in range(1, total + 1) if total % n == 0]
    return [(m, a, total // (m * a)) for m in divisors for a in divisors if total % (m * a) == 0]


@pytest.mark.parametrize(("micro_batch", "grad_accum", "ranks"), _factorizations(24))
def test_each_sample_is_taken_exactly_once(micro_batch: int, grad_accum: int, ranks: int) -> None:
    batch = BatchPoint(micro_batch=micro_batch, grad_accum=grad_accum)
    indices = [
        index
        for rank in range(ranks)
        for k in range(grad_accum)
        for index in sample_indices(batch, data_parallel=ranks, rank=rank, micro_step=k)
    ]
    assert sorted(indices) == list(range(24))


def test_a_rank_or_micro_step_that_is_not_there_is_refused() -> None:
    batch = BatchPoint(micro_batch=2, grad_accum=3)
    with pytest.raises(ValueError, match=r"rank must lie in \[0, 4\), got 4"):
        sample_indices(batch, data_parallel=4, rank=4, micro_step=0)
    with pytest.raises(ValueError, match=r"micro_step must lie in \[0, 3\), got 3"):
        sample_indices(batch, data_parallel=4, rank=0, micro_step=3)


def test_a_sample_of_the_stream_does_not_depend_on_its_company() -> None:
    stream = Stream(vocab_size=97, seq_len=50, seed=3)
    together = stream.sequences(4, range(6))
    assert together.shape == (6, 51)
    assert together.dtype == np.int64
    assert np.array_equal(stream.sequences(4, [5, 2]), together[[5, 2]])
    assert not np.array_equal(stream.sequences(5, range(6)), together)
    assert not np.array_equal(Stream(vocab_size=97, seq_len=50, seed=4).sequences(4, range(6)), together)


def test_the_stream_is_position_dependent_and_in_the_vocabulary() -> None:
    tokens = Stream(vocab_size=97, seq_len=600, seed=0).sequences(0, range(20))
    assert tokens.min() >= 0
    assert tokens.max() <= 96
    repeats = {lag: (tokens[:, lag:] == tokens[:, :-lag]).mean() for lag in (1, 2, 3, 4)}
    assert 0.85 < repeats[3] < 0.95
    assert max(repeats[1], repeats[2], repeats[4]) < 0.3


@pytest.mark.parametrize("name", ["tokens", "input_ids"])
@pytest.mark.parametrize("lists", [True, False])
def test_parquet_rows_are_joined(tmp_path: Path, name: str, lists: bool) -> None:
    column = pa.array([[0, 1, 2], [], [3, 4, 5, 6, 7, 8]]) if lists else pa.array(range(9), pa.uint16())
    source = _read(_write(tmp_path / "a.parquet", **{name: column}))
    assert source.sequences(0, [0, 1]).tolist() == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]
    assert source.sequences(1, [0]).tolist() == [[4, 5, 6, 7, 8]], "sample 3 of 2 begins anew"


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    _write(tmp_path / "b.parquet", tokens=pa.array([3, 4]))
    _write(tmp_path / "a.parquet", tokens=pa.array([0, 1, 2]))
    assert _read(tmp_path).sequences(0, [0]).tolist() == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"text": pa.array(["a"])}, "has no column tokens or input_ids; its columns are text"),
        ({"tokens": pa.array(["a"])}, "must hold integers or lists of integers, got string"),
        ({"tokens": pa.array([1.0])}, "must hold integers or lists of integers, got double"),
        ({"tokens": pa.array([1, None, 2, 3, 4])}, "has empty places among its token ids"),
        ({"tokens": pa.array([2**40] * 5)}, "run from 1099511627776 to"),
        ({"tokens": pa.array([1, 2, 3, 4, 100])}, "run from 1 to 100, the model's vocabulary from 0 to 99"),
        ({"tokens": pa.array([-1, 2, 3, 4, 5])}, "run from -1 to 5"),
        ({"tokens": pa.array([1, 2, 3, 4])}, "holds 4 tokens, one sequence takes 5"),
        ({"tokens": pa.array([], pa.int32())}, "holds 0 tokens"),
    ],
)
def test_unusable_data_is_refused(tmp_path: Path, columns: dict[str, pa.Array], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        _read(_write(tmp_path / "a.parquet", **columns))


def test_what_is_no_parquet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no \.parquet file"):
        _read(tmp_path)
    (tmp_path / "a.parquet").write_text("hello")
    with pytest.raises(ValueError, match=r"cannot read .*a.parquet as Parquet"):
        _read(tmp_path)
    with pytest.raises(ValueError, match=r"there is no .*missing: data are a Parquet file"):
        _read(tmp_path / "missing")


def test_data_and_refusals_cost_no_torch() -> None:
    code = (
        "import sys, json, trainers.data, trainers.spec.support, trainers.spec.engines;"
        "print(json.dumps(sorted({'torch', 'ray', 'deepspeed', 'transformers'} & set(sys.modules))))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == []
