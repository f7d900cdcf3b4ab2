"""Times `platform.prepare` with two workers and the reader in tokens/s, and the reader's share of a step. From the
checkout:

python -m benchmarks.data_speed

Its figures: docs/lab/tools.csv#data-speed.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

from trainers.data import INCLUDED_TEXT, ParquetTokens

INPUT_MIB = 256
SEQ_LEN, GLOBAL_BATCH, RANKS = 1024, 64, 8
PACED_STEPS = 300
"""Steps of the reader at a GPU's pace: more than two of its windows."""
GPU_TOKENS_PER_S = 135_000
"""Tokens/s of the fastest consumer: GPT-2 at length 1024 under DDP in one process on one H200."""


def corpus(path: Path) -> None:
    """Writes the included text again and again as text with a separator."""
    book = bytes(token for ids in pq.read_table(INCLUDED_TEXT)["tokens"].to_pylist() for token in ids)
    with path.open("wb") as file:
        while file.tell() < INPUT_MIB * 2**20:
            file.write(book)


def read(folder: Path, seed: int | None) -> str:
    """Reads rank 0's samples as fast as they come, then at the pace of a GPU; returns what that took as text."""
    source = ParquetTokens(folder, vocab_size=256, seq_len=SEQ_LEN, global_batch=GLOBAL_BATCH, shuffle_seed=seed)
    indices = range(GLOBAL_BATCH // RANKS)
    steps = source.num_sequences // GLOBAL_BATCH
    began_s = time.perf_counter()
    for step in range(steps):
        source.sequences(step, indices)
    rate = steps * GLOBAL_BATCH * SEQ_LEN / (time.perf_counter() - began_s)
    step_s = len(indices) * SEQ_LEN / GPU_TOKENS_PER_S
    source.sequences(0, indices)
    waits_s: list[float] = []
    for step in range(1, PACED_STEPS):
        time.sleep(step_s)  # a GPU computes, the host is idle
        began_s = time.perf_counter()
        source.sequences(step, indices)
        waits_s.append(time.perf_counter() - began_s)
    mean_s = statistics.fmean(waits_s)
    return (
        f"{'in the order of the files' if seed is None else 'shuffled'}: {rate / 1e6:.0f} million tokens/s of all"
        f" {RANKS} ranks at most; at a GPU's pace {mean_s * 1e3:.2f} ms a step ({statistics.median(waits_s) * 1e3:.2f}"
        f" in the median), {mean_s / step_s:.2%} of a step of {step_s * 1e3:.0f} ms"
    )


def main() -> None:
    """Prints what each took."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory(prefix="data-speed-") as scratch:
        source, out = Path(scratch, "corpus.txt"), Path(scratch, "tokens")
        corpus(source)
        command = [sys.executable, "-m", "platform.prepare", source, "--separator", r"\n\n", "--out", out]
        began_s = time.perf_counter()
        subprocess.run([*map(str, command), "--workers", "2"], check=True)
        wall_s = time.perf_counter() - began_s
        rate = source.stat().st_size / wall_s
        print(f"prepared {INPUT_MIB} MiB in {wall_s:.1f} s, {rate / 1e6:.1f} million byte tokens/s, start included")
        print(read(out, None))
        print(read(out, 0))
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")


if __name__ == "__main__":
    main()
