"""The pages that a search prints, looked at in a real browser: the columns, rows and charts that they promise."""

import dataclasses
import subprocess
from pathlib import Path

import pytest
from mlflow import MlflowClient

from platform.common.checkout import ROOT
from platform.report.result_files import write_results
from platform.study.group import StudyGroup, write_group
from platform.study.result.result import StudyResult
from platform.study.study import Study, read
from platform.tracking import views
from platform.tracking.mirror import Mirror, default_uri
from platform.train.converging.comparison_runs import log_comparison
from tests import needs
from tests.samples import CLUSTER, header, layout, measurement, oom, profile, skipped
from tests.tracking import pages
from tests.tracking.browser import page
from tests.train.converging.made_up import mirrored
from trainers.records.journal import End, GateCurves, Measured
from trainers.spec.layout import Layout

pytestmark = pytest.mark.mirror

SLOW = measurement(tokens_per_s=31000.0, peak_allocated_gib=41.5)
FAST = measurement(
    on=layout(zero_stage=2), micro_batch=2, tokens_per_s=43000.0, peak_allocated_gib=63.25, trial_id="t2"
)
AGAIN = tuple(
    dataclasses.replace(FAST, repeat=number, trial_id=f"t{number + 4}", tokens_per_s=speed)
    for number, speed in ((1, 42000.0), (2, 43500.0), (3, 42500.0))
)
POINTS = (
    SLOW,
    FAST,
    measurement(on=Layout(engine="deepspeed", zero_stage=1, dp_shard=4), tokens_per_s=37000.0, trial_id="t3"),
    oom(on=Layout(engine="ddp", dp_replicate=4), micro_batch=4, trial_id="t4"),
)
LOSSES = ((12.5, 12.0, 11.0), (12.5, 12.01, 11.0))


@pytest.fixture
def browser() -> str:
    """Returns the path of Chromium, which CI installs (`.ci/run`)."""
    return needs.browser()


def test_each_printed_page_has_its_columns_rows_and_charts(
    studies: Path, tmp_path: Path, browser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if subprocess.run(["make", "--question", ".venv/.installed"], cwd=ROOT).returncode:
        monkeypatch.chdir(tmp_path)  # where the printed command is `mlflow ui`: `make` would install
    write_group(studies / "seen", StudyGroup(counts=(2, 4)))  # of which efficiency is known
    with Study.create(studies, "seen-4gpu") as study:
        h200 = dataclasses.replace(CLUSTER, device="NVIDIA H200", device_memory_gib=139.8)  # which the cost model knows
        study.record(header("seen-4gpu", price_per_gpu_h=2.5, cluster=h200))
        for point in (*POINTS, *AGAIN, skipped(micro_batch=8)):
            study.record(Measured(measurement=point))
        for on, losses in zip((SLOW, FAST), LOSSES, strict=True):
            study.record(
                GateCurves(
                    trial_id="t9",
                    recipe=on.recipe,
                    layout=on.layout,
                    steps=3,
                    sequences=32,
                    losses=losses,
                    grad_norms=(3.0, 2.0, 1.0),
                    is_reference=on is SLOW,
                )
            )
        study.record(profile(FAST, trial_id="t10"))
        study.record(End(exit_code=0, wall_s=10, gpu_s=40))
        write_results(study.path, StudyResult.of(read(study.path)[0]))
    mirror = Mirror(study.path, default_uri(studies)).start()
    assert mirror.close(600) == ""
    client = MlflowClient(tracking_uri=mirror.uri)
    experiments = client.search_experiments(filter_string="name = 'bloom7b'")
    (parent,) = client.search_runs([experiments[0].experiment_id], "tags.study = 'seen-4gpu' and tags.role = 'study'")

    compared = log_comparison(*mirrored(tmp_path / "compared", mirror.uri), studies)
    look = f"{mirror.look}\n{compared.splitlines()[-1]}"

    with (
        pages.served(look, tmp_path) as addresses,
        page(browser, tmp_path / "profile", width=pages.WIDTH, height=pages.HEIGHT) as view,
    ):
        pages.opened(view, addresses["layouts"])
        of_layouts = {*views.LAYOUT_PARAMS, *views.LAYOUT_METRICS}
        assert set(pages.columns(view, len(of_layouts))) == of_layouts
        assert pages.rows(view, 4) == [  # the fastest first, a point once: by the run of median speed
            "FSDP2 stage 2, MBS 2, run 3 (t7)",
            "ZeRO-1, MBS 1 (t3)",
            "FSDP2 stage 3, MBS 1 (t1)",
            "DDP, MBS 4 (t4)",
        ]
        view.picture(tmp_path / "layouts.png")

        pages.opened(view, addresses["charts"])
        named = ["tokens_per_s", "peak_gib vs. tokens_per_s", "micro_batch vs. tokens_per_s", "Parallel Coordinates"]
        titles = pages.charts(view, 4, "Layouts of seen-4gpu", *named, *views.AXES)
        assert [title for title in named if title not in titles] == []
        assert [axis for axis in (*views.AXES, "peak_gib") if axis not in titles] == []
        view.picture(tmp_path / "charts.png")

        pages.opened(view, addresses["gates"])
        assert {"gate_loss", "gate_grad_norm"} <= set(pages.charts(view, 2, "gate_loss", "gate_grad_norm"))
        drawn = pages.curves(view, 2, 2)
        assert {tuple(curve) for curve in drawn[0]} == set(LOSSES)
        assert {tuple(curve) for curve in drawn[1]} == {(3.0, 2.0, 1.0)}
        view.picture(tmp_path / "gates.png")

        pages.opened(view, addresses["studies"])
        of_studies = {*views.STUDY_METRICS, *views.STUDY_TAGS}
        assert set(pages.columns(view, len(of_studies))) == of_studies
        assert pages.rows(view, 2) == [
            "seen-4gpu",
            "first",
        ]  # the store has another study of the space, without a winner
        pages.opened(view, addresses["scaling"])
        assert "gpus vs. days" in pages.charts(view, 2, "gpus vs. days")

        # A comparison of trainings: both losses against tokens and hours, a curve a strategy, its seeds grouped.
        pages.opened(view, addresses["losses"])
        pages.charts(view, 4, "Convergence: compared")
        assert [len(curve) for curve in pages.curves(view, *[2 * 3] * 4)] == [
            2 * 3
        ] * 4  # of each the mean and both edges of its band
        view.picture(tmp_path / "convergence.png")

        # The study page: the tables are tables there, the pictures pictures.
        run = f"{addresses['layouts'].partition('/runs')[0]}/runs/{parent.info.run_id}"
        view.open(f"{run}/artifacts/skipped.json")
        view.wait_for("document.body.innerText.includes('states alone need 105.3 GiB')")
        assert "micro_batch" in view.text()
        view.open("about:blank")  # within MLflow the file once chosen stays chosen
        view.open(f"{run}/artifacts/heat-map.png")
        view.wait_for("[...document.querySelectorAll('img')].some(e => e.naturalWidth > 600)")
