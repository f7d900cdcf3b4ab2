"""Finds the fastest training layout that fits, measured: the command is `layout-search`, the functions are those below.

They are imported when they are first used, so that `import layout_search` is at once.
"""

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .platform.api import (  # pyright: ignore[reportMissingImports]
        ClusterError,
        InputError,
        MeasuredStudy,
        Plan,
        Search,
        measure,
        open,
        plan,
        search,
    )  # fmt: skip

__version__ = importlib.metadata.version("layout-search")
__all__ = ["ClusterError", "InputError", "MeasuredStudy", "Plan", "Search", "measure", "open", "plan", "search"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(".platform.api", __name__), name)
