"""Makes `import platform` return the standard-library module, with this folder's modules as its submodules."""

import importlib.util
import os
import sys

_spec = importlib.util.spec_from_file_location("platform", os.path.join(os.path.dirname(os.__file__), "platform.py"))
assert _spec is not None and _spec.loader is not None
_stdlib = importlib.util.module_from_spec(_spec)
_stdlib.__path__ = [os.path.dirname(os.path.abspath(__file__))]
sys.modules["platform"] = _stdlib
_spec.loader.exec_module(_stdlib)
if sys.argv[:1] == ["-m"]:  # a command, whose Python may lack packages that `make setup` installs
    # Imported only after an error: the working folder, whose packages `platform.common` checks, is not on the path yet.
    sys.excepthook = lambda *error: importlib.import_module("platform.common.environment").explain(*error)
