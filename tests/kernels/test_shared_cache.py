"""Trials beside each other on one node compile into one folder, and a later one takes its code from there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

ROOT = Path(__file__).parents[2]
COMPILED = """
import torch
from torch._dynamo.utils import counters
from trainers.kernels.compiled import static

result = static(lambda x: (2 * x).sin().cumsum(0))(torch.arange(8.0))
print(counters["inductor"]["fxgraph_cache_hit"], [round(value, 5) for value in result.tolist()])
"""


@pytest.mark.heavy
def test_two_processes_that_compile_at_once_agree_and_a_third_one_reads_their_code(tmp_path: Path) -> None:
    needs.tools(["g++"], "g++")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", COMPILED]

    def begun() -> subprocess.Popen[str]:
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    outputs = [process.communicate(timeout=600) for process in [begun(), begun()]]
    outputs.append(begun().communicate(timeout=600))
    figures = [out.partition(" ")[2] for out, _ in outputs]
    assert figures[0].startswith("[") and len(set(figures)) == 1, outputs
    assert outputs[2][0].startswith("1 "), outputs
