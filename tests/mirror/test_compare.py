"""In MLflow's pages a study's layouts stand beside each other by speed and memory: looked at in a real browser."""

import os
from pathlib import Path

import pytest
from mlflow import MlflowClient

from platform.mirror.mirror import Mirror, default_uri
from platform.reports.files import write_results
from platform.study.study import Study, read
from tests.mirror import compare
from tests.mirror.browser import chromium, page
from tests.samples import header, layout, measurement, oom, skipped
from trainers.journal import End, Measured
from trainers.layout import Layout

POINTS = (
    measurement(tokens_per_s=31000.0, peak_allocated_gib=41.5),
    measurement(on=layout(zero_stage=2), micro_batch=2, tokens_per_s=43000.0, peak_allocated_gib=63.25),
    measurement(on=Layout(engine="deepspeed", zero_stage=1, dp_shard=4), tokens_per_s=37000.0),
    oom(on=Layout(engine="ddp", dp_replicate=4), micro_batch=4),
)
NAMES = tuple(f"{each.layout.label}, MBS {each.batch.micro_batch}" for each in POINTS)
DRAWN = """Object.fromEntries(document.querySelector('.pcp-plot').data[0].dimensions.map(
    axis => [axis.label.replace(/<[^>]*>/g, ''), axis.values.map(v => axis.ticktext ? axis.ticktext[v] : v)]))"""
"""What the parallel coordinates draw: axis -> a value for each run, null for none."""


@pytest.fixture
def browser() -> str:
    """Chromium; CI installs it (`.ci/run`)."""
    program = chromium()
    if program is None and "CI" not in os.environ:
        pytest.skip("no Chromium here: install it (Debian: apt-get install chromium), or name one by CHROMIUM")
    assert program is not None, "CI must have Chromium: .ci/run installs it"
    return program


def test_layouts_are_compared_by_speed_and_memory(studies: Path, tmp_path: Path, browser: str) -> None:
    with Study.create(studies, "seen") as study:
        study.record(header("seen"))
        for each in (*POINTS, skipped(micro_batch=8)):
            study.record(Measured(measurement=each))
        study.record(End(exit_code=0, wall_s=10, gpu_s=40))
        write_results(study.path, read(study.path)[0])
    mirror = Mirror(study.path, default_uri(studies)).start()
    assert mirror.close(600) == ""
    client = MlflowClient(tracking_uri=mirror.uri)
    found = client.search_experiments(filter_string="name = 'bloom7b'")
    (parent,) = client.search_runs([found[0].experiment_id], "tags.study = 'seen' and params.searcher = 'all'")

    with (
        compare.looked_at(mirror.look, tmp_path) as address,
        page(browser, tmp_path / "profile", width=compare.WIDTH, height=compare.HEIGHT) as shown,
    ):
        compare.compare(shown, address, NAMES)
        assert "Comparing 4 Runs" in shown.text()
        # Without a choice: the layouts against their speed.
        assert {"engine", "grad_accum", "tokens_per_s"} <= set(shown.ask(DRAWN))
        compare.choose(shown, parameters=compare.PARAMETERS, metrics=compare.METRICS)
        drawn = shown.ask(DRAWN)
        assert list(drawn) == [*compare.PARAMETERS, *compare.METRICS]
        lines = set(zip(*(drawn[axis] for axis in ("sharding", "outcome", *reversed(compare.METRICS))), strict=True))
        assert lines == {
            ("full", "ok", 31000.0, 41.5),
            ("grad+opt", "ok", 43000.0, 63.25),
            ("ZeRO-1", "ok", 37000.0, 61.25),
            ("none", "oom", None, None),  # a line that is not drawn: without a figure it would stand above all others
        }
        shown.picture(tmp_path / "compare.png")

        # The study's own page: the tables are tables there, the pictures pictures.
        run = address.removesuffix("/runs") + f"/runs/{parent.info.run_id}"
        shown.open(f"{run}/artifacts/skipped.json")
        shown.wait_for("document.body.innerText.includes('states alone need 105.3 GiB')")
        assert "micro_batch" in shown.text()
        shown.picture(tmp_path / "skipped.png")
        shown.open("about:blank")  # within MLflow the file once chosen stays chosen
        shown.open(f"{run}/artifacts/heat-map.png")
        shown.wait_for("[...document.querySelectorAll('img')].some(e => e.naturalWidth > 600)")
        shown.picture(tmp_path / "heat-map-page.png")
