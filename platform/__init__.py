"""`platform` is also a standard-library module: this file hands that very module back, with our folder as its `__path__`."""

import importlib.util
import os
import sys

_spec = importlib.util.spec_from_file_location("platform", os.path.join(os.path.dirname(os.__file__), "platform.py"))
assert _spec is not None and _spec.loader is not None
_stdlib = importlib.util.module_from_spec(_spec)
_stdlib.__path__ = [os.path.dirname(os.path.abspath(__file__))]  # type: ignore[attr-defined]
sys.modules["platform"] = _stdlib
_spec.loader.exec_module(_stdlib)
