"""Finds the fastest training layout that fits, by measuring. The command is `layout-search`; the functions below are
imported at first use, so that `import layout_search` is fast.
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
