"""Clicks from the address that `make mlflow` prints to the table of layouts and to a training's loss curves."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from platform.common.checkout import ROOT
from platform.tracking.mirror import Mirror, default_uri
from tests import needs
from tests.loopback import free_port
from tests.tracking import pages
from tests.tracking.browser import Page, page
from tests.tracking.studies import POINTS, write
from tests.train.test_mlflow_run import BEGUN, FIRST, follow
from trainers.records.training_lines import write as write_record

pytestmark = [pytest.mark.mirror, pytest.mark.heavy]

_LINK = "[...document.querySelectorAll('a')].find(e => e.innerText.trim().startsWith('{}'))"


def _pressed(view: Page, words: str) -> str:
    """Presses a link of a page's description; returns its address, which MLflow opens in a tab of its own."""
    link = _LINK.format(words)
    view.click(link, 120)
    address = view.ask(f"{link}.href")
    view.open("about:blank")
    return address


def test_the_printed_address_leads_to_layouts_and_to_losses_in_a_click_each(studies: Path, tmp_path: Path) -> None:
    browser = needs.browser()
    mirror = Mirror(write(studies, "seen-1", *POINTS), default_uri(studies)).start()
    assert mirror.close(600) == ""
    records = tmp_path / "training.jsonl"
    for record in (BEGUN, FIRST):
        write_record(records, record)
    follow(default_uri(studies), records)
    command = [
        sys.executable,
        "-m",
        "platform.tracking.serve",
        "--studies",
        str(studies),
        "--port",
        str(free_port()),
    ]
    with (
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server,
        page(browser, tmp_path / "profile", width=pages.WIDTH, height=pages.HEIGHT) as view,
    ):
        try:
            assert server.stdout is not None
            printed = [server.stdout.readline() for _ in range(8)]
            named = [line.split()[1] for line in printed if line.startswith("  page ")]
            assert printed[0].split()[2] == named[0], "the newest study's own page comes first"
            pages.answering(named[0].partition("#")[0])

            view.open(named[0])
            view.wait_for(f"!!{_LINK.format('layouts')}")
            text = view.wait_for("document.body.innerText.includes('Tags') && document.body.innerText")
            assert text.index("50,000 tokens/s") < text.index("Metrics (") < text.index("Tags"), "figures above tags"
            view.picture(tmp_path / "study.png")
            pages.opened(view, _pressed(view, "layouts"))
            pages.columns(view)
            assert len(pages.rows(view, len(POINTS))) == len(POINTS)
            view.picture(tmp_path / "layouts.png")

            view.open("about:blank")
            view.open(named[1])
            view.open(_pressed(view, "Losses"))
            view.wait_for(f"({pages.CURVES}).filter(chart => chart.length).length >= 2", 120)
            time.sleep(2)  # lines are drawn a moment after their axes
            view.picture(tmp_path / "losses.png")
        finally:
            server.kill()
