"""Commands, options and files that the pages name exist."""

import re
from collections.abc import Iterator
from pathlib import Path

from scripts.pages.options import COMMANDS, parser_of

ROOT = Path(__file__).parents[2]
PAGES = [
    *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "lab").glob("*.md"),
    ROOT / "docs" / "notebook.ipynb", *(ROOT / "docs" / "templates").glob("*.yaml"),
]  # fmt: skip
OF_OTHERS = {"--user", "--gres", "--regenerate-golden"}
"""Options of Docker, SLURM and pytest that text names."""


def _options() -> dict[str, set[str]]:
    """Returns the options of each command that the page of options lists."""
    parsers = [parser_of(module) for module in COMMANDS]
    return {
        parser.prog.removeprefix("python -m "): {name for action in parser._actions for name in action.option_strings}  # pyright: ignore[reportPrivateUsage]
        for parser in parsers
    }


def wrong(text: str, options: dict[str, set[str]]) -> Iterator[str]:
    """Yields each command, option or file of a page's text that does not exist. Names in capitals stand for others."""
    for module, rest in re.findall(r"python -m ((?:\w+\.)+\w+)([^\n`]*)", text.replace("\\\n", " ")):
        place = ROOT.joinpath(*module.split("."))
        source = next((path for path in (place.with_suffix(".py"), place / "__main__.py") if path.exists()), None)
        if module.partition(".")[0] in {"platform", "scripts", "benchmarks", "deploy"} and source is None:
            yield module
        given = re.findall(r"(?<!\w)--[a-z][a-z-]*", rest.partition(" -- ")[0].partition("#")[0])
        if module in options:
            yield from (f"{module} {name}" for name in given if name not in options[module])
        elif source is not None:
            yield from (f"{module} {name}" for name in given if f'"{name}"' not in source.read_text("utf-8"))
    named = set(re.findall(r"`(--[a-z][a-z-]+)", text))
    yield from named - OF_OTHERS - set().union(*options.values())
    files = re.findall(r"`((?:platform|trainers|search_spaces|tests|scripts|benchmarks|deploy|docs)/[\w./-]+)`", text)
    yield from (path for path in files if not re.search("NAME|ROOM", path) and not (ROOT / path).exists())
    targets = re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"))
    yield from (f"make {name}" for name in re.findall(r"(?m)(?:`|^ {4})make ([a-z-]+)", text) if name not in targets)


def test_the_pages_name_what_exists() -> None:
    assert len(PAGES) > 30
    options = _options()
    found = [f"{page.relative_to(ROOT)}: {name}" for page in PAGES for name in wrong(page.read_text("utf-8"), options)]
    assert found == []


def test_what_does_not_exist_is_seen() -> None:
    text = (
        "`python -m platform.plan A --cluster 8xH100 --tempo 3` and `python -m platform.plans`, `--colour`,\n"
        "`make tea`, `tests/none.py`, not `trainers/NAME.py` or `python -m platform.search -- train.py --lr 1`"
    )
    assert sorted(wrong(text, _options())) == [
        "--colour",
        "make tea",
        "platform.plan --tempo",
        "platform.plans",
        "tests/none.py",
    ]
