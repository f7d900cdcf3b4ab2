"""Makes `python -m platform.search` work from any folder: `.venv/bin/python scripts/install_pth.py`.

Writes a `.pth` file into the site-packages of the Python that runs it; may be run again at any time. The file's first
line appends this checkout to the path, for `trainers` and `search_spaces`. Its second line gives the standard library's
`platform` this checkout's folder as `__path__`, so that commands are found beside its functions, under `python -P` too.
If Python searches the working folder first (`-m`, `-c`) and that folder is another checkout, `platform` comes from
there as well, as `trainers` and `search_spaces` do.
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
    # With PYTHONPATH the import may have found a checkout, whose `__init__` has set the path already.
    return f"{root}\nimport os, sys, platform; platform.__path__ = getattr(platform, '__path__', None) or {ours}\n"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    root = Path(__file__).resolve().parent.parent
    target = Path(sysconfig.get_path("purelib")) / NAME
    target.write_text(lines(root))
    print(f"{target} now leads to {root}")


if __name__ == "__main__":
    main()
