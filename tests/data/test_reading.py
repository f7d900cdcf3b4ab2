"""Reading token files: order by (seed, epoch), positions, document boundaries, laziness, and the folder's index."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainers.data import ParquetTokens, Position, sample_indices
from trainers.data import parquet as packing
from trainers.data.footer import read_footer
from trainers.spec.batch import BatchPoint

SEQ_LEN = 4


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets chunks of three sequences, so that a small file has several windows."""
    monkeypatch.setattr(packing, "CHUNK_TOKENS", 3 * SEQ_LEN + 1)


def _write(path: Path, documents: Sequence[Sequence[int]], group_rows: int = 7) -> Path:
    table = pa.table({"tokens": pa.array(documents, pa.list_(pa.uint16()))})
    pq.write_table(table, path, row_group_size=group_rows)
    return path


def _documents(num_tokens: int) -> list[list[int]]:
    """Returns tokens 0, 1, 2, ... in documents of 0 to 9 tokens."""
    lengths = np.random.default_rng(0).integers(0, 10, num_tokens)
    ends = np.minimum(np.cumsum(lengths), num_tokens)
    return [list(range(first, last)) for first, last in zip([0, *ends[:-1]], ends, strict=True) if first < num_tokens]


def _source(path: Path, *, seed: int | None = None, global_batch: int = 5) -> ParquetTokens:
    return ParquetTokens(path, vocab_size=2000, seq_len=SEQ_LEN, global_batch=global_batch, shuffle_seed=seed)


def _epoch(source: ParquetTokens, epoch: int) -> list[int]:
    """Returns, for each sample of an epoch, the number of the sequence that it holds."""
    tokens = source.tokens(Position(epoch=epoch, sample=0), range(source.num_sequences))
    assert np.array_equal(tokens, tokens[:, :1] + np.arange(SEQ_LEN + 1)), "a sequence is consecutive tokens"
    return (tokens[:, 0] // SEQ_LEN).tolist()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a folder of 1,001 tokens, 250 sequences, in three files."""
    documents = _documents(1001)
    for number, first in enumerate((0, 90, 91)):
        last = (90, 91, len(documents))[number]
        _write(tmp_path / f"{number}.parquet", documents[first:last])
    return tmp_path


def test_the_order_of_the_files_is_kept_without_a_seed(folder: Path) -> None:
    source = _source(folder)
    assert source.num_sequences == 250
    assert _epoch(source, 0) == _epoch(source, 3) == list(range(250))


def test_an_epoch_is_shuffled_by_its_seed_and_number(folder: Path) -> None:
    orders = [_epoch(_source(folder, seed=seed), epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(250)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert orders[0] == _epoch(_source(folder, seed=0), 0)
    far = sum(abs(place - number) > 50 for place, number in enumerate(orders[0]))
    assert far > 100, "chunks move through the whole epoch"


def test_the_shuffled_order_stays_the_same_from_version_to_version(folder: Path) -> None:
    first = _epoch(_source(folder, seed=7), 2)[:12]
    assert first == [218, 166, 191, 49, 131, 84, 217, 95, 189, 93, 94, 216]


def test_the_order_does_not_depend_on_files_and_row_groups(folder: Path, tmp_path: Path) -> None:
    one_file = _write(tmp_path / "one", _documents(1001), group_rows=1000)
    assert _epoch(_source(one_file, seed=3), 1) == _epoch(_source(folder, seed=3), 1)


@pytest.mark.parametrize("seed", [None, 4])
def test_a_step_holds_the_same_samples_whatever_the_layout(folder: Path, seed: int | None) -> None:
    all_sequences = _source(folder, seed=seed, global_batch=24).sequences(41, range(24))
    for ranks, accum in ((1, 24), (2, 3), (8, 1)):
        batch = BatchPoint(micro_batch=24 // ranks // accum, grad_accum=accum)
        for rank in range(ranks):
            source = _source(folder, seed=seed, global_batch=24)  # each rank has a reader of its own
            for micro_step in range(accum):
                indices = sample_indices(batch, data_parallel=ranks, rank=rank, micro_step=micro_step)
                assert np.array_equal(source.sequences(41, indices), all_sequences[list(indices)])


def test_a_position_counts_samples_through_epochs(folder: Path) -> None:
    source = _source(folder, seed=0, global_batch=60)
    assert source.position(4) == Position(epoch=0, sample=240)
    assert source.position(9) == Position(epoch=2, sample=40)
    step = source.sequences(4, range(60))
    assert np.array_equal(step[:10], source.tokens(Position(epoch=0, sample=240), range(10)))
    assert np.array_equal(step[10:], source.tokens(Position(epoch=1, sample=0), range(50)))


@pytest.mark.parametrize("seed", [None, 5])
def test_segment_ids_mark_the_documents_of_a_sample(folder: Path, seed: int | None) -> None:
    document_of = np.concatenate([np.full(len(ids), number) for number, ids in enumerate(_documents(1001))])
    source = _source(folder, seed=seed)
    start = Position(epoch=0, sample=0)
    tokens, segments = source.tokens(start, range(250)), source.segment_ids(start, range(250))
    for row, segment in zip(tokens, segments, strict=True):
        _, expected = np.unique(document_of[row], return_inverse=True)
        assert segment.tolist() == expected.tolist()
    assert segments.max() > 1


def test_a_file_of_plain_integers_is_one_document(tmp_path: Path) -> None:
    for name in "ab":
        pq.write_table(pa.table({"tokens": pa.array(range(6))}), tmp_path / f"{name}.parquet", row_group_size=4)
    source = _source(tmp_path)
    assert source.segment_ids(Position(epoch=0, sample=0), [0, 1]).tolist() == [[0, 0, 0, 0, 0], [0, 0, 1, 1, 1]]


def test_nested_and_missing_lists_are_joined(tmp_path: Path) -> None:
    column = pa.array([[[0, 1], []], None, [[2], [3, 4, 5]], [], [[6, 7, 8]]])
    pq.write_table(pa.table({"id": [1] * 5, "input_ids": column}), tmp_path / "a", row_group_size=2)
    source = _source(tmp_path / "a")
    start = Position(epoch=0, sample=0)
    assert source.tokens(start, [0, 1]).tolist() == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]
    assert source.segment_ids(start, [0, 1]).tolist() == [[0, 0, 1, 1, 1], [0, 0, 1, 1, 1]]
    assert read_footer(tmp_path / "a").group_tokens == (2, 4, 3)


def test_only_the_files_of_the_samples_taken_are_decoded(folder: Path) -> None:
    last = _write(folder / "2.parquet", [[1] * 3] * 200)
    data = bytearray(last.read_bytes())
    footer_bytes = int.from_bytes(data[-8:-4], "little") + 8
    data[4:-footer_bytes] = b"\xff" * (len(data) - footer_bytes - 4)
    last.write_bytes(data)
    source = _source(folder)
    assert source.sequences(0, range(5))[:, 0].tolist() == [0, 4, 8, 12, 16]
    with pytest.raises(ValueError, match=r"cannot read column tokens of .*2\.parquet"):
        source.sequences(48, range(5))


def test_a_footer_of_any_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "tokens.parquet"
    with path.open("wb") as file:
        file.truncate(2**31)
        file.seek(0, 2)
        file.write((2**31 - 100).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(ValueError, match=r"its footer has 2,147,483,548 bytes, it is damaged"):
        read_footer(path)


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokens.parquet")
    with pytest.raises(ValueError, match=r"tokens\.parquet is a pipe where a regular file is expected"):
        read_footer(tmp_path / "tokens.parquet")
