"""`--learn-from`: what the journals of old studies teach a new one, and which of their measurements still apply."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from platform.common.errors import InputError
from platform.common.text import plural
from platform.search.setup.planning import same_devices
from platform.searchers.problem import Earlier
from platform.study.bucket import fetched, is_address
from platform.study.folder import is_path, located
from platform.study.history import History
from platform.study.journal import JOURNAL, Tail, describe_newer
from platform.study.keys import key_of
from platform.study.model_difference import nearest_difference
from platform.study.study import below, find, is_study
from search_spaces.candidate import Candidate
from search_spaces.space import Space
from trainers.records.journal import StudyHeader
from trainers.records.measurement import Measurement, Outcome
from trainers.records.trust import admit
from trainers.spec.cluster import Cluster
from trainers.spec.codec import identity
from trainers.spec.optional_kernels import packages_of
from trainers.spec.recipe import Recipe

TEACH = frozenset({Outcome.OK, Outcome.SLOW, Outcome.OOM, Outcome.THRASH})
"""Outcomes that are evidence of a layout's time or memory."""
PACKAGES = ("torch", "transformers")
"""Packages whose versions change figures, in addition to those named by engines and optional kernels."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Old:
    """An old study that was read."""

    header: StudyHeader
    measurements: tuple[Measurement, ...]
    """The search's own runs with an outcome in `TEACH`."""
    num_unread: int = 0
    """Number of journal lines that this version cannot use."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OldStudies:
    """One old study or several, the oldest first."""

    studies: tuple[Old, ...]
    unusable: tuple[str, ...] = ()
    """A clause for each unusable study of a folder, with its reason."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Knowledge:
    """The measurements of old studies that apply to this one."""

    earlier: tuple[Earlier[Candidate], ...] = ()
    """The old layouts with their measured rungs, in the journals' order."""
    sentences: tuple[str, ...] = ()
    """Sentences for the user on what applies and what does not."""


def folders_of(studies: Path, text: str) -> list[Path]:
    """Returns the folders of the studies that `text` names: one study by name or path, or all below a folder or bucket.

    A team's folder has a subfolder for each person. Studies of a bucket (s3://bucket/studies) are copied here.

    Raises:
        InputError: there is none.
    """
    if is_address(text):
        path = fetched(text)
        return [path] if is_study(path) else below(path)
    folder = located(studies, text)
    path = folder[0] / folder[1]
    if is_path(text) and path.is_dir() and not is_study(path) and (several := below(path)):
        return several
    return [find(*folder)]


def read_old_studies(folders: Sequence[Path], space: Space, *, trusted: bool = False) -> OldStudies:
    """Returns the measurements of the studies in these folders for a search of `space`; some studies may be unusable.

    Raises:
        InputError: no study can be used; for a single study, the text says why.
    """
    usable: list[Old] = []
    unusable: list[str] = []
    for path in folders:
        try:
            usable.append(read_old(path, space, trusted=trusted))
        except InputError as error:
            if len(folders) == 1:
                raise
            unusable.append(f"{path.name}: {error}")
    if not usable:
        raise InputError(
            f"none of the {len(folders)} studies in {folders[0].parent} teaches a search of {space.name}, for one"
            f" {unusable[0]}"
        )
    return OldStudies(studies=tuple(sorted(usable, key=lambda old: old.header.at)), unusable=tuple(unusable))


def read_old(path: Path, space: Space, *, trusted: bool = False) -> Old:
    """Returns the study in folder `path`, for a search of `space` or of its miniature.

    Raises:
        InputError: its first line cannot be read, it was written by a newer version, it has another model, or it
            belongs to another user and is not `trusted`.
    """
    admit(path, (JOURNAL,), trusted=trusted)
    tail = Tail(path / JOURNAL)
    history = History(tail.read())
    header = history.header
    if header is None and tail.newer:
        raise InputError(describe_newer(path, tail.newer))
    if header is None:
        raise InputError(f"{path / JOURNAL} does not begin with a study's first line: nothing is to be learned from it")
    models = {identity(recipe.model) for variant in (space, space.miniature) if variant for recipe in variant.recipes}
    if not models & {identity(recipe.model) for recipe in header.recipes}:
        theirs = ", ".join(dict.fromkeys(recipe.name for recipe in header.recipes))
        keys = next((keys for recipe in header.recipes if (keys := nearest_difference(recipe, space.recipes))), "")
        raise InputError(
            f"space {space.name} trains {space.recipe.model.name}, got --learn-from a study of another model"
            f" ({header.name}: {theirs}{f' with {keys}' if keys else ''}): leave it out, or name a study of that model"
        )
    teaching = tuple(
        measurement for measurement in history.measurements if measurement.outcome in TEACH and not measurement.repeat
    )
    return Old(header=header, measurements=teaching, num_unread=len(tail.rejected) + len(tail.newer))


def common_knowledge(
    old: OldStudies,
    *,
    recipes: Sequence[Recipe],
    cluster: Cluster,
    cap_gib: float | None,
    versions: Mapping[str, str],
    commit: str,
) -> Knowledge:
    """Returns the knowledge from all studies by `applicable_knowledge`; the newest study decides on a shared point."""
    per_study = [
        applicable_knowledge(study, recipes=recipes, cluster=cluster, cap_gib=cap_gib, versions=versions, commit=commit)
        for study in old.studies
    ]
    points: dict[str, dict[int, Measurement]] = {}
    for knowledge in per_study:
        for earlier in knowledge.earlier:
            rungs: dict[int, Any] = {result.batch.micro_batch: result for result in earlier.results}
            points.setdefault(earlier.candidate.key, {}).update(rungs)
    sentences = [sentence for knowledge in per_study for sentence in knowledge.sentences]
    if old.unusable:
        sentences.append(f"Nothing is learned from {len(old.unusable)} of the studies: {'; '.join(old.unusable)}.")
    return Knowledge(
        earlier=tuple(_earlier([*rungs.values()]) for rungs in points.values()), sentences=tuple(sentences)
    )


def applicable_knowledge(
    old: Old,
    *,
    recipes: Sequence[Recipe],
    cluster: Cluster,
    cap_gib: float | None,
    versions: Mapping[str, str],
    commit: str,
) -> Knowledge:
    """Returns the measurements of `old` that apply to a study of `recipes` on `cluster` with these package versions.

    Figures of another recipe, other devices, another memory cap or other versions do not apply. Figures of another
    commit do, and a sentence names it.
    """
    reasons: Counter[str] = Counter()
    layouts: dict[str, list[Measurement]] = {}
    commits: dict[str, None] = {}
    for measurement in old.measurements:
        reason = (
            _other_devices(old.header.cluster, cluster)
            or _other_recipe(measurement.recipe, recipes)
            or _other_cap(measurement.cap_gib, cap_gib)
            or _other_versions(measurement, old.header, versions)
        )
        if reason:
            reasons[reason] += 1
            continue
        layouts.setdefault(key_of(measurement), []).append(measurement)
        commits[measurement.conditions.commit if measurement.conditions else old.header.commit] = None
    earlier = tuple(_earlier(group) for group in layouts.values())
    return Knowledge(earlier=earlier, sentences=_sentences(old, reasons, [*commits], commit))


def _earlier(measured: Sequence[Measurement]) -> Earlier[Candidate]:
    rungs = {
        measurement.batch.micro_batch: measurement
        for measurement in sorted(measured, key=lambda measurement: measurement.batch.micro_batch)
    }
    first = measured[0]
    return Earlier(
        candidate=Candidate(recipe=first.recipe, layout=first.layout, micro_batches=tuple(rungs)),
        results=tuple(rungs.values()),
    )


def _sentences(old: Old, reasons: Counter[str], commits: Sequence[str], commit: str) -> tuple[str, ...]:
    name, num = old.header.name, len(old.measurements)
    holds = num - reasons.total()
    sentences = [
        f"Learns from {name} ({old.header.at[:10]}): {holds or 'none'} of {plural(num, 'measurement')}"
        f" {'hold' if holds > 1 else 'holds'} here."
    ]
    if reasons:
        sentences.append(
            f"What no longer holds: {'; '.join(f'{count} {reason}' for reason, count in reasons.most_common())}."
        )
    if old.num_unread:
        sentences.append(f"{plural(old.num_unread, 'line')} of its journal cannot be read by this version.")
    if others := [other for other in commits if other != commit]:
        sentences.append(f"It was measured at commit {', '.join(others)}, here is {commit}: it is used all the same.")
    return tuple(sentences)


def _other_devices(old: Cluster, new: Cluster) -> str:
    return "" if same_devices(old, new) else f"on {old.label} (here {new.label})"


def _other_recipe(recorded: Recipe, recipes: Sequence[Recipe]) -> str:
    """Returns a clause on how the recipe differs from the nearest recipe of the new study."""
    if recorded.id in {recipe.id for recipe in recipes}:
        return ""
    differ = [
        [
            (name, getattr(recorded, name), getattr(recipe, name))
            for name in (field.name for field in dataclasses.fields(Recipe) if not field.metadata.get("cosmetic"))
            if getattr(recorded, name) != getattr(recipe, name)
        ]
        for recipe in recipes
    ]
    nearest = min(differ, key=len, default=[])
    differences = (
        f"{name} {old.name if name == 'model' else old} (here {new.name if name == 'model' else new})"
        for name, old, new in nearest
    )
    return f"with {', '.join(differences)}"


def _other_cap(old: float | None, new: float | None) -> str:
    def cap_text(cap: float | None) -> str:
        return "none" if cap is None else f"{cap:g} GiB"

    return "" if old == new else f"with device memory cap {cap_text(old)} (here {cap_text(new)})"


def _other_versions(measured: Measurement, header: StudyHeader, versions: Mapping[str, str]) -> str:
    """Returns a clause on packages with other versions; a measurement without versions has those of its study."""
    old_versions = measured.conditions.versions if measured.conditions else header.versions
    used = (*PACKAGES, *measured.layout.rules.packages, *packages_of(measured.recipe, measured.layout))
    differ = [(package, old_versions.get(package, "unknown"), versions.get(package, "missing")) for package in used]
    differences = [f"{package} {old} (here {new})" for package, old, new in differ if old != new]
    return f"with {', '.join(differences)}" if differences else ""
