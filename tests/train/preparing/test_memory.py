"""Input and data larger than memory: the kernel refuses more than a limit, the work is done all the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.slow

_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # the default one sets address space aside, which the limit counts
    "OPENBLAS_NUM_THREADS": "1",
}


def _limited(limit_mib: int, *command: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["prlimit", f"--data={limit_mib * 2**20}", sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **_ENVIRONMENT},
    )


def test_input_larger_than_memory_is_prepared(tmp_path: Path) -> None:
    source = tmp_path / "corpus.jsonl"
    line = json.dumps({"text": "a short text", "page": "x" * 2**16}) + "\n"
    with source.open("w") as file:
        for _ in range(2**12):
            file.write(line)
    assert source.stat().st_size > 256 * 2**20
    run = _limited(192, "-m", "platform.prepare", source, "--out", tmp_path / "out", "--shard-mib", 1000)
    assert run.returncode == 0, run.stderr
    assert "documents: 4,096" in run.stdout
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 1, "one worker streamed all of it"


def test_data_larger_than_memory_are_read(tmp_path: Path) -> None:
    block = pa.table({"tokens": pa.array(np.arange(2**20) % 1000, pa.int32())})
    with pq.ParquetWriter(tmp_path / "a.parquet", block.schema) as file:
        for _ in range(128):
            file.write_table(block, row_group_size=2**20)
    code = (
        "import sys; from pathlib import Path; from trainers.data import ParquetTokens;"
        "data = ParquetTokens(Path(sys.argv[1]), vocab_size=50_000, seq_len=2**14, global_batch=64, shuffle_seed=1);"
        "[data.sequences(step, range(0, 64, 8)) for step in range(data.num_sequences // 64)];"
        "print(data.num_sequences, 'pandas' in sys.modules)"
    )
    run = _limited(400, "-c", code, tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [str(128 * 2**20 // 2**14 - 1), "False"]
