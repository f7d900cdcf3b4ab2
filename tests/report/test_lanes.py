"""Trials side by side in reports: spans of nodes and time, a sentence, a picture, and what a reader must know."""

import dataclasses
from typing import Any

import pytest

from platform.report.html.lane_sections import trials_side_by_side
from platform.report.lanes import lagging_words, lane_spans, lanes_words
from platform.report.lessons import lessons
from platform.search.loop.policy import Kind
from platform.study.history import History
from platform.study.result.result import StudyResult
from tests.samples import RECIPE, header, layout, measurement
from trainers.records.journal import Lagging, Line, Measured, Peak, Resume, TrialEnd, TrialStart
from trainers.records.search_state import SearchState

LAYOUTS = [layout(bucket_mib=size) for size in (5, 25, 50)]


def at(seconds: int) -> str:
    return f"2026-11-29T{8 + seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.000+00:00"


def of_three(*, shared: bool = False, repeated: bool = False) -> list[Line]:
    """Returns a journal of three trials, two side by side, and where `repeated` of the winner's run alone."""
    nodes = ("10.0.0.1", "10.0.0.1" if shared else "10.0.0.2")
    lines: list[Line] = [dataclasses.replace(header(), at=at(0))]
    # (trial, node, begins, ends, beside at its start, beside in all)
    trials = [
        ("t0001", nodes[0], 0, 60, (), ("t0002",)),
        ("t0002", nodes[1], 0, 30, ("t0001",), ("t0001",)),
        ("t0003", nodes[1], 30, 60, ("t0001",), ("t0001",)),
    ]
    for (trial_id, node, begins, ends, beside, in_all), on in zip(trials, LAYOUTS, strict=True):
        key = f"{RECIPE.id}-{on.id}"
        common: dict[str, Any] = {"trial_id": trial_id, "key": key}
        lines += [
            TrialStart(
                **common, at=at(begins), recipe=RECIPE, layout=on, micro_batches=(1,), nodes=(node,), beside=beside,
                state=SearchState.EXPLORING,
            ),
            Measured(
                at=at(ends),
                measurement=measurement(on=on, trial_id=trial_id, addresses=(node,), beside=in_all,
                                        tokens_per_s=1000.0 + on.bucket_mib),
            ),
            TrialEnd(**common, at=at(ends), state="done", wall_s=ends - begins, gpu_s=4.0, beside=in_all),
        ]  # fmt: skip
    if repeated:
        best = measurement(on=LAYOUTS[2], trial_id="t0004", repeat=1, tokens_per_s=1050.0, addresses=("10.0.0.1",))
        lines.append(Measured(at=at(90), measurement=best))
    return sorted(lines, key=lambda line: line.at)


def test_a_span_is_a_trial_s_time_on_one_of_its_nodes() -> None:
    spans = lane_spans(History(of_three()))
    assert sorted((span.trial_id, span.node, span.begin_s, span.end_s) for span in spans) == [
        ("t0001", "10.0.0.1", 0.0, 60.0),
        ("t0002", "10.0.0.2", 0.0, 30.0),
        ("t0003", "10.0.0.2", 30.0, 60.0),
    ]
    assert not any(span.is_lost or span.is_final for span in spans)


def test_the_sentence_says_what_ran_beside_what_and_how_full_the_nodes_were() -> None:
    words = lanes_words(History(of_three()))
    assert words.startswith("Up to 2 trials ran side by side on 2 nodes, none had another on its own nodes: 1 min 0 s")
    assert words.endswith("each node was used for 100 % on average.")
    assert "3 trials had others on the same node" in lanes_words(History(of_three(shared=True)))
    assert words in lessons(StudyResult.of(History(of_three())))
    one_at_a_time = [dataclasses.replace(line, beside=()) if isinstance(line, TrialStart) else line
                     for line in of_three()]  # fmt: skip
    assert lanes_words(History(one_at_a_time)) == ""
    beside_others = [
        dataclasses.replace(line, beside=("other-1gpu:t0009",)) if isinstance(line, TrialStart) else line
        for line in one_at_a_time
    ]
    words = lanes_words(History(beside_others))
    assert words.startswith("Up to 1 trial ran side by side on 2 nodes") and "other searches" in words


def killed_and_resumed() -> History:
    """Returns a study of which a session was killed at 45 s with two trials in flight, and resumed an hour later."""
    lines = [line for line in of_three() if line.at < at(45)]
    (again,) = [line for line in of_three() if isinstance(line, TrialStart) and line.trial_id == "t0003"]
    later = [
        Peak(at=at(45), device="H200", precision="bf16", tflops=700.0),
        Resume(at=at(3645)),
        dataclasses.replace(again, at=at(3650), trial_id="t0004", beside=()),
        TrialEnd(at=at(3690), trial_id="t0004", key=again.key, state="done", wall_s=40.0, gpu_s=4.0),
    ]
    return History([*lines, *later])


def test_a_trial_of_a_killed_session_is_drawn_to_that_session_s_end() -> None:
    spans = {span.trial_id: span for span in lane_spans(killed_and_resumed())}
    ends = {trial_id: (span.session, span.end_s, span.is_lost) for trial_id, span in spans.items()}
    assert ends == {
        "t0001": (1, 45.0, True),
        "t0002": (1, 30.0, False),
        "t0003": (1, 45.0, True),
        "t0004": (2, 3690.0, False),
    }


def test_the_time_between_sessions_is_nobody_s_and_no_node_is_used_for_more_than_all_of_it() -> None:
    words = lanes_words(killed_and_resumed())
    assert "1 min 25 s of time" in words and words.endswith("each node was used for 100 % on average.")
    shared = lanes_words(History(of_three(shared=True)))
    assert shared.endswith("each node was used for 100 % on average.")


@pytest.mark.parametrize("kind", Kind)
def test_lost_is_what_ended_without_a_word(kind: Kind) -> None:
    lines = [dataclasses.replace(line, fault=kind) if isinstance(line, TrialEnd) else line for line in of_three()]
    assert {span.is_lost for span in lane_spans(History(lines))} == {kind.unexplained}


def test_the_page_has_a_picture_with_a_row_for_each_node() -> None:
    (charts, note) = trials_side_by_side([StudyResult.of(History(of_three()))])
    assert all(address in str(charts) for address in ("10.0.0.1", "10.0.0.2")) and "final runs" in str(note)


def test_a_winner_that_figures_of_several_nodes_decided_has_a_caveat_until_it_ran_again() -> None:
    (result,) = StudyResult.of(History(of_three())).of_study
    assert "side by side" in [caveat.name for caveat in result.caveats]
    (result,) = StudyResult.of(History(of_three(repeated=True))).of_study
    assert "side by side" not in [caveat.name for caveat in result.caveats]
    (result,) = StudyResult.of(History(of_three(shared=True))).of_study
    assert "side by side" not in [caveat.name for caveat in result.caveats], "all ran on one node"


def test_a_node_that_lags_is_named_in_the_sentences_and_on_the_page() -> None:
    assert lagging_words(History(of_three())) == ""
    lines = [*of_three(), Lagging(at=at(60), node="10.0.0.2", pace=0.52, by="peak")]
    words = lagging_words(History(lines))
    assert words == (
        "Node 10.0.0.2 lags: its matrix products run at 52% of the other nodes' speed, measured again. Further trials"
        " run on the others."
    )
    result = StudyResult.of(History(lines))
    assert words in lessons(result)
    assert words in str(list(trials_side_by_side([result])))
    by_figures = Lagging(at=at(60), node="10.0.0.2", pace=0.7, by="figures")
    assert "at 70% of what the same layouts reach" in lagging_words(History([*of_three(), by_figures]))
