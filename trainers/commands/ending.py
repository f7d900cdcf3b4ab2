"""Finds the cause of a command's end from its exit code and output."""

import re
from collections.abc import Sequence

from trainers.host.failures import GIB, requested_bytes, size
from trainers.records.measurement import Outcome

NUM_LINES = 20
"""Lines of a failed command's output that are shown."""
LONGEST = 200
"""Characters of a line in a sentence."""
_MEMORY = re.compile(
    r"MemoryError\b|can(?:'|no)t allocate memory|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED|std::bad_alloc"
    # What an error says; a hint on what to do about a lack of memory is none.
    r"|(?:error:|(?:Error|Exception|[Ff]ailed|[Ff]ailure)\b).*(?:out of memory|not enough memory)"
    r"|out of memory.*tried to allocate",
    re.IGNORECASE,
)
_KILLED = re.compile(r"exitcode\s*:\s*-9\b|Signal 9 \(SIGKILL\)|killed by signal: Killed")
"""Text of torchrun, or of a loader of data, on a process that was killed."""
_KILL_CODES = (137, -9)
_ERROR = re.compile(r"^(?:\[[^\]]*\]:?\s*)*(?P<error>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)\b.*)$")
"""A line that names an exception, behind the marks of ranks."""
_LAUNCHER = "ChildFailedError"
_NODE = re.compile(r"\A\[(?P<node>node \d+, [^\]]+)\]\n")
"""The first line of the output of one of several nodes."""


def outcome_of(code: int, text: str) -> tuple[Outcome, str]:
    """Returns the outcome of a command that ended with a non-zero exit code, and the line with the reason. A lack of
    memory counts anywhere in the output, because torchrun prints the cause above its own error. With several nodes the
    line names the one that failed first.
    """
    if node := _NODE.match(text):
        outcome, line = outcome_of(code, text[node.end() :])
        return outcome, f"{line} (on {node['node']})"
    if lines := [_line_at(text, match.start()) for match in _MEMORY.finditer(text)]:
        line = next(filter(_ERROR.match, lines), lines[0])  # an error itself before the line of code that raised it
        num_bytes = requested_bytes(RuntimeError(line))
        return Outcome.OOM, f"{line} ({size(num_bytes / GIB)})" if num_bytes and "iB" not in line else line
    if code in _KILL_CODES or _KILLED.search(text):
        return Outcome.OOM, "a process was killed by signal 9, as the system does where host memory runs out"
    return Outcome.FAILED, cause(text)


def node_of_cause(codes: Sequence[int | None], failed: Sequence[int], texts: Sequence[str]) -> int:
    """Returns the number of the node whose output says why a command ended: the first in `failed`, or one that ran out
    of memory.

    `codes` are exit codes, None before a tree has ended: the peers of a lost rank may fail before the launcher of that
    rank, whose output already has the error.
    """
    unended = [number for number, code in enumerate(codes) if code is None]
    for number in (*failed, *unended):
        if outcome_of(codes[number] or 1, texts[number])[0] is Outcome.OOM:
            return number
    return (*failed, 0)[0]


def cause(text: str) -> str:
    """Returns the output's line that names the cause best: the last exception other than the launcher's, else the last
    line.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [match["error"] for line in lines if (match := _ERROR.match(line)) and _LAUNCHER not in line]
    return (errors or lines or ["it printed nothing"])[-1][:LONGEST]


def last_lines(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-NUM_LINES:])


def _line_at(text: str, place: int) -> str:
    start = text.rfind("\n", 0, place) + 1
    end = text.find("\n", place)
    return text[start : end if end >= 0 else None].strip()[:LONGEST]
