"""Imports the large libraries without unneeded parts, which cost every worker seconds in every trial."""

import contextlib
import gc
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from trainers import startup
from trainers.spec import architectures

HIDDEN = ("mlflow", "scipy", "sklearn", "torchao")
"""Modules that others import if they exist, and that are hidden: DeepSpeed's autotuner (1.5 s), transformers' code for
images and text generation (0.4 s, and 1 s more up to release 5.17), its quantizers (2 s). FP8 imports torchao later.
"""


@contextlib.contextmanager
def no_collector() -> Generator[None]:
    """Pauses the search for reference cycles while many permanent objects are created."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def imports(hidden: Sequence[str] = HIDDEN) -> Generator[None]:
    """Hides modules from imports within the context and pauses the cycle collector, because module definitions are no
    garbage.
    """
    if not startup.is_on():
        yield
        return
    hidden = [name for name in hidden if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # marks the module as missing for the import system
    try:
        with no_collector():
            if "transformers" not in sys.modules:
                _read_our_models_alone()
            yield
    finally:
        for name in hidden:
            del sys.modules[name]


def spare_deepspeed() -> None:
    """Makes DeepSpeed, when it is imported, skip two steps that take seconds and change nothing.

    ZeRO 1 to 3 import Muon, which no recipe has, to check that it is not the optimizer; its functions would be passed
    to torch.compile at definition, which imports inductor: 1.5 s of every trial that compiles nothing. Stage 1 in bf16
    prints four memory tables whatever the log level, each after a garbage collection: half a second.
    """
    if not startup.is_on():
        return
    compiler: Any = importlib.import_module("deepspeed.runtime.compiler")
    compile_ = compiler.compile
    compiler.compile = lambda: lambda function: function
    importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    compiler.compile = compile_
    bf16_optimizer: Any = importlib.import_module("deepspeed.runtime.bf16_optimizer")
    bf16_optimizer.see_memory_usage = lambda *_, **__: None


def _read_our_models_alone() -> None:
    """Limits the source files that transformers reads at its first import to the files of the models in
    `architectures`; it would read 1,640 files, twice, to list the names of its models.

    Other models' names are then missing in `transformers`, although their modules can be imported. A release with
    another mechanism is left unchanged.
    """
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return
    # Imports its utilities before its `__init__` runs, because that uses the function replaced here.
    bare = importlib.util.module_from_spec(spec)
    vars(bare)["__version__"] = importlib.metadata.version("transformers")
    sys.modules["transformers"] = bare
    try:
        utils: Any = importlib.import_module("transformers.utils.import_utils")
        read = utils.create_import_structure_from_path
    except (ImportError, AttributeError):
        return
    finally:
        del sys.modules["transformers"]
    models = Path(spec.origin).parent / "models"

    def read_ours(path: str | Path) -> Any:
        if Path(path) not in (models, models / "__init__.py"):
            return read(path)
        # "gemma3_text" is a model type of the folder "gemma3"; a release may lack both folders.
        folders = (name if (models / name).is_dir() else name.rpartition("_")[0] for name in architectures.names())
        ours = dict.fromkeys(("auto", *(name for name in folders if name and (models / name).is_dir())))
        return {name: read(str(models / name)) for name in ours}

    utils.create_import_structure_from_path = read_ours
