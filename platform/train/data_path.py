"""The data that a user names: token files at a path, or prepared folders with weights, which are mixed first."""

from typing import Any

from platform.common.options import option
from platform.study.folder import user_path
from trainers.spec.recipe_axes import INCLUDED, STREAM


def data_field(**declared: Any) -> Any:
    """Returns the field of `--data`."""
    about = "token files that platform.prepare made, or folders to mix, as in 'a:0.7 b:0.3' (default: the recipe's)"
    return option(None, metavar="PATH", about=about, **declared)


def data_path(text: str) -> str:
    """Returns the absolute path of the token files called `text`, and "stream" and "included" as they are; of folders
    with weights, "web:0.7 code:0.3", that of their mixture, which is made where it is not there yet.

    Raises:
        InputError: there is no such user, or the folders are no mixture.
    """
    if text in (INCLUDED, STREAM):
        return text
    words = text.split()
    if len(words) > 1 and all(word.rpartition(":")[0] for word in words) and not user_path(text).exists():
        from platform.train.preparing.mixing import mixed  # tokenizers and file systems, for mixtures alone

        if (folder := mixed(words)) is not None:
            return str(folder)
    return str(user_path(text).absolute())
