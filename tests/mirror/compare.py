"""MLflow's comparison of a study's runs, reached as a person reaches it. Also draws it for the docs:

.venv/bin/python -m tests.mirror.compare --studies studies NAME docs/pictures/compare.png
"""

import argparse
import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator, Sequence
from pathlib import Path

from platform.mirror.mirror import Mirror, default_uri
from tests.mirror.browser import Page, chromium, page

PARAMETERS = ("engine", "sharding", "checkpointing", "micro_batch", "outcome")
METRICS = ("peak_allocated_gib", "tokens_per_s")
WIDTH, HEIGHT = 1500, 1150


@contextlib.contextmanager
def looked_at(look: str, folder: Path) -> Generator[str]:
    """Runs the line that a search prints, on a port of its own; the address of the page that the line names."""
    command, _, there = look.partition("  # then open ")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    program, *arguments = shlex.split(command)
    # `mlflow` of this environment, whether or not it is activated.
    words = [str(Path(sys.executable).with_name(program)), *arguments, "--port", str(port), "--workers", "1"]
    # The server's job runners are processes of their own that take seconds to start; looking needs none.
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    log = folder / "mlflow-ui.log"
    with log.open("wb") as file:
        process = subprocess.Popen(words, cwd=folder, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        until_s = time.monotonic() + 600
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                break
            assert process.poll() is None and time.monotonic() < until_s, log.read_text()
            time.sleep(0.2)
        yield there.replace("127.0.0.1:5000", f"127.0.0.1:{port}")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def compare(shown: Page, address: str, children: Sequence[str]) -> None:
    """Opens the study on the page of runs, ticks its children and presses Compare."""
    shown.open(address)
    shown.click("document.querySelector('[aria-label=\"Close\"]')")  # the assistant, which MLflow opens for newcomers
    shown.click("document.querySelector('.ag-row button')")  # the plus sign at the study
    boxes = [_tick_box(name) for name in children]
    every = f"[{', '.join(boxes)}].every(e => e?.checked)"
    for _ in range(5):  # a table drawn anew while it still loads may forget a tick
        for box in boxes:
            if not shown.ask(f"{box}?.checked"):
                shown.click(box)
                with contextlib.suppress(TimeoutError):
                    shown.wait_for(f"{box}?.checked", 15)
        time.sleep(1)
        if shown.ask(every):
            break
    shown.click("document.querySelector('[data-testid=runs-compare-button]')")
    shown.wait_for(f"document.body.innerText.includes('Comparing {len(children)} Runs')")
    shown.wait_for("!!document.querySelector('.pcp-plot')?.data")


def _tick_box(name: str) -> str:
    """A run's tick box, as JavaScript that finds it anew each time: rows move while the table loads.

    Name and box stand in two parts of one table and share the row's number.
    """
    return f"""(row => row && document.querySelector(
        `.ag-row[row-index="${{row.getAttribute('row-index')}}"] input[type=checkbox]`
    ))([...document.querySelectorAll('.ag-row')].find(e => e.innerText.split('\\n').includes({name!r})))"""


def choose(shown: Page, *, parameters: Sequence[str], metrics: Sequence[str]) -> None:
    """Sets the axes of the parallel coordinates."""
    shown.click("document.querySelector('[data-testid=clear-button]')")
    for number, names in enumerate((parameters, metrics)):
        box = f"document.querySelectorAll('input[role=combobox]')[{number}]"
        for name in names:
            option = (
                f"[...document.querySelectorAll('[class*=select-item-option]')].find(e => e.innerText === {name!r})"
            )
            chosen = f"[...document.querySelectorAll('[class*=selection-item]')].some(e => e.innerText === {name!r})"
            for _ in range(5):  # a list that closes or is drawn anew may take a click or the focus
                if shown.ask(chosen):  # late: a second click would take it back
                    break
                shown.click(f"{box}.parentElement")
                shown.ask(f"({box}.focus(), {box}.select())")
                shown.type(name)
                with contextlib.suppress(TimeoutError):
                    shown.wait_for(f"!!({option})", 10)
                    shown.click(option, 10)
                    shown.wait_for(chosen, 20)
        shown.click("document.querySelector('h1, h2')")  # which closes the list
    shown.wait_for(
        f"{[*parameters, *metrics]!r}.every(e => document.querySelector('.pcp-plot').textContent.includes(e))"
    )


def main() -> None:
    """Draws the comparison of a study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--studies", type=Path, default=Path("studies"))
    options = parser.parse_args()
    program = chromium()
    assert program is not None, "this needs Chromium"
    mirror = Mirror(options.studies / options.name, default_uri(options.studies)).start()
    assert not (lacking := mirror.close(600)), lacking
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=mirror.uri)
    experiments = [each.experiment_id for each in client.search_experiments()]
    runs = client.search_runs(experiments, f"tags.study = '{options.name}'", max_results=1000)
    names = [run.info.run_name or "" for run in runs if "measurement_id" in run.data.tags]
    with (
        tempfile.TemporaryDirectory() as folder,
        looked_at(mirror.look, Path(folder)) as address,
        page(program, Path(folder) / "profile", width=WIDTH, height=HEIGHT) as shown,
    ):
        compare(shown, address, names)
        choose(shown, parameters=PARAMETERS, metrics=METRICS)
        time.sleep(2)  # the lines are drawn a moment after the axes
        shown.picture(options.picture)


if __name__ == "__main__":
    main()
