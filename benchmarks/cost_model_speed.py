"""Seconds to enumerate and predict a million layout x batch points. Run from the checkout:

python -m benchmarks.cost_model_speed
"""

import argparse
import os
import time

from platform.cost_model.enumeration import Axes, enumerate_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.predict import predict
from trainers.recipe import Recipe
from trainers.spec import ModelSpec

GPT_175B = ModelSpec(
    name="gpt-175b", architecture="gpt2", num_layers=96, hidden_size=12288, num_heads=96, vocab_size=51200,
    max_positions=2048,
)  # fmt: skip


def main() -> None:
    """Prints the seconds of each part, three times."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    recipe = Recipe(model=GPT_175B, seq_len=2048, global_batch=2**9 * 3**5 * 5**3 * 7)
    axes = Axes(cp=(1, 2, 4, 8), virtual_stages=(1, 2, 3, 4, 6, 8), micro_batches=tuple(range(1, 37)))
    cluster = find_cluster("384x8xH100")
    for _ in range(3):
        busy, start = time.process_time(), time.perf_counter()
        points = enumerate_points(recipe, cluster, axes)
        enumerated = time.perf_counter()
        prediction = predict(points.grid)
        done = time.perf_counter()
        print(
            f"{points.num_points:,} looked at, {prediction.sigma.size:,} enumerated in {enumerated - start:.2f} s,"
            f" predicted in {done - enumerated:.2f} s, {done - start:.2f} s in all"
            f" ({time.process_time() - busy:.2f} s of processor time, load {os.getloadavg()[0]:.1f})"
        )


if __name__ == "__main__":
    main()
