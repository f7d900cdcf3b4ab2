"""The first run of a command, which tells the length of its sequences, or why it tells nothing."""

import sys
from pathlib import Path
from typing import Any

from search_spaces.command import space_of_command
from trainers.records.job import Job
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster
from trainers.spec.codec import to_json
from trainers.trial.command_trial import first_step


def _first_step(folder: Path, script: str) -> dict[str, Any]:
    (folder / "train.py").write_text(script)
    command = (sys.executable, "train.py", "{micro_batch=4}", "{grad_accum}")
    space = space_of_command(command, folder=folder, tokens_per_step=4096, seq_len=1)
    (candidate, *_), _ = space.candidates(2)
    job = Job(
        trial_id="first",
        recorder="",
        recipe=candidate.recipe,
        layout=candidate.layout,
        rungs=(BatchPoint(micro_batch=4, grad_accum=1),),
        cluster=Cluster(device_kind="cpu", device="a processor", device_memory_gib=8.0, devices_per_node=2),
        cpus_per_worker=0.5,
        first_step_s=20.0,
    )
    return first_step(to_json(job))


def test_the_first_step_ends_the_run_and_tells_its_tokens(tmp_path: Path) -> None:
    script = (
        "import json, os, sys, time\n"
        "line = {'tokens': 2 * 64 * int(sys.argv[1]) * int(sys.argv[2])}\n"
        "open(os.environ['LAYOUT_SEARCH_STEPS'], 'w').write(json.dumps(line) + '\\n')\n"
        "time.sleep(600)\n"
    )
    assert _first_step(tmp_path, script) == {"tokens": 512, "outcome": "ok", "reason": "", "output": ""}


def test_a_script_that_fails_has_its_last_lines(tmp_path: Path) -> None:
    answer = _first_step(
        tmp_path, "for number in range(30):\n    print('line', number)\nraise ImportError('no data')\n"
    )
    assert (answer["tokens"], answer["outcome"]) == (None, "failed")
    assert answer["reason"] == "it ended with exit code 1 before its first step: ImportError: no data"
    lines = answer["output"].splitlines()
    assert len(lines) == 20 and lines[-1] == "ImportError: no data" and "line 29" in lines
