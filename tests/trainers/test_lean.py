"""What a worker imports and what it does without."""

import subprocess
import sys

from tests.search.session import ROOT

WORKER = """
import gc, sys
from trainers import engines

engines.load("deepspeed")
import transformers

assert gc.isenabled()
unused = {name.partition(".")[0] for name in sys.modules} & {"mlflow", "scipy", "sklearn"}
assert not unused, unused
assert "deepspeed.runtime.zero.muon.muon_optimizer" in sys.modules and "torch._inductor.compile_fx" not in sys.modules
assert hasattr(transformers, "BloomForCausalLM") and not hasattr(transformers, "BertModel"), "all models were read"
import scipy.optimize  # what was hidden is there again
"""


def test_an_engine_comes_without_what_its_libraries_import_for_others() -> None:
    """In a process of its own, as on a worker: seconds of every trial."""
    done = subprocess.run([sys.executable, "-c", WORKER], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
