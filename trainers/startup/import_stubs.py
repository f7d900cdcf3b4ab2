"""Imports the large libraries without parts that are not needed, which cost every worker seconds in every trial."""

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
"""Hidden modules that others import where they exist: DeepSpeed's autotuner (1.5 s), transformers' code for images and
for generating text (0.4 s, and 1 s more up to its release 5.17), its quantizers (2 s). FP8 imports torchao later.
"""


@contextlib.contextmanager
def no_collector() -> Generator[None]:
    """Pauses the search for reference cycles while many objects are created that stay."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def imports(hidden: Sequence[str] = HIDDEN) -> Generator[None]:
    """Hides modules from imports and pauses the cycle collector, since what a module defines is no garbage."""
    if not startup.is_on():
        yield
        return
    hidden = [name for name in hidden if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # the import system's own word for "is not there"
    try:
        with no_collector():
            if "transformers" not in sys.modules:
                _read_our_models_alone()
            yield
    finally:
        for name in hidden:
            del sys.modules[name]


def spare_deepspeed() -> None:
    """Makes DeepSpeed, once it is imported, skip two things that cost a trial seconds and change nothing.

    ZeRO 1 to 3 import Muon, which no recipe here has, to tell that it is not the optimizer; its functions would be
    handed to torch.compile as they are defined, which imports inductor: 1.5 s of every trial that compiles nothing.
    Stage 1 in bf16 prints memory tables, whatever the log level, and collects garbage for each of four: half a second.
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
    """Limits which source files transformers reads before its first import: it reads 1,640 files, twice, to list the
    names of its models.

    Of the folders of models it then reads those that a `ModelSpec` can be; the others' names are not in `transformers`,
    though their modules can be imported. A release that goes about it in another way is left to it.
    """
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return
    # Its utilities, imported before its `__init__` ran: that one uses the function that is replaced here.
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
        # "gemma3_text" is a model type of the folder "gemma3"; a release may have no folder of either name.
        folders = (name if (models / name).is_dir() else name.rpartition("_")[0] for name in architectures.names())
        ours = dict.fromkeys(("auto", *(name for name in folders if name and (models / name).is_dir())))
        return {name: read(str(models / name)) for name in ours}

    utils.create_import_structure_from_path = read_ours
