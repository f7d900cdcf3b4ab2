"""The first line of a study's journal, and the checks that a study may be resumed here."""

import hashlib
import uuid
from collections.abc import Sequence
from pathlib import Path

from platform.common import checkout
from platform.common.errors import InputError
from platform.search.setup.planning import same_devices
from platform.search.setup.study_setup import StudySetup
from platform.study.history import History
from platform.study.model_difference import nearest_difference
from platform.tracking.mirror import display_uri
from platform.train.token_files import content_of
from trainers import data
from trainers.data import ParquetTokens
from trainers.records.data_content import DataContent
from trainers.records.journal import StudyHeader
from trainers.records.plain_files import MOST_SOURCE_BYTES, read_plain
from trainers.spec import engines
from trainers.spec.codec import to_json
from trainers.spec.recipe_axes import INCLUDED


def header_of(name: str, setup: StudySetup, *, searcher: str, uri: str) -> StudyHeader:
    return StudyHeader(
        name=name,
        space=setup.space.name,
        recipes=setup.recipes,
        cluster=setup.cluster,
        tokens=setup.request.tokens,
        price_per_gpu_h=setup.request.price_per_gpu_h,
        miniature=setup.miniature,
        cap_gib=setup.cap_gib,
        seed=setup.request.seed,
        searcher=searcher,
        options=to_json(setup.request.options),
        space_sha256=_hash_of(setup.request.options.files()),
        data_content=_content_of(setup),
        engines=_engines_of(setup),
        versions=checkout.versions(),
        commit=checkout.commit(),
        mlflow_uri=display_uri(uri),
        study_id=uuid.uuid4().hex[:12],
    )


def _engines_of(setup: StudySetup) -> dict[str, str]:
    """Returns the study's engines from outside this project, with the hash of their source."""
    names = sorted({candidate.layout.rules.name for candidate in setup.plan.candidates})
    return {name: engines.source_hash(name) for name in names if engines.is_path(name)}


def _content_of(setup: StudySetup) -> dict[str, DataContent]:
    """Returns the content of the recipes' token files by path, without the stream and the included text."""
    by_path = {recipe.data: recipe for recipe in setup.recipes if recipe.has_model and recipe.data != INCLUDED}
    sources = {path: data.plain_source(recipe) for path, recipe in by_path.items()}
    return {
        path: content_of(source, verify=False) for path, source in sources.items() if isinstance(source, ParquetTokens)
    }


def _hash_of(files: Sequence[Path]) -> str:
    """Returns the hash of the space file among `files`, which is code; "" if there is none."""
    return next(
        (
            hashlib.sha256(read_plain(path, links=True, most_bytes=MOST_SOURCE_BYTES)).hexdigest()
            for path in files
            if path.suffix == ".py"
        ),
        "",
    )


def check_space_file(header: StudyHeader, files: Sequence[Path], *, trusted: bool) -> None:
    """Checks that a resumed study, which may come from another user, still has the space file that it began with.

    Raises:
        InputError: without `--trust`, the file's path is relative, which no search writes, or its content differs.
    """
    for path in () if trusted else files:
        if not path.is_absolute():
            raise InputError(f"the journal names the space file {path} by a relative path, as no search does, and"
                             " resuming runs it: look at it, then give --trust")  # fmt: skip
        if header.space_sha256 and _hash_of([path]) != header.space_sha256:
            raise InputError(f"the space file {path} is not the one that the study began with, and resuming runs it:"
                             " look at it, then give --trust")  # fmt: skip


def check_engines(header: StudyHeader) -> None:
    """Checks that engines from outside this project are present and unchanged since the study began.

    Raises:
        InputError: an engine cannot be imported, or its source has changed.
    """
    for name, begun_with in header.engines.items():
        try:
            now = engines.source_hash(name)
        except ValueError as error:
            raise InputError(f"{error}: the study measured it, put its module back on the path") from error
        if now != begun_with:
            raise InputError(
                f"engine {name} has changed since the study began (its source was {begun_with}, is {now}):"
                " undo that change, or start a new study"
            )


def check_same(history: History, setup: StudySetup) -> None:
    """Checks that a resumed study has the same devices, recipes and layouts.

    The journal holds only the path of a given file, whose content may have changed.

    Raises:
        InputError: the devices, a recipe, its data or the layout file differ.
    """
    assert history.header is not None
    recorded, present = history.header.cluster, setup.cluster
    if not same_devices(recorded, present):
        raise InputError(f"the study ran on {recorded.label}, here is {present.label}: start a new study")
    recipe_ids = {recipe.id for recipe in history.header.recipes}
    if new := next((recipe for recipe in setup.recipes if recipe.id not in recipe_ids), None):
        keys = next((keys for old in history.header.recipes if (keys := nearest_difference(old, (new,)))), "")
        of_model = f", whose model had {keys}" if keys else ""
        raise InputError(
            f"the study's space or files now give another recipe than at its start ({new.label}{of_model}): undo that"
            " change, or start a new study"
        )
    for path, content in _content_of(setup).items():
        before = history.header.data_content.get(path)
        if before is not None and not before.is_same(content):
            raise InputError(
                f"{path} holds other data than when the study began ({'; '.join(before.differences(content))}): bring"
                " them back, or start a new study"
            )
    layouts = {entry.layout for entry in (*setup.plan.candidates, *setup.plan.skipped)}
    other = next(
        (measurement.layout for measurement in history.measurements if measurement.layout not in layouts), None
    )
    if setup.request.fixed is not None and other is not None:
        raise InputError(
            f"the study's layout file no longer holds what it measured ({other.label}): undo that change, or start a"
            " new study"
        )
