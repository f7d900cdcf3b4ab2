"""Tests of the modules that a worker imports and of those that it does without."""

import subprocess
import sys

import pytest

from tests.whole_searches.session import ROOT
from trainers import startup
from trainers.startup import import_stubs, prestart

WORKER = """
import gc, sys
from trainers.engines.create import engine_class
import trainers.trial.worker, trainers.training.worker

assert "transformers" not in sys.modules, "transformers was imported beside what it imports for others"

engine_class("deepspeed")
import transformers

assert gc.isenabled()
unused = {name.partition(".")[0] for name in sys.modules} & {"mlflow", "scipy", "sklearn", "torchao"}
assert not unused, unused
assert "deepspeed.runtime.zero.muon.muon_optimizer" in sys.modules and "torch._inductor.compile_fx" not in sys.modules
from deepspeed.runtime import bf16_optimizer
assert "deepspeed" not in bf16_optimizer.see_memory_usage.__module__, "memory tables are printed"
assert hasattr(transformers, "BloomForCausalLM") and not hasattr(transformers, "BertModel"), "all models were read"
import scipy.optimize  # what was hidden is there again
"""


@pytest.mark.slow
def test_an_engine_comes_without_what_its_libraries_import_for_others() -> None:
    """Loads the engine in a process of its own, as a worker does: the imports left out would take seconds of every
    trial.
    """
    completed = subprocess.run([sys.executable, "-c", WORKER], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert completed.returncode == 0, completed.stderr


ABSENT = """
from trainers.spec import architectures

names = (*architectures.names(), "absent", "absent_text")
architectures.names = lambda: names
from trainers.startup import import_stubs

with import_stubs.imports():
    from transformers import AutoModelForCausalLM
"""


def test_a_family_that_this_release_of_transformers_lacks_leaves_the_others() -> None:
    completed = subprocess.run([sys.executable, "-c", ABSENT], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert completed.returncode == 0, completed.stderr


def test_the_switch_leaves_imports_alone_and_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(startup.SWITCH, "0")
    hidden = {name: sys.modules.pop(name) for name in import_stubs.HIDDEN if name in sys.modules}
    try:
        with import_stubs.imports():
            assert not any(name in sys.modules for name in import_stubs.HIDDEN)
    finally:
        sys.modules.update(hidden)
    imported: list[str] = []
    monkeypatch.setattr(prestart.importlib, "import_module", imported.append)
    monkeypatch.setenv(prestart.IS_WORKER, "1")
    prestart.preload()
    import_stubs.spare_deepspeed()
    assert not imported
    monkeypatch.setenv(startup.SWITCH, "1")
    prestart.preload()
    assert imported
