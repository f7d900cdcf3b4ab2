"""Lets `python -m platform.search` work from any folder: `.venv/bin/python scripts/install_pth.py`.

Writes one `.pth` file into the site-packages of the Python that runs it. Its first line puts this checkout at the end
of the path, for `trainers` and `search_spaces`; its second gives the standard library's `platform` our folder as
`__path__`, so that our commands are found beside its functions, under `python -P` too. Where Python searches the
working folder first (`-m`, `-c`) and that is another checkout, all of it comes from there: `trainers` and
`search_spaces` would, and `platform` alone must not come from here. It may run again at any time.
"""

import argparse
import sysconfig
from pathlib import Path

NAME = "layout_search.pth"


def lines(root: Path) -> str:
    """Returns the file's content for the checkout at `root`."""
    in_checkout = "sys.argv[:1] in (['-m'], ['-c'], ['']) and not sys.flags.safe_path"
    checkout = "all(os.path.isdir(each) for each in ('platform/common', 'trainers', 'search_spaces'))"
    ours = f"[os.path.abspath('platform') if {in_checkout} and {checkout} else {str(root / 'platform')!r}]"
    # With PYTHONPATH the import itself may have found a checkout, whose `__init__` has set the path.
    return f"{root}\nimport os, sys, platform; platform.__path__ = getattr(platform, '__path__', None) or {ours}\n"


def main() -> None:
    """Writes the file into this Python's site-packages."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    root = Path(__file__).resolve().parent.parent
    target = Path(sysconfig.get_path("purelib")) / NAME
    target.write_text(lines(root))
    print(f"{target} now leads to {root}")


if __name__ == "__main__":
    main()
