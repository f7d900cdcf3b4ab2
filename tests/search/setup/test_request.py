"""The meaning of a request on a cluster: `--layout` with and without a space, a `config.json`, an old study."""

# pyright: reportPrivateUsage=false

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import platform.searchers as searchers
import search_spaces
from platform.cluster.nodes import ClusterHandle
from platform.common import checkout
from platform.common.errors import InputError
from platform.cost_model.hardware import find_cluster
from platform.plan.points import points_of
from platform.search.__main__ import parse
from platform.search.loop.budget import Budget
from platform.search.session.dry_run import show_dry_run
from platform.search.session.header import check_same, header_of
from platform.search.setup.options import StudyOptions
from platform.search.setup.request import read_request, resumed
from platform.search.setup.study_setup import StudySetup, setup_of
from platform.study.history import History
from platform.study.study import Study
from search_spaces.miniature import TIME_BUDGET_S
from search_spaces.space import Space
from tests.samples import header, measurement
from trainers.records.job import GateSize
from trainers.records.journal import Measured
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster
from trainers.spec.codec import to_json
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

CPU = Cluster(device_kind="cpu", device="Made-up CPU", device_memory_gib=4.0, devices_per_node=2)
GPU = Cluster(device_kind="cuda", device="Made-up GPU", device_memory_gib=140.0, capability=(9, 0), devices_per_node=2)
ON_TWO = Layout(engine="fsdp", zero_stage=3, dp_shard=2)
BLOOM = search_spaces.load("bloom7b")
NARROW = ("engine=ddp", "zero_stage=0", "attention=sdpa", "checkpointing=full", "compile=block", "loss=chunked", "pp=1",
          "cp=1", "virtual=1", "micro_batch=1", "grad_sync=last")  # fmt: skip


def _miniature() -> Space:
    assert BLOOM.miniature is not None
    return BLOOM.miniature


def _subject(folder: Path, cluster: Cluster, recipe: Recipe | None, *argv: str, on: Layout = ON_TWO) -> StudySetup:
    """Returns what `--layout` of a file with `recipe` (None: a layout alone) measures on `cluster`."""
    path = folder / "layout.json"
    parts: dict[str, object] = {"layout": to_json(on)}
    if recipe is not None:
        parts |= {"recipe": to_json(recipe), "batch": to_json(BatchPoint.of(recipe, on, 1))}
    path.write_text(json.dumps(parts))
    request = read_request(parse([*argv, "--layout", str(path)]))
    return setup_of(request, ClusterHandle(cluster=cluster, cpus_per_worker=1.0, driver_ip="127.0.0.1"), None)


@pytest.mark.parametrize("cluster", [CPU, GPU])
@pytest.mark.parametrize("argv", [(), ("bloom7b",)])
@pytest.mark.parametrize("recipe", [_miniature().recipe, BLOOM.recipe])
def test_the_file_s_recipe_runs_and_says_whether_it_is_a_miniature(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cluster: Cluster, argv: tuple[str, ...], recipe: Recipe
) -> None:
    setup = _subject(tmp_path, cluster, recipe, *argv)
    assert setup.recipes == (recipe,)
    header = header_of("made-up", setup, searcher="sweep", uri="")
    assert header.miniature == (recipe.model.miniature_of is not None)
    assert "cannot be measured here" not in capsys.readouterr().err, "nothing stands in for a file's own recipe"


@pytest.mark.parametrize(("cluster", "model"), [(CPU, "bloom-7b1-miniature"), (GPU, "bloom-7b1")])
def test_a_layout_alone_runs_the_space_s_recipe_or_its_miniature_s(
    tmp_path: Path, cluster: Cluster, model: str
) -> None:
    setup = _subject(tmp_path, cluster, None, "bloom7b", "--set", "seq_len=128,256")
    assert [(recipe.model.name, recipe.seq_len) for recipe in setup.recipes] == [(model, 128), (model, 256)]
    header = header_of("made-up", setup, searcher="sweep", uri="")
    assert header.miniature == (cluster is CPU)


def test_the_space_named_beside_a_recipe_gives_its_cap(tmp_path: Path) -> None:
    assert _subject(tmp_path, CPU, _miniature().recipe, "bloom7b").cap_gib == _miniature().device_memory_gib
    assert _subject(tmp_path, CPU, _miniature().recipe).cap_gib is None


def test_a_model_of_another_name_is_the_same_model(tmp_path: Path) -> None:
    renamed = dataclasses.replace(BLOOM.recipe, model=dataclasses.replace(BLOOM.recipe.model, name="mine"))
    assert _subject(tmp_path, GPU, renamed, "bloom7b").recipes == (renamed,)


def test_a_layout_alone_takes_the_micro_batches_of_named_points(tmp_path: Path) -> None:
    """Checks a space of named points, which has no ladder of its own."""
    path = tmp_path / "layout.json"
    path.write_text(json.dumps({"layout": to_json(Layout(engine="ddp", attention="sdpa"))}))
    request = read_request(parse(["gpt2_zero", "--layout", str(path)]))
    (candidate,), rejected = request.on(request.space, 1)
    assert candidate.micro_batches == (32,) and not rejected


def test_a_study_goes_on_only_with_the_recipe_and_the_layout_that_its_file_began_with(tmp_path: Path) -> None:
    timestamp, recipe = "2026-01-01T00:00:00+00:00", BLOOM.recipe
    setup = _subject(tmp_path, GPU, recipe)
    begun = dataclasses.replace(header_of("made-up", setup, searcher="sweep", uri=""), at=timestamp)
    history = History([begun, Measured(at=timestamp, measurement=measurement(on=ON_TWO, recipe=recipe))])
    check_same(history, setup)
    slower = dataclasses.replace(recipe, learning_rate=2 * recipe.learning_rate)
    with pytest.raises(InputError, match=r"now give another recipe than at its start \(bloom-7b1"):
        check_same(history, _subject(tmp_path, GPU, slower))
    other = dataclasses.replace(ON_TWO, checkpointing="full")
    with pytest.raises(InputError, match=r"layout file no longer holds what it measured \(FSDP2 stage 3"):
        check_same(history, _subject(tmp_path, GPU, recipe, on=other))


def test_a_study_goes_on_only_with_the_data_that_it_began_with(tmp_path: Path) -> None:
    """Checks other tokens at the same path, which the recipe's name does not show."""
    path = tmp_path / "tokens.parquet"

    def write(seed: int) -> None:
        tokens = np.random.default_rng(seed).integers(0, 200, (64, 512), dtype=np.uint8)
        pq.write_table(pa.table({"tokens": tokens.tolist()}), path)

    write(1)
    setup = _subject(tmp_path, CPU, dataclasses.replace(_miniature().recipe, data=str(path)))
    begun = header_of("made-up", setup, searcher="sweep", uri="")
    history = History([dataclasses.replace(begun, at="2026-01-01T00:00:00+00:00")])
    os.utime(path, (1, 1))  # the same bytes, as after a copy
    check_same(history, setup)
    write(2)
    with pytest.raises(InputError, match=r"tokens.parquet holds other data than when the study began \(.*: bring them"):
        check_same(history, setup)


class TestAConfigurationOnEightDevices:
    """`platform.search path/to/config.json --gpus 8` without any `--set`."""

    @pytest.fixture
    def config(self, tmp_path: Path) -> Path:
        """Returns a Llama of 8 B parameters."""
        sizes = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"model_type": "llama", **sizes, "intermediate_size": 14336, "vocab_size": 128256}))
        return path

    def _subject(self, config: Path, cluster: Cluster) -> StudySetup:
        request = read_request(parse([str(config), "--gpus", "8"]))
        return setup_of(request, ClusterHandle(cluster=cluster, cpus_per_worker=1.0, driver_ip="127.0.0.1"), None)

    def test_every_degree_is_planned_alone_and_together_with_the_kernels(
        self, config: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        h200 = dataclasses.replace(GPU, device="NVIDIA H200", devices_per_node=8)
        setup = self._subject(config, h200)
        planned = [candidate.layout for candidate in setup.plan.candidates]
        assert {layout.world_size for layout in planned} == {8}
        degrees = {(layout.data_parallel, layout.cp, layout.tp, layout.pp) for layout in planned}
        assert {
            (8, 1, 1, 1),
            (4, 2, 1, 1),
            (4, 1, 2, 1),
            (4, 1, 1, 2),
            (1, 2, 2, 2),
            (1, 1, 8, 1),
            (1, 1, 1, 8),
        } <= degrees
        assert {layout.virtual for layout in planned if layout.pp == 2} == {1, 2}
        plain = [layout for layout in planned if layout.model_parallel == 1]
        for axis, values in (("attention", 3), ("compile", 3), ("loss", 2), ("checkpointing", 8), ("engine", 3)):
            assert len({getattr(layout, axis) for layout in plain}) == values, axis
        show_dry_run(setup, Budget(), History(), as_object=False)
        output = capsys.readouterr().out
        assert f"{len(planned)} layouts with" in output
        listed = output.count("  would run  ")
        assert 0 < listed < len(planned) and f"  and {len(planned) - listed} layouts more, see --json\n" in output

    def test_its_miniature_splits_over_eight_workers_in_a_longer_budget(self, config: Path) -> None:
        on_eight = dataclasses.replace(CPU, device_memory_gib=1.0, devices_per_node=8)
        setup = self._subject(config, on_eight)
        layouts = [candidate.layout for candidate in setup.plan.candidates]
        degrees = {(layout.data_parallel, layout.cp, layout.tp, layout.pp) for layout in layouts}
        assert setup.miniature and {(8, 1, 1, 1), (1, 2, 2, 2), (2, 1, 2, 2), (2, 4, 1, 1)} <= degrees
        assert setup.space.time_budget_s == 2 * 4 * TIME_BUDGET_S


@pytest.mark.parametrize("across", [False, True])
def test_tensor_parallelism_across_nodes_is_planned_and_searched_where_it_is_asked_for(across: bool) -> None:
    """Checks that a plan and a search leave out the same degrees for reaching across nodes, and take what is set."""
    changes = [*NARROW, *(["tp=4"] if across else [])]
    sets = [word for change in changes for word in ("--set", change)]
    request = read_request(parse(["bloom7b", *sets]))
    nodes = dataclasses.replace(GPU, device="NVIDIA H200", num_nodes=2)
    setup = setup_of(request, ClusterHandle(cluster=nodes, cpus_per_worker=1.0, driver_ip="127.0.0.1"), None)
    reasons = {skipped.layout.tp: skipped.reason for skipped in setup.plan.skipped}
    points = points_of(BLOOM.with_changes(changes), BLOOM.recipe, find_cluster("2x2xH200"))
    searched = {candidate.layout.tp for candidate in setup.plan.candidates}
    assert searched == {layout.tp for layout in points.layouts} == ({4} if across else {1, 2})
    asks = "tp 4 reaches across nodes of 2 devices: --set tp=4 asks for it"
    assert (reasons.get(4) == asks) is not across
    assert ("tp reaches across nodes" in dict(points.skipped)) is not across


@pytest.mark.parametrize(
    ("devices", "lengths", "sequences"),
    [(1, "1024", 32), (1, "2048", 16), (1, "1024,2048", 16), (1, "8192", 8), (8, "8192", 16)],
)
def test_a_gate_of_longer_sequences_has_fewer_of_them(devices: int, lengths: str, sequences: int) -> None:
    request = read_request(parse(["llama3_8b", "--set", f"seq_len={lengths}", "--set", "state_precision=bf16"]))
    h200 = dataclasses.replace(GPU, device="NVIDIA H200", devices_per_node=devices)
    setup = setup_of(request, ClusterHandle(cluster=h200, cpus_per_worker=1.0, driver_ip="127.0.0.1"), None)
    assert setup.rules.gate == GateSize(sequences=sequences)


def test_losses_in_fp8_are_compared_over_more_steps() -> None:
    h100 = dataclasses.replace(GPU, device="NVIDIA H100 80GB HBM3")
    steps = {
        precisions: setup_of(
            read_request(parse(["llama3_8b", "--set", f"compute_precision={precisions}"])),
            ClusterHandle(cluster=h100, cpus_per_worker=1.0, driver_ip="127.0.0.1"),
            None,
        ).rules.gate
        for precisions in ("bf16", "fp8_tensorwise", "bf16,fp8_tensorwise")
    }
    assert [gate.steps for gate in steps.values() if gate] == [2, 2, 20]


class TestLearning:
    """`--learn-from`, from the option to the searcher's problem, on the miniature."""

    @pytest.fixture
    def studies(self, tmp_path: Path) -> Path:
        """Returns one study of the miniature on `CPU`, with the versions of here."""
        mini = _miniature()
        first = header(
            "old-1",
            recipes=(mini.recipe,),
            cluster=CPU,
            miniature=True,
            versions=checkout.versions(),
            at="2026-01-01T00:00:00+00:00",
        )
        with Study.create(tmp_path / "studies", "old-1") as study:
            study.record(first)
            measured = measurement(recipe=mini.recipe, on=ON_TWO, conditions=None, cap_gib=mini.device_memory_gib)
            study.record(Measured(measurement=measured))
        return tmp_path / "studies"

    def test_the_old_measurements_reach_the_searcher_s_problem(self, studies: Path) -> None:
        options = parse(["bloom7b", "--studies", str(studies), "--learn-from", "old-1"])
        setup = setup_of(read_request(options), ClusterHandle(cluster=CPU, cpus_per_worker=1.0, driver_ip="::1"), None)
        (earlier,) = setup.problem.earlier
        assert earlier.candidate.layout == ON_TWO and earlier.candidate.micro_batches == (1,)
        assert "1 of 1 measurement holds" in setup.knowledge.sentences[0]

    def test_the_journal_keeps_what_was_learned_from(self, studies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(studies)
        for text, keeps in (("old-1", "old-1"), ("./old-1", str(studies / "old-1"))):
            argv = ["bloom7b", "--studies", str(studies), "--learn-from", text]
            first_options = read_request(parse(argv)).options
            assert first_options.learn_from == keeps
            again = resumed(parse(["--resume", "new", "--studies", str(studies)]), first_options)
            assert again.study == first_options

    def test_all_studies_of_a_folder_teach_what_of_them_holds(self, studies: Path) -> None:
        mini = _miniature()
        for name, timestamp, recipe, speed in (
            ("newer-1", "2026-12-01T00:00:00+00:00", mini.recipe, 5e4),
            ("other-1", "2026-12-02T00:00:00+00:00", search_spaces.load("gpt2").recipe, 1e3),
        ):
            versions = checkout.versions()
            first = header(name, recipes=(recipe,), cluster=CPU, miniature=True, versions=versions, at=timestamp)
            with Study.create(studies, name) as study:
                study.record(first)
                cap = mini.device_memory_gib
                for size in (1, 2):
                    measured = measurement(
                        recipe=recipe, on=ON_TWO, conditions=None, cap_gib=cap, micro_batch=size, tokens_per_s=speed
                    )
                    study.record(Measured(measurement=measured))
        options = parse(["bloom7b", "--studies", str(studies), "--learn-from", f"{studies}/"])
        setup = setup_of(read_request(options), ClusterHandle(cluster=CPU, cpus_per_worker=1.0, driver_ip="::1"), None)
        (earlier,) = setup.problem.earlier
        assert earlier.candidate.micro_batches == (1, 2) and {result.tokens_per_s for result in earlier.results} == {
            5e4
        }
        *of_each, unusable = setup.knowledge.sentences
        learned = [sentence.split(" (")[0] for sentence in of_each if sentence.startswith("Learns from")]
        assert learned == ["Learns from old-1", "Learns from newer-1"]
        assert unusable.startswith("Nothing is learned from 1 of the studies: other-1: space bloom7b trains")

    def test_a_folder_of_studies_of_other_models_alone_is_refused(self, studies: Path) -> None:
        options = parse(["gpt2", "--studies", str(studies), "--learn-from", f"{studies}/"])
        with pytest.raises(InputError, match="got --learn-from a study of another model"):
            read_request(options)

    def test_a_resumed_study_goes_on_without_what_is_gone(self, studies: Path) -> None:
        options = parse(["--resume", "new", "--studies", str(studies)])
        assert resumed(options, StudyOptions(space="bloom7b", learn_from="gone-1")).study.learn_from is None


def test_all_measures_every_named_point_whatever_the_searcher_thinks_of_it(tmp_path: Path) -> None:
    """Checks a request on H200s, where the guided search would otherwise end as soon as no point is worth its cost."""
    h200s = Cluster(
        device_kind="cuda", device="NVIDIA H200", device_memory_gib=140.0, capability=(9, 0), devices_per_node=4
    )
    request = read_request(parse(["bloom7b_kinds", "--all"]))
    setup = setup_of(request, ClusterHandle(cluster=h200s, cpus_per_worker=1.0, driver_ip="127.0.0.1"), None)
    searcher = searchers.create(request.searcher, setup.problem)
    keys: list[str] = []
    while (suggestion := searcher.suggest()) is not None:
        keys.append(suggestion.key)
        searcher.update(
            suggestion, [measurement(recipe=suggestion.recipe, on=suggestion.layout, micro_batch=2, tokens_per_s=1e4)]
        )
    assert len(keys) == len(setup.plan.candidates) == 22
    with pytest.raises(InputError, match="--all leaves out none: give one of them"):
        read_request(parse(["bloom7b_kinds", "--all", "--learn-from", str(tmp_path)]))
