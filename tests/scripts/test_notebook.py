"""The notebook page in a kernel of Jupyter's, from another folder with the installed package, and a kernel that is
interrupted.
"""

import contextlib
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import jupyter_client
import nbclient
import nbformat
import pytest

from platform.search.__main__ import main as search_command
from platform.study.study import Study, read
from tests.samples import header, measurement
from tests.whole_searches.session import ROOT
from tests.whole_searches.studies import WITHOUT_MLFLOW
from trainers.records.journal import End, Measured
from trainers.records.measurement import Outcome

pytestmark = [pytest.mark.search, pytest.mark.slow]
PAGE = ROOT / "docs" / "notebook.ipynb"
INTERRUPTED = """
import layout_search
layout_search.search("run.yaml", gpus=1, name="mine", seq_len=32, repeats=3)
"""


def _environment(site: Path) -> dict[str, str]:
    return {**os.environ, **WITHOUT_MLFLOW, "PYTHONPATH": str(site)}


def _shown(cell: Any) -> str:
    """Returns what a cell shows, as HTML where it can be, or prints."""
    outputs = [output.get("data", {"text/plain": output.get("text", "")}) for output in cell.outputs]
    return "\n".join(output.get("text/html", output.get("text/plain", "")) for output in outputs)


@pytest.mark.parametrize(
    "trains", [pytest.param(False, id="plans and reports"), pytest.param(True, marks=pytest.mark.heavy, id="whole")]
)
def test_the_page_runs_from_another_folder(site: Path, tmp_path: Path, trains: bool) -> None:
    """Checks the page as it stands, or as far as its training of one's own, whose search takes a minute."""
    with Study.create(tmp_path / "elsewhere", "gpt2-1") as study:
        study.record(header("gpt2-1"))
        study.record(Measured(measurement=measurement()))
        study.record(End(exit_code=0, wall_s=60.0, gpu_s=240.0, tried_all=True))
    page = nbformat.read(PAGE, as_version=4)
    if not trains:
        end = next(place for place, cell in enumerate(page.cells) if cell.source.startswith("## A training"))
        page.cells = page.cells[:end]
    environment = {**_environment(site), "STUDY": str(study.path)}
    client = nbclient.NotebookClient(page, timeout=1800, startup_timeout=600, kernel_name="python3")
    client.execute(cwd=str(tmp_path), env=environment)  # raises where a cell does
    cells = [_shown(cell) for cell in page.cells if cell.cell_type == "code"]
    version, plan, best, frame, mistake, shown, winner, by_engine, launch, *of_training = cells
    assert version.startswith("'0.") and "<table" in plan and "tokens_per_s" in plan and "<table" in frame
    assert best.startswith("('") and "8xH1000" in mistake and "Traceback" not in mistake
    assert "<table" in shown and "Fastest" in shown
    assert "'not gated'" in winner and "fsdp" in by_engine and launch == "'launch.sh'"
    assert (tmp_path / "exported" / "launch.sh").exists()
    assert bool(of_training) == trains
    if not trains:
        return
    *_, mine, mine_frame = of_training
    assert "<table" in mine and "train.py" in mine and "<table" in mine_frame
    history, _ = read(tmp_path / "studies" / "mine")
    assert {Outcome.OK} <= {measured.outcome for measured in history.measurements} <= {Outcome.OK, Outcome.SLOW}


@contextlib.contextmanager
def _kernel(folder: Path, environment: dict[str, str]) -> Generator[tuple[Any, Any]]:
    """Yields a kernel in the folder, and its client."""
    manager = jupyter_client.KernelManager(kernel_name="python3")  # type: ignore[reportPrivateImportUsage]
    manager.start_kernel(cwd=str(folder), env=environment)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=600)
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.heavy
def test_an_interrupted_kernel_keeps_what_was_measured(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks the stop button: the cell ends with KeyboardInterrupt, no process of the search is left, the next cell
    reads what was measured, and the study can be resumed.
    """
    for cell in nbformat.read(PAGE, as_version=4).cells:
        magic, _, text = cell.source.partition("\n")
        if magic.startswith("%%writefile "):
            (tmp_path / magic.split()[1]).write_text(text)
    journal = tmp_path / "studies" / "mine" / "journal.jsonl"
    with _kernel(tmp_path, _environment(site)) as (manager, client):
        request = client.execute(INTERRUPTED)
        until_s = time.monotonic() + 300
        while not (journal.exists() and '"kind":"measurement"' in journal.read_text().replace(" ", "")):
            assert time.monotonic() < until_s and manager.is_alive()
            time.sleep(0.1)
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=120)
        while reply["parent_header"]["msg_id"] != request:  # answers to what asked whether it is ready
            reply = client.get_shell_msg(timeout=120)
        assert (reply["content"]["status"], reply["content"]["ename"]) == ("error", "KeyboardInterrupt")
        history, _ = read(journal.parent)
        assert history.measurements and history.header is not None
        count = "len(layout_search.open('mine').frame())"
        answer = client.execute_interactive("", user_expressions={"rows": count}, timeout=60)
        rows = answer["content"]["user_expressions"]["rows"]["data"]["text/plain"]
        assert int(rows) == len(history.measurements)
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in _read(path)]
    assert not left
    monkeypatch.chdir(tmp_path)
    assert search_command(["--resume", "mine", "--dry-run", "--trust", "--studies", str(tmp_path / "studies")]) == 0


def _read(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""
