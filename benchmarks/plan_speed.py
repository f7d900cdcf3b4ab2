"""Seconds that `platform.plan` takes for a config.json on many devices, in fresh processes. Run from the checkout:

    python -m benchmarks.plan_speed --cluster 512x8xH100 --repeats 3

The first run may find the machine's file cache empty.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14_336, "vocab_size": 128_256,
}  # fmt: skip
"""Llama 3 8B."""


def seconds_of(config: Path, cluster: str) -> tuple[float, float | None]:
    """Returns (seconds to the answer, seconds to the first line of progress or None without one)."""
    command = [sys.executable, "-m", "platform.plan", str(config), "--cluster", cluster, "--json"]
    begun = time.monotonic()
    first_line_s: float | None = None
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for _ in process.stderr:
            first_line_s = first_line_s or time.monotonic() - begun
    seconds = time.monotonic() - begun
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return seconds, first_line_s


def main() -> None:
    """Prints a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default="512x8xH100", metavar="C", help="as of plan (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="fresh processes (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.json")
        config.write_text(json.dumps(CONFIG), encoding="utf-8")
        for run in range(options.repeats):
            seconds, first_line_s = seconds_of(config, options.cluster)
            line = "no line of progress" if first_line_s is None else f"first line after {first_line_s:.1f} s"
            print(f"run {run + 1}: {seconds:.1f} s, {line}, load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
