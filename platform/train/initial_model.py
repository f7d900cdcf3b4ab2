"""The model in a transformers folder whose weights a training starts from."""

import functools
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from platform.common.builder import ALONE
from platform.common.checkout import ROOT
from platform.common.errors import InputError
from platform.study.folder import user_path
from search_spaces.transformers_config import space_of_config
from trainers.records.plain_files import read_json
from trainers.spec.codec import json_object, to_json
from trainers.spec.model import ModelSpec
from trainers.spec.model_config import stored_as, text_model
from trainers.spec.recipe import Recipe

_LONGEST_S = 600.0
_BLOCK_BYTES, _MOST_BLOCKS = 2**16, 2**12


def recipe_of(text: str) -> Recipe:
    """Returns the recipe of the folder's model, with the defaults of its space.

    Raises:
        InputError: the folder holds no model that can be trained here.
    """
    folder = user_path(text).absolute()
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds no config.json of a transformers model: give such a folder")
    try:
        recipe = space_of_config(folder / "config.json").recipe
    except ValueError as error:
        raise InputError(str(error)) from error
    config = read_json(folder / "config.json", links=True)
    if stored := stored_as(config) or stored_as(text_model(config, folder.name)):
        raise InputError(
            f"quantization_config of {folder} is stated: its weights are stored as {stored}, and a training starts from"
            " fp32, bf16 or fp16: give a folder to which transformers has saved it in one of these"
        )
    return recipe


def initial_weights(text: str, recipe: Recipe) -> str:
    """Returns the folder's absolute path after checking that it holds the recipe's model and that every tensor is used.

    Raises:
        InputError: the folder holds no model or another one; the text names the differences.
    """
    folder, held = user_path(text).absolute(), recipe_of(text).model
    if held.architecture != recipe.model.architecture:
        raise InputError(
            f"{folder} holds a {held.architecture} model, the recipe has {recipe.model.architecture}: give another one"
        )
    if not any((folder / f"model.safetensors{end}").is_file() for end in ("", ".index.json")):
        raise InputError(f"{folder} holds no model.safetensors: save the model there as safetensors")
    if reason := _reason(recipe.model, held, folder):
        raise InputError(reason)
    return str(folder)


def weights_identity(text: str) -> str:
    """Returns a hash of the weights in the folder, independent of its path.

    It covers each file's size and blocks at even distances: all of a file up to 256 MiB, at most as much of a larger
    one.

    Raises:
        InputError: a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in sorted(user_path(text).absolute().glob("model*.safetensors")):
        try:
            size = path.stat().st_size
            digest.update(f"{size} ".encode())
            with path.open("rb") as file:
                for place in range(0, size, max(_BLOCK_BYTES, size // _MOST_BLOCKS)):
                    file.seek(place)
                    digest.update(file.read(_BLOCK_BYTES))
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error
    return digest.hexdigest()


@functools.lru_cache(maxsize=4)  # a comparison makes many plans of one model
def _reason(recipe: ModelSpec, held: ModelSpec, folder: Path) -> str:
    """Returns why the folder's model cannot be used, "" if it can. A subprocess imports transformers for this."""
    question = {"recipe": to_json(recipe), "held": to_json(held), "folder": str(folder)}
    try:
        completed = subprocess.run(
            [sys.executable, "-m", "trainers.training.start_check"],
            input=json.dumps(question),
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
            check=True,
            cwd=ROOT,
            env={**os.environ, **ALONE},
        )
        return json_object(completed.stdout.splitlines()[-1])["reason"]
    except subprocess.CalledProcessError as error:
        cause = (error.stderr.strip().splitlines() or ["no message"])[-1]
    except (subprocess.TimeoutExpired, ValueError, LookupError, TypeError) as error:
        cause = str(error) or type(error).__name__
    return f"transformers does not compare the model in {folder} with the recipe's: {cause}"
