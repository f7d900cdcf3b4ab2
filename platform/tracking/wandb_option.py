"""The option `--wandb`, which names a project of Weights & Biases."""

import importlib.util
from typing import Any

from platform.common.errors import InputError
from platform.common.options import option


def wandb_field(**declared: Any) -> Any:
    about = "show the study in W&B too, in PROJECT or ENTITY/PROJECT (WANDB_MODE=offline sends nothing)"
    return option(None, metavar="PROJECT", about=about, then=check_project, **declared)


def check_project(project: str) -> str:
    """Returns the W&B project, `PROJECT` or `ENTITY/PROJECT`.

    Raises:
        InputError: the name is invalid, or wandb is not installed.
    """
    parts = project.split("/")
    if len(parts) > 2 or not all(parts) or any(letter in project for letter in "\\#?%:") or len(project) > 128:
        raise InputError(f"--wandb takes PROJECT or ENTITY/PROJECT, got {project!r}")
    if importlib.util.find_spec("wandb") is None:
        raise InputError("--wandb needs the package wandb: pip install wandb")
    return project
