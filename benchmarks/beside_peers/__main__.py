"""Runs this project's search and others, one after another on this machine, each under a time limit. Run

python -m benchmarks.beside_peers [--peers ours,optuna_processes] [--seeds 0,1] [--limit-s 480] [--gpus 2] [--out DIR]

Trials of a run that is there already are read, not run again. Prints a table, and writes each trial to DIR.

Its figures: docs/lab/search.csv#unaided-optional-kernels, docs/lab/layouts.csv#four-h200-again.21.
"""

import argparse
import importlib
import subprocess
import sys
from pathlib import Path

from benchmarks.beside_peers import score

PEERS = ("ours", "optuna_processes", "optuna_ray", "autotuner")


def main() -> None:
    """Runs what is missing, each peer in a separate process, then prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--limit-s", type=float, default=480.0)
    parser.add_argument("--space", default="gpt2")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out", type=Path, default=Path("studies/beside-peers"))
    parser.add_argument("--run", help=argparse.SUPPRESS)  # one peer, in this process
    options = parser.parse_args()
    options.out = options.out.absolute()  # Tune's trials have folders of their own
    options.out.mkdir(parents=True, exist_ok=True)
    if Path(options.space).exists():  # Ray's workers have a working folder of their own
        options.space = str(Path(options.space).absolute())
    changes = tuple(options.set or ["attention=sdpa", "grad_sync=last"])
    seeds = [int(seed) for seed in options.seeds.split(",")]
    if options.run:
        peer = importlib.import_module(f"benchmarks.beside_peers.{options.run}")
        out = options.out / f"{options.run}-{seeds[0]}.jsonl"
        peer.main(options.space, changes, options.gpus, seeds[0], options.limit_s, out)
        return
    runs = {}
    for seed in seeds:
        for name in options.peers.split(","):
            path = options.out / f"{name}-{seed}.jsonl"
            if not path.exists():
                print(f"{name}, seed {seed}, {options.limit_s:g} s at most", file=sys.stderr, flush=True)
                command = [sys.executable, "-m", "benchmarks.beside_peers", "--run", name, "--seeds", str(seed)]
                command += ["--limit-s", str(options.limit_s), "--space", options.space, "--out", str(options.out)]
                command += ["--gpus", str(options.gpus)]
                command += [part for change in changes for part in ("--set", change)]
                with path.with_suffix(".out").open("w") as log:
                    # A peer that does not end by itself in time is a result too.
                    try:
                        subprocess.run(command, stdout=log, stderr=log, timeout=options.limit_s + 120, check=False)
                    except subprocess.TimeoutExpired:
                        print(f"{name} did not end within 120 s of its limit", file=sys.stderr, flush=True)
            runs[name, seed] = score.read(path)
    print(score.table(score.score(runs)))


if __name__ == "__main__":
    main()
