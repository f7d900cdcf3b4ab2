"""Tests that the warnings of a worker's process are recorded, each once."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import logging, os, warnings
from trainers.measuring import warnings_log as warned
warned.watch()
for port in (29501, 40123):
    warnings.warn(f"c10d: port {port} of process {os.getpid() + 10**6} is old")
    logging.getLogger("torch.distributed").warning("store at %s is slow", "/tmp/meeting-%d" % port)
logging.getLogger("torch").info("nothing to see")
logging.getLogger("ray.train").warning("of Ray")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    warnings.warn("not shown")
print(*warned.recorded(), sep="\\n")
"""


@pytest.mark.parametrize(("filter_setting", "times_shown"), [("default", 1), ("ignore", 0)])  # workers have "ignore"
def test_each_warning_is_recorded_once_without_what_changes_and_shown_as_before(filter_setting: str, times_shown: int):
    environment = os.environ | {"PYTHONWARNINGS": filter_setting}
    completed = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=environment
    )
    assert completed.stdout.splitlines() == [
        "UserWarning: c10d: port ... of process ... is old",
        "torch.distributed: store at ... is slow",
    ]
    assert completed.stderr.count("UserWarning: c10d: port 29501") == times_shown
    assert completed.stderr.count("store at /tmp/meeting-29501 is slow") == 1
