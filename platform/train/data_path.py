"""The data that a user names: token files at a path, or prepared folders with weights, which are mixed first."""

from typing import Any

from platform.common.options import option
from platform.study.folder import user_path
from trainers.spec.recipe_axes import INCLUDED, STREAM


def data_field(**declared: Any) -> Any:
    about = "token files that platform.prepare made, or folders to mix, as in 'a:0.7 b:0.3' (default: the recipe's)"
    return option(None, metavar="PATH", about=about, **declared)


def data_path(text: str) -> str:
    """Returns the absolute path of the token files called `text`; `INCLUDED` and `STREAM` are returned unchanged.

    Folders with weights, such as "web:0.7 code:0.3", give the path of their mixture, which is written if it is missing.

    Raises:
        InputError: the path's user does not exist, or the folders cannot be mixed.
    """
    if text in (INCLUDED, STREAM):
        return text
    words = text.split()
    if len(words) > 1 and all(word.rpartition(":")[0] for word in words) and not user_path(text).exists():
        from platform.train.preparing.mixing import mixed  # imported here: only mixtures need tokenizers

        if (folder := mixed(words)) is not None:
            return str(folder)
    return str(user_path(text).absolute())
