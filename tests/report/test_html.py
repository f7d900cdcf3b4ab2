"""The HTML page: its content, that it is self-contained, and its Pareto front."""

import dataclasses
import html.parser
import re
from pathlib import Path
from typing import Any

import pytest

from platform.common.errors import InputError
from platform.report.columns import MeasuredRow
from platform.report.html.loss_sections import thinned
from platform.report.html.page import page, write_page
from platform.report.html.pareto import choices, front, groups_of, staircase
from platform.study.history import History
from platform.study.result.result import StudyResult
from tests import needs
from tests.samples import CONDITIONS, RECIPE, header, layout, measurement, oom, profile, result_of, skipped
from tests.tracking.browser import page as browser_page
from trainers.records.journal import GateCurves, Measured
from trainers.records.measurement import Measurement, Outcome
from trainers.records.training import Steps, Validated
from trainers.records.training_lines import write
from trainers.spec.cluster import Cluster

AT = "2026-01-01T00:00:00+00:00"
PARTS: dict[str, Any] = {"middle_micro_step_s": 0.04, "last_micro_step_s": 0.06, "optimizer_step_s": 0.02}
FASTEST = measurement(micro_batch=2, tokens_per_s=50000.0, peak_allocated_gib=70.0, **PARTS)
LIGHT = measurement(on=layout(checkpointing="full"), tokens_per_s=35000.0, peak_allocated_gib=30.0)
POINTS = (
    measurement(peak_allocated_gib=60.0),
    FASTEST,
    LIGHT,
    oom(micro_batch=4),
    measurement(on=layout(zero_stage=2), tokens_per_s=20000.0, outcome=Outcome.SLOW, reason="stopped <b>early</b>"),
    skipped(micro_batch=8),
)
PAGE_SECTIONS = [
    "answer",
    "axes",
    "memory",
    "layouts",
    "batch",
    "days",
    "step",
    "predicted",
    "losses",
    "cost",
    "conditions",
]


class Tags(html.parser.HTMLParser):
    """Checks that a page's open elements are closed in order."""

    VOID = frozenset({"meta", "br", "hr", "img", "input", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sections: list[str] = []
        self.loaded: list[str] = []
        self.names: set[str] = set()
        self.words: list[str] = []
        self.num_rows = 0
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.num_rows += tag == "tr"
        attributes = dict(attrs)
        if tag == "section":
            self.sections.append(attributes["id"] or "")
        # An SVG's own parts and the sections are referred to by "#".
        references = (value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "data"))
        self.loaded += [value for value in references if not value.startswith("#")]
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def gates() -> list[GateCurves]:
    losses = {FASTEST.layout: (12.0, 11.0, 10.0), layout(dp_shard=4, checkpointing="full"): (12.0, 11.01, 10.02)}
    return [
        GateCurves(
            at=AT, trial_id="t9", recipe=RECIPE, layout=on, steps=3, sequences=32, losses=gate_losses,
            grad_norms=(3.0, 2.0, 1.0), is_reference=on != FASTEST.layout,
        )
        for on, gate_losses in losses.items()
    ]  # fmt: skip


def train(folder: Path) -> None:
    """Writes the records of a training into the study's folder."""
    path = folder / "training" / "training.jsonl"
    path.parent.mkdir(parents=True)
    write(path, Validated(attempt=1, step=0, tokens=0, loss=6.0, train_s=0.0, wall_s=1.0))
    for first in (1, 3):
        write(path, Steps(attempt=1, first_step=first, losses=(5.0, 4.0), grad_norms=(1.0, 1.0), data_s=0.0,
                          learning_rates=(0.1, 0.1), tokens=(first + 1) * 64, tokens_per_step=64, train_s=9.0,
                          steps_s=2.0, peak_gib=1.0))  # fmt: skip


def test_a_full_study_has_every_section_and_nothing_is_loaded(tmp_path: Path):
    train(tmp_path)
    h200 = Cluster(device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8, devices_per_node=4)
    result = result_of(POINTS, *gates(), profile(FASTEST, at=AT), cluster=h200, price_per_gpu_h=2.5)
    text = write_page(tmp_path / "report.html", [result], [tmp_path]).read_text()
    tags = Tags(text)
    assert tags.sections == PAGE_SECTIONS
    assert tags.loaded == [] and not {"script", "link", "img", "iframe"} & tags.names
    assert not re.search(r"url\((?!#)|@import", text)
    words = " ".join(tags.words)
    assert "50,000" in words and "tokens/s" in words and "Pareto front" in words
    assert f"{tmp_path.name}/training" in words  # a curve of the training in the folder
    assert "Where its step goes" in words and "Median error" in words and "(reference)" in words
    assert "<b>early" not in text


def test_a_picture_carries_what_was_measured():
    text = page([result_of(POINTS)])
    # A dot for each point that ran (and one in the legend), a cross for the one out of memory.
    scatter = text[text.index("Tokens/s against memory, a dot a point") : text.index("</figure>")]
    dots = re.findall(r'<use xlink:href="#\w+" x="([\d.]+)" y="([\d.]+)" style="fill: #(?:0f766e|9ca3af)', scatter)
    assert len(dots) >= 4
    xs = sorted(float(x) for x, _ in dots)
    assert xs[-1] > xs[0]


@pytest.mark.parametrize(
    "measurements", [(oom(),), (skipped(),), (measurement(tokens_per_s=float("nan"), outcome=Outcome.DIVERGED),)]
)
def test_a_study_without_a_winner_has_a_page(measurements: tuple[Measurement, ...]):
    tags = Tags(page([result_of(measurements)]))
    assert {"answer", "cost", "conditions"} <= set(tags.sections)


def test_a_study_that_has_measured_nothing_has_a_page():
    tags = Tags(page([StudyResult.of(History([header(at=AT)]))]))
    assert "Nothing was measured" in " ".join(tags.words)


def on_devices(number: int, tokens_per_s: float) -> StudyResult:
    cluster = Cluster(device_kind="cuda", device="Made-up GPU", device_memory_gib=80.0, devices_per_node=number)
    point = measurement(on=layout(dp_shard=number), tokens_per_s=tokens_per_s)
    lines = [header(f"s-{number}gpu", at=AT, cluster=cluster), Measured(at=AT, measurement=point)]
    return StudyResult.of(History(lines))


def test_studies_of_several_numbers_of_devices_make_a_curve_of_days():
    text = page([on_devices(2, 22000.0), on_devices(4, 40000.0)])
    assert 'aria-label="Days, bloom-7b1' in text and 'aria-label="GPU-days, bloom-7b1' in text
    assert "s-2gpu" in text and "s-4gpu" in text and "91%" in text  # the efficiency on four
    alone = page([on_devices(4, 40000.0)])
    assert 'aria-label="Days' not in alone and "One number of GPUs was measured" in alone


def test_several_lengths_make_curves_against_length():
    short = dataclasses.replace(RECIPE, seq_len=1024)
    text = page([result_of([measurement(), measurement(recipe=short, tokens_per_s=60000.0)])])
    assert "Step time against length" in text and "Latency against length" in text
    assert "Latency against length" not in page([result_of([measurement()])])


def test_conditions_that_changed_are_said():
    newer = dataclasses.replace(CONDITIONS, versions={"python": "3.11", "torch": "9.9"})
    words = page([result_of([measurement(), measurement(micro_batch=2, conditions=newer)])])
    assert "other conditions: torch 9.9." in words


def test_kernels_and_void_windows_are_conditions():
    void = ("a shape was compiled anew",)
    runs = [measurement(sdpa_kernel="flash"), measurement(micro_batch=2, sdpa_kernel="math", void_windows=void)]
    words = page([result_of(runs)])
    assert "flash, math" in words and "1: a shape was compiled anew" in words


def test_memory_that_other_processes_held_is_a_condition():
    words = page([result_of([measurement(others_gib=(0.0, 22.8)), measurement(micro_batch=2)])])
    assert "up to 22.8 GiB of a GPU in 1 of 1 measurement<" in words
    assert "other processes held" not in page([result_of([measurement(others_gib=(0.0,))])])


def points(*measured: Measurement) -> list[MeasuredRow]:
    return groups_of([result_of(measured)])[0].points


def test_the_choices_are_the_best_in_each_respect():
    choice_by_name = choices(points(*POINTS))
    assert choice_by_name["most tokens/s"].run == FASTEST
    assert choice_by_name["most head-room"].run == LIGHT
    assert choices([]) == {}


def test_the_front_holds_what_no_other_point_beats():
    beaten = measurement(on=layout(prefetch=1), tokens_per_s=34000.0, peak_allocated_gib=31.0)
    equal = measurement(on=layout(prefetch=2), tokens_per_s=50000.0, peak_allocated_gib=70.0)
    best = front(points(FASTEST, LIGHT, beaten, equal))
    assert [point.run for point in best] == [FASTEST, equal, LIGHT]  # equals do not beat each other
    assert front([]) == []


def test_the_staircase_rises_with_memory():
    gib, speed = staircase(points(*POINTS))
    assert gib == [30.0, 60.0, 70.0] and speed == [35000.0, 40000.0, 50000.0]


def test_a_long_curve_is_thinned_to_means():
    name, xs, ys = thinned("a", [float(i) for i in range(1000)], [float(i % 2) for i in range(1000)], limit=100)
    assert name == "a" and len(xs) == 100 and xs[-1] == 999.0 and set(ys) == {0.5}


def test_a_file_that_cannot_be_written_is_said_in_a_sentence(tmp_path: Path):
    with pytest.raises(InputError, match=r"report\.html cannot be written"):
        write_page(tmp_path / "none" / "report.html", [result_of(POINTS)], [])


@pytest.mark.mirror
def test_the_page_fits_a_phone(tmp_path: Path):
    path = write_page(tmp_path / "report.html", [result_of(POINTS, *gates())], [])
    program = needs.browser()
    with browser_page(program, tmp_path / "profile", width=600, height=900) as view:
        view.open(path.as_uri())
        view.wait_for("document.querySelectorAll('svg').length > 3")
        view.ask("document.documentElement.style.width = '390px'")
        widest = view.ask("Math.max(...[...document.querySelectorAll('section, svg, p, h1')].map(e => e.scrollWidth))")
        letters = view.ask("Math.min(...[...document.querySelectorAll('svg text')].map(e => e.getBBox().height))")
    assert widest <= 390 and letters >= 7
