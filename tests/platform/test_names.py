"""`platform` is the standard library's module, with our folder beside it, however Python was started."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import platform
import platform.searchers

ROOT = Path(__file__).resolve().parents[2]

DESCRIBE = """
import hashlib, json, marshal, platform
def facts(value):
    code = getattr(value, "__code__", None)
    if code is not None:
        return ["function", value.__module__, value.__qualname__, hashlib.sha256(marshal.dumps(code)).hexdigest()]
    if isinstance(value, type):
        return ["class", value.__module__, value.__qualname__, sorted(vars(value))]
    return ["module", value.__name__] if type(value).__name__ == "module" else [type(value).__name__, str(value)]
public = {name: facts(value) for name, value in vars(platform).items() if not name.startswith("_")}
calls = ["system", "machine", "node", "release", "version", "platform", "processor", "python_version",
         "python_implementation", "python_compiler", "uname", "libc_ver", "mac_ver", "architecture"]
print(json.dumps({"file": platform.__file__, "name": platform.__name__, "spec": platform.__spec__.name,
                  "origin": platform.__spec__.origin, "package": platform.__package__, "doc": platform.__doc__,
                  "public": public, "calls": {call: str(getattr(platform, call)()) for call in calls}}))
"""


def _describe(*options: str, cwd: Path) -> dict[str, Any]:
    command = [sys.executable, *options, "-c", DESCRIBE]
    child = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True, timeout=300)
    return json.loads(child.stdout)


def test_every_public_name_is_the_standard_one(tmp_path: Path) -> None:
    # -I leaves the current folder out, -S the .pth of an environment set up by `make setup`.
    standard = _describe("-I", "-S", cwd=tmp_path)
    ours = _describe("-S", cwd=ROOT)
    assert len(standard["public"]) > 20
    assert ours == standard


def test_the_package_is_taken_from_the_root_without_a_pth() -> None:
    command = [sys.executable, "-S", "-c", "import platform; print(platform.__path__[0])"]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    assert Path(child.stdout.strip()) == ROOT / "platform"


def test_the_standard_functions_and_our_modules_stand_beside_each_other() -> None:
    assert sys.modules["platform"] is platform
    assert Path(str(platform.__file__)).parent == Path(os.__file__).parent
    assert platform.python_version() == ".".join(map(str, sys.version_info[:3]))
    assert list(platform.__path__) == [str(ROOT / "platform")]
    assert Path(str(platform.searchers.__file__)).is_relative_to(ROOT / "platform")
    assert platform.searchers.__package__ == "platform.searchers"


def test_nothing_else_is_in_our_init() -> None:
    lines = (ROOT / "platform" / "__init__.py").read_text().splitlines()
    imported = [line for line in lines if line.startswith(("import ", "from "))]
    assert imported == ["import importlib.util", "import os", "import sys"]
    assert not [line for line in lines if line.startswith(("def ", "class "))]
