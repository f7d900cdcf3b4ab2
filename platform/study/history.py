"""The state of a study, rebuilt from its journal; resumed searches and reports start from it."""

import copy
import datetime
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

from platform.common.errors import NOT_RESOLVED
from platform.study.clock import SessionClock
from platform.study.keys import between, key_of, key_of_trial, plain_key
from platform.study.node_paces import UNKNOWN, Paces, paces_of
from platform.study.tally import LongestRung, Tally
from search_spaces.candidate import Candidate
from trainers.records.journal import (
    End,
    GateCurves,
    Lagging,
    Line,
    Measured,
    Peak,
    Planned,
    Probed,
    Profile,
    Resume,
    RungStart,
    StudyCopy,
    StudyHeader,
    TrialEnd,
    TrialStart,
)
from trainers.records.measurement import ENDS_LADDER, Measurement, Outcome
from trainers.records.probe import Probe
from trainers.records.search_state import SearchState
from trainers.spec.recipe import Recipe

LATER_START = {"cuda": 0.5, "cpu": 1.0}
"""Upper bound of a later trial's start time as a share of the study's first start, by device kind.

Later processes start while another trial is measured. Measured shares: 0.19 to 0.46 in ten studies on one to four H100
or H200; up to 1 where two CPU cores do both (docs/lab/measuring.csv#starts-on-gpus).
"""


class History:
    """The state of a study after the journal entries added so far, in order.

    Values returned by methods do not change when entries are added later.
    """

    def __init__(self, entries: Iterable[Line] = ()) -> None:
        self.header: StudyHeader | None = None
        """The study's facts, from its first line or a line that repeats them; None if no such line was read."""
        self.planned: Planned | None = None
        """The plan of the last session; None in journals of older versions."""
        self.peaks: list[Peak] = []
        self.lagging: dict[str, Lagging] = {}
        """Nodes that lag, by their addresses."""
        self.probe: Probe | None = None
        """Devices and links as the study's first trial measured them; None if they were known beforehand."""
        self.gates: list[GateCurves] = []
        """Loss and gradient curves of the numerics gate, in the journal's order."""
        self.profiles: list[Profile] = []
        """Profiles of winners' steps, in the journal's order."""
        self.end: End | None = None
        """The last session's end; None while a session runs or after it was killed."""
        self.state = SearchState.EXPLORING
        """Search state that started the last trial. After a session that ended by itself: RESUMING if confirmation runs
        are left, else EXPLORING.
        """
        self.sessions = 0
        self._measurements: dict[str, Measurement] = {}
        self.tally = Tally()
        """Figures aggregated over the measurements."""
        self._starts: dict[str, TrialStart] = {}
        self._finals: dict[str, TrialStart] = {}
        self._ends: dict[str, TrialEnd] = {}
        # Indexed by candidate, because the search looks each candidate up before every trial.
        self._of: defaultdict[str, dict[str, Measurement]] = defaultdict(dict)
        self._of_recipe: defaultdict[str, dict[str, Measurement]] = defaultdict(dict)
        self._starts_of: defaultdict[str, list[TrialStart]] = defaultdict(list)
        self._open: dict[str, TrialStart] = {}
        """Trials without an end line, of this session or an earlier one."""
        self._ended_gpu_s = 0.0
        self._last_number = 0
        self._open_gpu_s: dict[str, float] = {}
        self._session_of: dict[str, int] = {}
        self._rungs: Counter[tuple[str, int]] = Counter()
        self._clock = SessionClock()
        self.extend(entries)

    def copy(self) -> "History":
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (list, dict)):
                setattr(other, name, copy.copy(value))  # type: ignore[reportUnknownArgumentType]
        other._clock = copy.copy(self._clock)
        other._of = defaultdict(dict, {key: dict(items) for key, items in self._of.items()})
        other._of_recipe = defaultdict(dict, {key: dict(items) for key, items in self._of_recipe.items()})
        other.tally = self.tally.copy()
        other._starts_of = defaultdict(list, {key: list(items) for key, items in self._starts_of.items()})
        return other

    def extend(self, entries: Iterable[Line]) -> None:
        for entry in entries:
            self._add(entry)

    def _add(self, entry: Line) -> None:
        written_at = datetime.datetime.fromisoformat(entry.at)
        if isinstance(entry, (StudyHeader, Resume)) or not self.sessions:  # the study's first line may be damaged
            if self.sessions and self.end is None:
                self._close_session()
            self.sessions += 1
            self.end = None
            self._clock.begin(written_at)
        self._clock.last = written_at
        match entry:
            case StudyHeader():
                self.header = self.header or entry
            case Planned():
                self.planned = entry
            case Peak():
                self.peaks.append(entry)
            case Lagging():
                self.lagging[entry.node] = entry
            case Probed(probe=probe):
                self.probe = probe
            case GateCurves():
                self.gates.append(entry)
            case Profile():
                self.profiles.append(entry)
            case TrialStart():
                self._starts[entry.trial_id] = self._open[entry.trial_id] = entry
                if entry.is_final:
                    self._finals[entry.trial_id] = entry
                self.state = entry.state or (SearchState.CONFIRMING if entry.is_final else SearchState.EXPLORING)
                self._session_of[entry.trial_id] = self.sessions
                self._starts_of[key_of_trial(entry)].append(entry)
                self._count(entry.trial_id)
            case RungStart():
                start = self._starts.get(entry.trial_id)
                if start is not None:
                    self._rungs[key_of_trial(start), entry.batch.micro_batch] += 1
            case Measured(measurement=measurement):
                self._add_measurement(measurement)
            case TrialEnd():
                self._add_trial_end(entry)
            case End():
                self._close_session(entry.wall_s)
                self.end = entry
                # An interrupted session does not record which runs it left out.
                if entry.left_out or entry.exit_code in (0, 1, NOT_RESOLVED):
                    self.state = SearchState.RESUMING if entry.left_out else SearchState.EXPLORING
            case StudyCopy():
                self.header = self.header or entry.study
            case Resume():
                self.header = self.header or entry.study

    def _add_measurement(self, measurement: Measurement) -> None:
        """Adds a measurement. A known id is ignored, because a second line can only repeat the first, unless the first
        is `skipped`: a session with another memory cap may run a skipped point.
        """
        present = self._measurements.get(measurement.id)
        if present is None or present.outcome is Outcome.SKIPPED:
            self._measurements[measurement.id] = self._of[key_of(measurement)][measurement.id] = measurement
            self._of_recipe[measurement.recipe.id][measurement.id] = measurement
            self.tally.measured(measurement)
        self._count(measurement.trial_id)

    def _add_trial_end(self, end: TrialEnd) -> None:
        """Adds a trial's end; a later end of the same trial replaces it."""
        before = self._ends.get(end.trial_id)
        self._ended_gpu_s += end.gpu_s - (before.gpu_s if before else 0.0)
        self._ends[end.trial_id] = end
        self.tally.ended(end)
        self._open.pop(end.trial_id, None)
        self._count(end.trial_id)

    def _count(self, trial_id: str) -> None:
        self._last_number = max(self._last_number, _number_of(trial_id))

    def _close_session(self, wall_s: float | None = None) -> None:
        """Ends a session after `wall_s` seconds (None: it was killed); fixes the device seconds of its open trials."""
        for trial_id, start in self._open.items():
            if trial_id not in self._open_gpu_s:
                self._open_gpu_s[trial_id] = self._clock.since_s(start.at) * start.layout.world_size
        self._clock.end(wall_s)

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """All measurements, skipped ones included, one per id, in the journal's order."""
        return tuple(self._measurements.values())

    def of_recipe(self, recipe_id: str) -> tuple[Measurement, ...]:
        """Returns one recipe's measurements in the journal's order. Only measurements of one recipe compete."""
        return tuple(self._of_recipe.get(recipe_id, {}).values())

    @property
    def paces(self) -> Paces:
        """Relative speeds of lagging nodes, and of others by their matmul peaks; empty if the nodes are alike.

        On CPUs peaks are left out, because they mostly measure the other load on the machine.
        """
        on_gpus = self.header is not None and self.header.cluster.device_kind == "cuda"
        paces = paces_of(self.peaks) if on_gpus else UNKNOWN
        return {**paces, **{node: lag.pace for node, lag in self.lagging.items()}} if self.lagging else paces

    @property
    def trials(self) -> tuple[TrialStart, ...]:
        return tuple(self._starts.values())

    def finals_since(self, number: int) -> tuple[TrialStart, ...]:
        """Returns the started confirmation trials with numbers above `number`, in order."""
        return tuple(start for start in self._finals.values() if _number_of(start.trial_id) > number)

    @property
    def last_trial_number(self) -> int:
        """The highest trial number in any line; 0 before the first trial."""
        return self._last_number

    @property
    def finals_begun(self) -> bool:
        return bool(self._finals) or any(measurement.repeat for measurement in self._measurements.values())

    @property
    def start_s(self) -> float:
        """Least seconds that a trial with measurements took beyond its steps; 0 before the first such trial.

        If only the study's first trial has measurements, whose start is slow, the value is `LATER_START` times its
        seconds.
        """
        times_s = [beside_s for beside_s, _ in self.tally.times_s]
        if len(times_s) == 1 and next(iter(self._starts), "") in self.tally.steps_s and self.header is not None:
            return LATER_START[self.header.cluster.device_kind] * times_s[0]
        return min(times_s, default=0.0)

    @property
    def first_start_s(self) -> float:
        """Seconds that the first trial with measurements took beyond its steps, usually the longest; 0 before it."""
        return next((beside_s for beside_s, _ in self.tally.times_s), 0.0)

    @property
    def trial_s(self) -> float:
        """Seconds of a typical trial; 0 before the first.

        `start_s` plus the lower median of the trials' longest rungs. The first start of a session is left out because
        it is the slowest. Without measurements, the duration of the shortest trial.
        """
        if rungs := self.longest_rungs:
            return self.start_s + statistics.median_low(rung.seconds for rung in rungs)
        return min((end.wall_s for end in self._ends.values()), default=0.0)

    @property
    def longest_rungs(self) -> tuple[LongestRung, ...]:
        """The longest rung of each completed trial with measurements."""
        return tuple(rung for _, rung in self.tally.times_s)

    def trials_s(self, recipe: Recipe, repeats: range) -> float:
        """Returns the seconds of the recipe's completed measuring trials with a repeat in `repeats` (0: the search)."""
        return sum(
            self._ends[trial_id].wall_s
            for trial_id, start in self._starts.items()
            if trial_id in self._ends and start.micro_batches and start.recipe == recipe and start.repeat in repeats
        )

    @property
    def finished(self) -> frozenset[str]:
        """Keys of candidates with a trial that ended as done."""
        return frozenset(
            key_of_trial(self._starts[end.trial_id]) if end.trial_id in self._starts else plain_key(end.key)
            for end in self._ends.values()
            if end.state == "done"
        )

    def trial_end(self, trial_id: str) -> TrialEnd | None:
        return self._ends.get(trial_id)

    def attempts(self, key: str) -> int:
        return len(self._starts_of.get(plain_key(key), ()))

    def measured(self, key: str, repeat: int = 0) -> tuple[Measurement, ...]:
        """Returns the candidate's measurements of one repeat, ordered by micro-batch."""
        rungs = [
            measurement for measurement in self._of.get(plain_key(key), {}).values() if measurement.repeat == repeat
        ]
        return tuple(sorted(rungs, key=lambda measurement: measurement.batch.micro_batch))

    def missing(self, candidate: Candidate) -> tuple[int, ...]:
        """Returns the candidate's micro-batches that are still to run.

        Left out are micro-batches that are measured, that a finished trial was given (it may have skipped them as
        hopeless), or that are at least as large as one that ended the ladder. A skipped point is not a result: the plan
        decides whether it may run. If a finished ladder ran out of memory, the micro-batches between its last two rungs
        are returned.
        """
        measurements = self.measured(candidate.key)
        measured = [measurement for measurement in measurements if measurement.outcome is not Outcome.SKIPPED]
        settled = self._finished_sizes(plain_key(candidate.key))
        settled_sizes = {measurement.batch.micro_batch for measurement in measured} | settled
        ceiling = min(
            (measurement.batch.micro_batch for measurement in measured if measurement.outcome in ENDS_LADDER),
            default=None,
        )
        missing = tuple(
            micro_batch
            for micro_batch in candidate.micro_batches
            if micro_batch not in settled_sizes and (ceiling is None or micro_batch < ceiling)
        )
        return missing or tuple(size for size in between(candidate, measurements) if size not in settled_sizes)

    def _finished_sizes(self, key: str) -> set[int]:
        ends = ((start, self._ends.get(start.trial_id)) for start in self._starts_of.get(key, ()))
        return {
            micro_batch for start, end in ends if end and end.state == "done" for micro_batch in start.micro_batches
        }

    def profile_of(self, measurement: Measurement) -> Profile | None:
        """Returns the last profile of the measured recipe, layout and batch; None without one."""
        point = (measurement.recipe, measurement.layout, measurement.batch)
        matches = (
            profile for profile in reversed(self.profiles) if (profile.recipe, profile.layout, profile.batch) == point
        )
        return next(matches, None)

    def profile_failure(self) -> str:
        """Returns why the last profiling trial left no profile; "" if it left one or there was no such trial."""
        last = next((start for start in reversed(self._starts.values()) if start.profiles is not None), None)
        if last is None or any(profile.trial_id == last.trial_id for profile in self.profiles):
            return ""
        end = self._ends.get(last.trial_id)
        return end.reason or "it ended without a message" if end else "it was cut short"

    def num_lost(self, key: str, micro_batch: int) -> int:
        """Returns how often the rung was started and lost because its process was killed."""
        key = plain_key(key)
        is_measured = any(measurement.batch.micro_batch == micro_batch for measurement in self.measured(key))
        return self._rungs[key, micro_batch] - (1 if is_measured else 0)

    @property
    def last_at(self) -> str:
        return self._clock.last.isoformat() if self._clock.last else ""

    @property
    def wall_s(self) -> float:
        """Seconds of all sessions; a killed or running one counts from its first to its last line."""
        return self._clock.wall_s

    @property
    def gpu_s(self) -> float:
        """Device seconds of all trials; a trial without an end counts until its session's last line."""
        # An atomic copy, because the progress thread reads this while the search adds entries.
        return self._ended_gpu_s + sum(self._open_gpu_s_of(start) for start in dict(self._open).values())

    def _open_gpu_s_of(self, start: TrialStart) -> float:
        settled = self._open_gpu_s.get(start.trial_id)
        return self._clock.since_s(start.at) * start.layout.world_size if settled is None else settled

    def session_of(self, start: TrialStart) -> int:
        return self._session_of[start.trial_id]

    def lasted_s(self, start: TrialStart) -> float:
        """Returns the seconds that a trial took; without an end line, until its session's last line."""
        end = self._ends.get(start.trial_id)
        return end.wall_s if end else self._open_gpu_s_of(start) / start.layout.world_size

    def peak_tflops(self, precision: str, nodes: Collection[str] = ()) -> float | None:
        """Returns the last measured matmul peak in TFLOP/s in `precision`, only of measurements that include all
        `nodes` (addresses); None without one.
        """
        of_nodes = (peak for peak in reversed(self.peaks) if set(nodes) <= set(peak.nodes))
        return next((peak.tflops for peak in of_nodes if peak.precision == precision), None)


def _number_of(trial_id: str) -> int:
    return int(trial_id[1:]) if trial_id[1:].isdecimal() else 0
