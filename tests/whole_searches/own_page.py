"""The commands of docs/your-training.md."""

from tests.whole_searches.session import ROOT

PAGE = ROOT / "docs" / "your-training.md"


def whole_example() -> tuple[str, str]:
    """Returns the page's whole example as two shell scripts: on one host, and the search on two."""
    _, section = PAGE.read_text(encoding="utf-8").split("## A whole example\n")
    blocks: list[list[str]] = [[]]
    for line in section.splitlines():
        if line.startswith("    "):
            blocks[-1].append(line.removeprefix("    "))
        elif blocks[-1] and line:
            blocks.append([])
    on_one, on_two = ("\n".join(block) for block in blocks if block)
    return on_one, on_two
