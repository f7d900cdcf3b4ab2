"""The warnings that a worker's process is given, each once."""

import subprocess
import sys

SCRIPT = """
import logging, os, warnings
from trainers.measuring import warned
warned.watch()
for port in (29501, 40123):
    warnings.warn(f"c10d: port {port} of process {os.getpid() + 10**6} is old")
    logging.getLogger("torch.distributed").warning("store at %s is slow", "/tmp/meeting-%d" % port)
logging.getLogger("torch").info("nothing to see")
logging.getLogger("ray.train").warning("of Ray")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    warnings.warn("not shown")
print(*warned.seen(), sep="\\n")
"""


def test_each_warning_is_noted_once_without_what_changes_and_shown_as_before():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "UserWarning: c10d: port ... of process ... is old",
        "torch.distributed: store at ... is slow",
    ]
    assert done.stderr.count("UserWarning: c10d: port 29501") == 1
    assert done.stderr.count("store at /tmp/meeting-29501 is slow") == 1
