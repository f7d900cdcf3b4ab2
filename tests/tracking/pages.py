"""Serves and opens MLflow's pages of a study as the last lines of a search say. Also draws them for the docs:

.venv/bin/python -m tests.tracking.pages --studies studies NAME charts docs/pictures/mlflow-charts.png
"""

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path

from platform.tracking.mirror import Mirror, default_uri
from tests.loopback import closed_port
from tests.tracking.browser import Page, chromium, page

WIDTH, HEIGHT = 1900, 1050


@contextlib.contextmanager
def served(look: str, folder: Path) -> Generator[dict[str, str]]:
    """Runs the command that a search prints, on its own port, and yields the address of each view that the search
    prints.
    """
    first, *lines = look.splitlines()
    command = first.removeprefix("MLflow: ").removesuffix(", then open")
    # The server's job runners are processes of their own that take seconds to start; looking needs none.
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    log = folder / "mlflow-ui.log"
    with closed_port() as port, log.open("wb") as file:
        with_port = f"{command} PORT={port}" if command.startswith("make ") else f"{command} --port {port} --workers 1"
        process = subprocess.Popen(
            shlex.split(with_port), env=environment, stdout=file, stderr=file, start_new_session=True
        )
        try:
            answering(f"http://127.0.0.1:{port}/", process)
            yield {name: address.replace(":5000", f":{port}") for name, address in map(str.split, lines)}
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def answering(server: str, process: subprocess.Popen[bytes] | None = None) -> None:
    """Waits until the server answers; fails if its process ended first."""
    until_s = time.monotonic() + 600
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{server}health", timeout=2):
            return
        assert (process is None or process.poll() is None) and time.monotonic() < until_s, server
        time.sleep(0.2)


def opened(view: Page, address: str) -> None:
    """Opens the address in an empty page and closes MLflow's messages to new users."""
    view.open("about:blank")
    view.open(address)
    with contextlib.suppress(TimeoutError):
        view.wait_for("!!document.querySelector('.ag-header-cell')", 300)
        view.click("document.querySelector('[aria-label=\"Close\"]')", 2)


def columns(shown: Page, count: int = 0) -> list[str]:
    """Returns the table's columns from left to right; scrolls to each, because MLflow draws only visible ones, until at
    least `count` were seen: a busy machine draws a part only after the page was scrolled on.
    """
    names: dict[str, None] = {}
    shown.wait_for("document.querySelectorAll('.ag-header-cell').length > 5")
    view, until_s = "document.querySelector('.ag-body-horizontal-scroll-viewport')", time.monotonic() + 300
    while True:
        shown.ask(f"{view}.scrollLeft = 0")
        is_last = False
        while not is_last:
            time.sleep(0.5)
            is_last = shown.ask(f"{view}.scrollLeft + {view}.clientWidth >= {view}.scrollWidth - 2")
            cells = shown.ask(
                """[...document.querySelectorAll('.ag-header-cell')]
                .map(e => [e.getBoundingClientRect().x, e.getAttribute('col-id')]).sort((a, b) => a[0] - b[0])"""
            )
            names |= {
                name.split("`")[1]: None for _, name in cells if name.startswith(("params.", "metrics.", "tags."))
            }
            shown.ask(f"{view}.scrollLeft += 300")
        if len(names) >= count or time.monotonic() > until_s:
            return list(names)


def rows(view: Page, count: int) -> list[str]:
    """Waits until the table has `count` runs; returns their names from top to bottom."""
    shown = """[...document.querySelectorAll('.ag-row')].filter(e => e.querySelector('a'))
        .sort((a, b) => a.getAttribute('row-index') - b.getAttribute('row-index'))
        .map(e => e.querySelector('a').innerText.trim())"""
    view.wait_for(f"{shown}.filter(name => name).length >= {count}")
    return view.ask(shown)


CURVES = """[...document.querySelectorAll('.js-plotly-plot')].map(
    plot => plot.data.filter(e => e.x?.length > 1).map(e => Array.from(e.y)))"""
"""JavaScript expression for `curves`. The page draws one chart after the other; a test may wait for all of them."""


def charts(view: Page, count: int, *texts: str) -> list[str]:
    """Waits until `count` charts are drawn and the page has the texts; returns the lines of the page's text, which
    include the charts' titles.
    """
    drawn = "[...document.querySelectorAll('.js-plotly-plot')].filter(e => e.data?.length)"
    parallel = "document.querySelectorAll('.parcoords').length"
    view.wait_for(f"{drawn}.length + {parallel} >= {count}")
    for text in texts:
        view.wait_for(f"document.body.innerText.includes({json.dumps(text)})")
    return [line for line in view.text().splitlines() if line]


def curves(view: Page, *counts: int) -> list[list[list[float]]]:
    """Waits until the line charts have so many curves each, in order; returns the values of each curve, for each."""
    view.wait_for(f"((drawn) => {[*counts]}.every((count, n) => (drawn[n] ?? []).length >= count))({CURVES})")
    return view.ask(CURVES)


def main() -> None:
    """Draws a view of a study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("view", choices=("layouts", "charts", "gates", "studies", "scaling"))
    parser.add_argument("picture", type=Path)
    parser.add_argument("--studies", type=Path, default=Path("studies"))
    options = parser.parse_args()
    is_table = options.view in ("layouts", "studies")
    program = chromium()
    assert program is not None, "this needs Chromium"
    mirror = Mirror(options.studies / options.name, default_uri(options.studies)).start()
    assert not (lacking := mirror.close(600)), lacking
    with (
        tempfile.TemporaryDirectory() as folder,
        served(mirror.look, Path(folder)) as addresses,
        page(program, Path(folder) / "profile", width=WIDTH, height=HEIGHT if is_table else 1500) as view,
    ):
        opened(view, addresses[options.view])
        if is_table:
            columns(view)
            view.ask("document.querySelector('.ag-body-horizontal-scroll-viewport').scrollLeft = 0")
        else:
            charts(view, 2)
        time.sleep(5)  # lines are drawn a moment after their axes
        view.picture(options.picture)


if __name__ == "__main__":
    main()
