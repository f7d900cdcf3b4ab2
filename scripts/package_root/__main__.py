"""The command `layout-search COMMAND ...`; each command is a module of `layout_search.platform`."""

import runpy
import sys

from . import __version__

COMMANDS = {
    "search": "measures layouts and returns the fastest",
    "plan": "predicts layouts, before anything is measured",
    "report": "shows what a study measured",
    "recheck": "measures a study's winner again, on today's machine and versions",
    "train": "trains with a study's winner",
    "converge": "trains several layouts to a loss",
    "prepare": "makes token files of texts",
    "export": "writes a layout for other programs",
    "probe": "measures devices and links",
    "validate": "compares predictions with a table of measurements",
    "replay": "plays searches over a table of measurements",
}


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name == "--version":
        print(f"layout-search {__version__}")
    elif name in ("--help", "-h"):
        print("usage: layout-search COMMAND [options]    layout-search COMMAND --help    layout-search --version\n")
        print("\n".join(f"  {command:9} {about}" for command, about in COMMANDS.items()))
    elif name not in COMMANDS:
        print(f"error: layout-search knows {', '.join(COMMANDS)}, got {name!r}", file=sys.stderr)
        sys.exit(2)
    else:
        sys.argv = [f"layout-search {name}", *sys.argv[2:]]
        runpy.run_module(f"layout_search.platform.{name}", run_name="__main__")


if __name__ == "__main__":
    main()
