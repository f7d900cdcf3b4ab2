"""A model stands in for a user's command where times are predicted: it is read, refused, ordered by, and kept."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from platform.cluster.nodes import ClusterHandle
from platform.cost_model.ordering import known_columns
from platform.cost_model.predict import predict
from platform.cost_model.stack_columns import BLIND_SIGMA
from platform.search.__main__ import main, parse
from platform.search.setup.forecast import NO_FORECAST, forecast_of
from platform.search.setup.options import options_of
from platform.search.setup.request import read_request, resumed
from platform.search.setup.study_setup import StudySetup, setup_of
from platform.searchers.guided import Guided
from platform.searchers.sweep import Sweep
from search_spaces.candidate import Candidate
from search_spaces.stand_in import StandIn
from tests.samples import header
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.cluster import Cluster
from trainers.spec.codec import to_json
from trainers.spec.workload import flags_of

FILE = """
command: torchrun --nproc-per-node {gpus} train.py --batch {micro_batch} --accum {grad_accum} {ckpt} {fsdp} {threads}
axes:
  micro_batch: [1, 2, 4]
  fsdp: [full_shard, shard_grad_op]
  ckpt: [true, false]
  threads: [4, 1]
tokens_per_step: 131072
seq_len: 2048
model: config.json
means:
  compute_precision: bf16
  fsdp: {full_shard: {engine: fsdp, zero_stage: 3}, shard_grad_op: {engine: fsdp, zero_stage: 2}}
  ckpt: {true: {checkpointing: full}, false: {checkpointing: none}}
"""
WITHOUT_MODEL = FILE.partition("model:")[0]
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip
H200S = Cluster(
    device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8, devices_per_node=4, capability=(9, 0)
)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.py").write_text("train()")
    (tmp_path / "mine" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "mine" / "run.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _setup(text: str = FILE, cluster: Cluster = H200S) -> StudySetup:
    Path("mine/run.yaml").write_text(text)
    handle = ClusterHandle(cluster=cluster, cpus_per_worker=1.0, driver_ip="10.0.0.1")
    return setup_of(read_request(parse(["mine/run.yaml"])), handle, None)


def _stand_in(setup: StudySetup) -> StandIn:
    assert setup.request.stand_in is not None
    return setup.request.stand_in


def test_a_stand_in_has_the_command_s_batch_and_the_stated_layout() -> None:
    setup = _setup()
    seen = set[tuple[str, ...]]()
    for candidate in setup.plan.candidates:
        instead = _stand_in(setup).of(candidate)
        own = flags_of(candidate.layout.flags)
        seen.add(tuple(own.values()))
        assert instead.recipe.model.num_layers == 32 and instead.recipe.workload is None
        assert instead.recipe.compute_precision == "bf16" and instead.layout.attention == "sdpa"
        assert (instead.recipe.seq_len, instead.recipe.global_batch) == (2048, 64)
        assert instead.batch_points() == candidate.batch_points(), "the same micro-steps"
        assert (instead.layout.engine, instead.layout.dp_shard) == ("fsdp", 4)
        assert instead.layout.zero_stage == {"full_shard": 3, "shard_grad_op": 2}[own["fsdp"]]
        assert instead.layout.checkpointing == {"true": "full", "false": "none"}[own["ckpt"]]
    assert len(seen) == 8


def test_what_is_not_stated_is_the_plainest_layout() -> None:
    setup = _setup(FILE.partition("means:")[0])
    (layout,) = {_stand_in(setup).of(candidate).layout for candidate in setup.plan.candidates}
    assert (layout.engine, layout.zero_stage, layout.dp_replicate, layout.compile) == ("ddp", 0, 4, "none")
    assert _stand_in(setup).of(setup.plan.candidates[0]).recipe.compute_precision == "fp32"


def test_the_columns_are_the_stand_ins_own_and_less_certain() -> None:
    setup = _setup()
    columns = setup.problem.columns
    assert columns is not None and setup.problem.stands_in
    plain = known_columns([_stand_in(setup).of(candidate) for candidate in setup.plan.candidates], H200S, None)
    assert plain is not None
    blind, known = predict(columns), predict(plain)
    assert blind.step.total_s == pytest.approx(known.step.total_s)
    assert blind.sigma == pytest.approx(np.hypot(known.sigma, BLIND_SIGMA))


def _fastest(setup: StudySetup) -> set[str]:
    """Returns the labels of the candidates of which a rung is predicted to be fastest, likely to run considered."""
    columns = setup.problem.columns
    assert columns is not None
    prediction = predict(columns)
    speed = prediction.ok_probability / prediction.expected_s
    labels = [candidate.layout.label for candidate in setup.plan.candidates for _ in candidate.micro_batches]
    return {label for label, value in zip(labels, speed, strict=True) if value >= speed.max() * (1 - 1e-9)}


def test_the_first_trial_is_the_predicted_best_and_without_a_model_the_space_s_first() -> None:
    setup, without = _setup(), _setup(WITHOUT_MODEL)
    first, plain = Guided(setup.problem).suggest(), Guided(without.problem).suggest()
    assert first is not None and plain is not None
    assert first.layout.label in _fastest(setup) and "ckpt=false" in first.layout.label
    assert plain.layout.label == without.plan.candidates[0].layout.label == "ckpt=true fsdp=full_shard threads=4"
    assert plain.layout.label not in _fastest(setup)
    swept = Sweep(setup.problem).suggest()
    assert swept is not None and swept.layout.label in _fastest(setup)


def test_several_numbers_of_devices_teach_each_other() -> None:
    setups = [_setup(cluster=dataclasses.replace(H200S, devices_per_node=number)) for number in (1, 2)]
    problem = setups[0].problem_beside(setups[1:])
    assert problem.stands_in and problem.columns is not None and problem.columns.shape == (2 * 8 * 3,)
    searcher = Guided(problem)
    searcher.overhear(problem.others[0][0], _ran(problem.others[0][0], 4.0))
    assert searcher.suggest() is not None


def test_the_largest_micro_batch_is_ordered_by_its_sizes_too() -> None:
    setup = _setup(FILE.replace("[1, 2, 4]", "max"))
    first = Guided(setup.problem).suggest()
    assert first is not None and first.finds_largest and first.layout.label in _fastest(setup)


def test_a_function_has_a_stand_in_too() -> None:
    Path("mine/own.py").write_text("def build(layout): ...")
    setup = _setup("build: own.py:build\naxes: {bucket: [1, 25]}\ntokens_per_step: 4096\nseq_len: 64\n"
                   "model: config.json\nmeans: {bucket: {1: {bucket_mib: 1}, 25: {bucket_mib: 25}}}\n")  # fmt: skip
    buckets = [_stand_in(setup).of(candidate).layout.bucket_mib for candidate in setup.plan.candidates]
    assert sorted(buckets) == [1, 25] and setup.problem.stands_in


def test_nothing_is_predicted_on_devices_that_the_catalogue_does_not_have() -> None:
    cpus = Cluster(device_kind="cpu", device="a processor", device_memory_gib=8.0, devices_per_node=2)
    setup, without = _setup(cluster=cpus), _setup(WITHOUT_MODEL, cpus)
    assert setup.problem.columns is None and not setup.problem.stands_in
    assert setup.plan == without.plan


def test_what_it_predicts_is_no_figure_of_the_script() -> None:
    setup, without = _setup(), _setup(WITHOUT_MODEL)
    assert setup.plan.columns is None and forecast_of(setup.plan, setup.timing) is NO_FORECAST
    keys = {candidate.key for candidate in setup.plan.candidates}
    assert keys == {candidate.key for candidate in without.plan.candidates}, "the same study"
    assert setup.recipes == without.recipes


def _ran(candidate: Candidate, step_s: float) -> list[Measurement]:
    speed = candidate.tokens_per_step / step_s
    return [dataclasses.replace(each, outcome=Outcome.OK, tokens_per_s=speed) for each in _out_of_memory(candidate)]


def _out_of_memory(candidate: Candidate) -> list[Measurement]:
    return [
        Measurement(recipe=candidate.recipe, layout=candidate.layout, batch=batch, outcome=Outcome.OOM)
        for batch in candidate.batch_points()
    ]


def test_predicted_memory_orders_and_rules_out_nothing() -> None:
    """Checks a device on which no point is predicted to fit: each is tried, whatever is predicted of the others."""
    small = dataclasses.replace(H200S, device_memory_gib=20.0)
    setup = _setup(cluster=small)
    assert not setup.plan.skipped and setup.problem.columns is not None
    assert not predict(setup.problem.columns).fits.any()
    searcher, tried = Guided(setup.problem), set[tuple[str, int]]()
    while (candidate := searcher.suggest()) is not None:
        tried |= {(candidate.key, rung) for rung in candidate.micro_batches}
        assert searcher.deferred(candidate) == ()
        searcher.update(candidate, _ran(candidate, 4.0))
    assert len(tried) == 8 * 3


def test_it_learns_what_fits_from_what_ran_out_of_memory() -> None:
    """Checks twelve layouts that keep their activations, all predicted to fit and to be faster than the others."""
    setup = _setup(FILE.replace("threads: [4, 1]", "threads: [1, 2, 3, 4, 6, 8]"))
    searcher, num_failed = Guided(setup.problem), 0
    while (candidate := searcher.suggest()) is not None and "ckpt=false" in candidate.layout.label:
        num_failed += 1
        searcher.update(candidate, _out_of_memory(candidate)[:1])
    assert candidate is not None and 1 <= num_failed < 12, "before all of them were tried"


def test_measurements_correct_the_predictions() -> None:
    """Checks a script whose recomputation costs nothing and whose kept activations are slow."""
    searcher, labels = Guided(_setup().problem), list[str]()
    while (candidate := searcher.suggest()) is not None:
        labels.append(candidate.layout.label)
        searcher.update(candidate, _ran(candidate, 6.0 if "ckpt=false" in candidate.layout.label else 2.0))
    assert "ckpt=false" in labels[0] and any("ckpt=true" in label for label in labels)


def test_a_study_keeps_its_model_and_what_it_means() -> None:
    request = read_request(parse(["mine/run.yaml"]))
    begun = header(options=to_json(request.options))
    stored = options_of(begun)
    assert stored.model == str(Path("mine/config.json").absolute()) and len(stored.means) == 5
    assert not {"--model", "--means"} & {*begun.arguments}, "no options of the command line"
    Path("mine/run.yaml").unlink()
    again = read_request(resumed(parse(["--resume", "one"]), stored))
    assert again.stand_in == request.stand_in and again.space == request.space


BAD = {
    ("model: config.json", "model: [3]"): "model is the path of a config.json or an id of the hub, got ['3']",
    ("model: config.json", "model: none.json"): "none.json cannot be read: there is no such file",
    ("model: config.json", "model: train.py"): "model is a config.json or an id of the hub, got ",
    ("model: config.json", ""): "means says what values mean for a model: add model, the path of its config.json",
    ("  ckpt: {true:", "  checks: {true:"): "means names checks, which is no axis of the training: ckpt, fsdp, threads",
    ("false: {checkpointing: none}", "maybe: {}"): "means names the value 'maybe', which axis ckpt does not have",
    (", false: {checkpointing: none}", ""): "means says nothing of ckpt=false: state it too, or leave out ckpt",
    ("zero_stage: 3", "tp: 2"): "means of fsdp=full_shard cannot state tp, which follows from",
    ("zero_stage: 3", "zero_stag: 3"): "means of fsdp=full_shard: unknown axis 'zero_stag'",
    ("{checkpointing: full}", "{checkpointing: ful}"): "means of ckpt=true: checkpointing has no value 'ful'",
    ("{checkpointing: full}", "[full]"): "means of ckpt=true is a mapping of names, got ['full']",
    ("{checkpointing: none}", "{zero_stage: 1}"): "means states zero_stage by fsdp and by ckpt: state it by one",
    (
        "engine: fsdp, zero_stage: 2",
        "zero_stage: 2",
    ): "means of fsdp=shard_grad_op, ckpt=true: zero_stage of ddp",
    ("engine: fsdp, zero_stage: 2", "engine: mine.rules:R"): "means of fsdp=shard_grad_op: engine takes ddp, fsdp",
    ("compute_precision: bf16", "compute_precision: bf17"): "means: compute_precision has no value 'bf17'",
    (
        "compute_precision: bf16",
        "compute_precision: [bf16]",
    ): "a value is a text, a number, true or false, got",
}


@pytest.mark.parametrize("change", BAD, ids=BAD.values())
def test_a_model_that_means_nothing_is_refused(change: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert change[0] in FILE
    Path("mine/run.yaml").write_text(FILE.replace(*change))
    assert main(["mine/run.yaml"]) == 2
    error = capsys.readouterr().err
    assert BAD[change] in error and error.count("\n") == 1


def test_a_space_has_no_stand_in(capsys: pytest.CaptureFixture[str]) -> None:
    Path("options.yaml").write_text("space: gpt2\nmodel: mine/config.json\n")
    assert main(["--config", "options.yaml"]) == 2
    assert "model is of --build or a command behind --, which is not there" in capsys.readouterr().err
