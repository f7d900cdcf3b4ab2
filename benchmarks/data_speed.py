"""Tokens/s of `platform.prepare` with two workers and of the reader, and the reader's share of a step. From the
checkout:

python -m benchmarks.data_speed
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

from trainers.data import INCLUDED_TEXT, ParquetTokens

INPUT_MIB = 256
SEQ_LEN, GLOBAL_BATCH, RANKS = 1024, 64, 8
GPU_TOKENS_PER_S = 135_000
"""Of one H200 with GPT-2 under DDP at length 1024, about the fastest that a process takes tokens."""


def corpus(path: Path) -> None:
    """Writes the included text again and again as text with a separator."""
    book = bytes(token for ids in pq.read_table(INCLUDED_TEXT)["tokens"].to_pylist() for token in ids)
    with path.open("wb") as file:
        while file.tell() < INPUT_MIB * 2**20:
            file.write(book)


def read(folder: Path, seed: int | None) -> str:
    """Reads an epoch as rank 0 of eight does, a step ahead of nothing, and says what that took."""
    began_s = time.perf_counter()
    source = ParquetTokens(folder, vocab_size=256, seq_len=SEQ_LEN, global_batch=GLOBAL_BATCH, shuffle_seed=seed)
    opened_s = time.perf_counter() - began_s
    steps = source.num_sequences // GLOBAL_BATCH
    began_s, busy_s = time.perf_counter(), time.process_time()
    for step in range(steps):
        source.sequences(step, range(GLOBAL_BATCH // RANKS))
    wall_s, busy_s = time.perf_counter() - began_s, time.process_time() - busy_s
    step_s = GLOBAL_BATCH // RANKS * SEQ_LEN / GPU_TOKENS_PER_S
    return (
        f"{'in the order of the files' if seed is None else 'shuffled'}: opened in {opened_s:.3f} s,"
        f" {steps * GLOBAL_BATCH * SEQ_LEN / wall_s / 1e6:.0f} million tokens/s of all {RANKS} ranks,"
        f" {wall_s / steps * 1e3:.2f} ms a step, {wall_s / steps / step_s:.1%} of a step of {step_s * 1e3:.0f} ms"
        f" ({busy_s / steps / step_s:.1%} in processor time)"
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
