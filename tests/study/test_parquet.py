# pyright: basic
"""Parquet: flat columns, and measurements that come back equal."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from platform.common.errors import InputError
from platform.study.parquet import write_parquet
from tests.samples import layout, measurement, miniature, oom, skipped
from tests.study.parquet_reader import read_parquet
from trainers.spec.layout import Layout


def test_measurements_come_back_equal_and_distinct(tmp_path: Path) -> None:
    written = (
        measurement(),
        measurement(on=layout(prefetch=2), step_time_derived=True, void_windows=("a clock moved",)),
        measurement(on=layout(bucket_mib=25), repeat=2),
        measurement(recipe=miniature(), on=Layout(engine="ddp", dp_replicate=2)),
        oom(micro_batch=4),
        skipped(micro_batch=8),
    )
    path = tmp_path / "measurements.parquet"
    write_parquet(path, written)
    back = read_parquet(path)
    assert back == written
    assert [point.id for point in back] == [point.id for point in written]
    assert len({point.id for point in back}) == len(written)


def test_columns_are_flat_and_carry_the_tables_names(tmp_path: Path) -> None:
    path = tmp_path / "measurements.parquet"
    write_parquet(path, [measurement(), oom(), skipped()])
    table = pq.read_table(path)
    for name in (
        "id",
        "recipe",
        "layout_id",
        "model",
        "layers",
        "precision",
        "activation_ckpt",
        "gpus",
        "dp",
        "engine",
    ):
        assert name in table.column_names, name
    assert table.column("windows_s").to_pylist()[1] == []
    assert str(table.schema.field("losses").type).startswith("list<")
    assert not [field.name for field in table.schema if str(field.type).startswith("struct")]


def test_no_measurements_are_a_table_too(tmp_path: Path) -> None:
    path = tmp_path / "measurements.parquet"
    write_parquet(path, [])
    assert read_parquet(path) == ()


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_parquet(tmp_path / "no" / "folder.parquet", [])
