"""Knowledge that a new study takes from an old one, and the sentences on the rest."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from platform.common.errors import InputError
from platform.search.setup.old_studies import Knowledge, Old, applicable_knowledge, read_old
from platform.study.study import Study
from search_spaces import load
from tests.samples import CLUSTER, CONDITIONS, RECIPE, header, layout, measurement, oom, skipped
from trainers.records.journal import Measured
from trainers.records.measurement import Measurement, Outcome

VERSIONS = {"torch": "2.9.1", "transformers": "4.57.3", "deepspeed": "0.18.3", "ray": "2.51.0"}
COMMIT = "0123456"
ZERO = layout(engine="deepspeed", zero_stage=2, grad_sync="every")


def conditions(**versions: str) -> Any:
    """Returns the conditions of a measurement with these versions."""
    return dataclasses.replace(CONDITIONS, versions={**VERSIONS, **versions}, commit=COMMIT)


def ran(**fields: Any) -> Measurement:
    return measurement(**{"conditions": conditions(), **fields})


def held(measurements: Sequence[Measurement], **fields: Any) -> Knowledge:
    """Returns the knowledge that a study with these measurements gives; its versions are those of here unless `fields`
    has others.
    """
    settings: dict[str, Any] = {
        "recipes": (RECIPE,),
        "cluster": CLUSTER,
        "cap_gib": None,
        "versions": VERSIONS,
        "commit": COMMIT,
    }
    old = Old(
        header=header("old-1", at="2026-11-20T09:00:00+00:00", versions=VERSIONS, commit=COMMIT),
        measurements=tuple(measurements),
    )
    return applicable_knowledge(old, **{**settings, **fields})


class TestWhatHolds:
    def test_all_of_the_same(self) -> None:
        measured = [ran(micro_batch=2), ran(micro_batch=1), ran(on=ZERO), oom(micro_batch=4, conditions=None)]
        knowledge = held(measured)
        first, second = knowledge.earlier
        assert first.candidate.micro_batches == (1, 2, 4) and first.results == (measured[1], measured[0], measured[3])
        assert second.candidate.layout == ZERO and second.results == (measured[2],)
        assert knowledge.sentences == ("Learns from old-1 (2026-11-20): 4 of 4 measurements hold here.",)

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            (
                {"cluster": dataclasses.replace(CLUSTER, device="Other GPU")},
                "on 4 x Made-up GPU (80.0 GiB) (here 4 x",
            ),
            ({"cluster": dataclasses.replace(CLUSTER, devices_per_node=8)}, "(here 8 x Made-up GPU (80.0 GiB))"),
            ({"cluster": dataclasses.replace(CLUSTER, num_nodes=2, devices_per_node=2)}, "(here 2 nodes x 2 x Made-up"),
            ({"recipes": (dataclasses.replace(RECIPE, seq_len=512),)}, "with seq_len 2048 (here 512)"),
            ({"cap_gib": 40.0}, "with device memory cap none (here 40 GiB)"),
            ({"versions": {**VERSIONS, "torch": "2.10.0"}}, "with torch 2.9.1 (here 2.10.0)"),
            ({"versions": {**VERSIONS, "transformers": "5.0"}}, "with transformers 4.57.3 (here 5.0)"),
        ],
    )
    def test_nothing_elsewhere(self, fields: dict[str, Any], reason: str) -> None:
        knowledge = held([ran(), oom(micro_batch=2, conditions=None)], **fields)
        assert knowledge.earlier == ()
        first, second = knowledge.sentences
        assert first == "Learns from old-1 (2026-11-20): none of 2 measurements holds here."
        assert second.startswith("What no longer holds: 2 ") and reason in second

    def test_versions_that_change_no_figure_do_not_count(self) -> None:
        assert held([ran()], versions={**VERSIONS, "ray": "3.0"}).earlier

    def test_another_deepspeed_concerns_its_own_engine_alone(self) -> None:
        knowledge = held([ran(), ran(on=ZERO)], versions={**VERSIONS, "deepspeed": "0.19.0"})
        assert [earlier.candidate.layout for earlier in knowledge.earlier] == [layout()]
        assert knowledge.sentences[1] == "What no longer holds: 1 with deepspeed 0.18.3 (here 0.19.0)."

    @pytest.mark.parametrize(
        ("fields", "package"),
        [
            ({"on": layout(attention="flash4")}, "flash-attn-4"),
            ({"on": layout(mlp="quack", loss="quack")}, "quack-kernels"),
            ({"recipe": dataclasses.replace(RECIPE, compute_precision="fp8_tensorwise")}, "torchao"),
        ],
    )
    def test_another_optional_package_concerns_what_used_it_alone(self, fields: dict[str, Any], package: str) -> None:
        recipes = (RECIPE, fields.get("recipe", RECIPE))
        measured = [ran(), ran(**fields, conditions=conditions(**{package: "1.0"}))]
        assert len(held(measured, recipes=recipes, versions={**VERSIONS, package: "1.0"}).earlier) == 2
        for versions, version in (({package: "1.1"}, "1.1"), ({}, "missing")):
            knowledge = held(measured, recipes=recipes, versions={**VERSIONS, **versions})
            assert [earlier.results for earlier in knowledge.earlier] == [(measured[0],)]
            assert knowledge.sentences[1] == f"What no longer holds: 1 with {package} 1.0 (here {version})."

    def test_each_measurement_is_judged_by_itself(self) -> None:
        """Checks a study of two recipes that was resumed under another torch."""
        other = dataclasses.replace(RECIPE, seq_len=1024, optimizer="adafactor")
        knowledge = held([ran(), ran(micro_batch=2, conditions=conditions(torch="2.8.0")), ran(recipe=other)])
        assert [earlier.candidate.micro_batches for earlier in knowledge.earlier] == [(1,)]
        output = knowledge.sentences[1]
        assert "1 with torch 2.8.0 (here 2.9.1)" in output
        assert "1 with seq_len 1024 (here 2048), optimizer adafactor (here adamw)" in output

    def test_another_commit_is_said_and_used(self) -> None:
        knowledge = held([ran(), oom(micro_batch=2, conditions=None)], commit="abcdef0")
        assert len(knowledge.earlier) == 1
        assert knowledge.sentences[1:] == (
            "It was measured at commit 0123456, here is abcdef0: it is used all the same.",
        )


class TestReading:
    @pytest.fixture
    def studies(self, tmp_path: Path) -> Path:
        """Returns a folder with one study of BLOOM."""
        with Study.create(tmp_path / "studies", "old-1") as study:
            study.record(header("old-1"))
            for point in (ran(), ran(repeat=1), skipped(micro_batch=4), oom(micro_batch=2), oom(micro_batch=8)):
                study.record(Measured(measurement=point))
            failed = ran(micro_batch=16, tokens_per_s=None, outcome=Outcome.FAILED)
            study.record(Measured(measurement=failed))
        return tmp_path / "studies"

    def test_what_teaches_is_the_search_s_own_runs_that_ran_or_ran_out_of_memory(self, studies: Path) -> None:
        bloom = load("bloom7b")
        same = dataclasses.replace(bloom, recipe=dataclasses.replace(bloom.recipe, model=RECIPE.model))
        old = read_old(studies / "old-1", same)
        assert [(point.batch.micro_batch, point.outcome) for point in old.measurements] == [
            (1, Outcome.OK),
            (2, Outcome.OOM),
            (8, Outcome.OOM),
        ]
        with (studies / "old-1" / "journal.jsonl").open("a") as journal:
            journal.write('{"kind":"measurement","schema":1,"measurement":{"speed":1}}\n')
        again = read_old(studies / "old-1", same)
        assert again == dataclasses.replace(old, num_unread=1)
        output = applicable_knowledge(
            again, recipes=(RECIPE,), cluster=CLUSTER, cap_gib=None, versions=VERSIONS, commit=""
        ).sentences
        assert "1 line of its journal cannot be read by this version." in output

    def test_of_another_model_it_is_refused(self, studies: Path) -> None:
        with pytest.raises(InputError, match=r"space gpt2 trains gpt2, got .* another model \(old-1: bloom-7b1\)"):
            read_old(studies / "old-1", load("gpt2"))
