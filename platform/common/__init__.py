"""Shared helpers of `platform`: errors, signals, text formatting, progress lines, the commit of this checkout."""

from __future__ import annotations  # an older Python reads this too, see `environment`

import importlib.util
import os
import sys
from pathlib import Path


def _roots() -> dict[str, Path]:
    """Returns the checkout that each of our packages was imported from, by package name."""
    roots = {"platform": Path(__file__).resolve().parents[2]}
    above = __name__.rpartition("platform.")[0]  # the prefix before "platform."; empty in a checkout
    for name in ("search_spaces", "trainers"):
        spec = importlib.util.find_spec(above + name)
        if spec is not None and spec.origin is not None:
            roots[name] = Path(spec.origin).resolve().parents[1]
    return roots


if len(set((roots := _roots()).values())) > 1:
    # Checked here because every command imports this module first, before a name can be missing in one checkout.
    places = ", ".join(f"{name} from {root}" for name, root in roots.items())
    without = " and without PYTHONPATH" if os.environ.get("PYTHONPATH") else ""
    advice = f"run the command in the folder of the one that is meant{without}"
    print(f"error: two checkouts are mixed ({places}): {advice}", file=sys.stderr)
    raise SystemExit(2)
