"""Finds the fastest training layout that fits, measured: the command is `layout-search`."""

import importlib.metadata

__version__ = importlib.metadata.version("layout-search")
