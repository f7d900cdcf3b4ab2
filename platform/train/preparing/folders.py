"""Selects the data files of a folder: those with a known suffix that are not metadata."""

import re
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import PurePath

from platform.common.errors import InputError
from platform.common.places import InputPath, RemotePath
from platform.train.preparing.opening import suffix_of

SUFFIXES = {".txt": "text", ".text": "text", ".md": "text", ".json": "json lines", ".jsonl": "json lines",
            ".ndjson": "json lines", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".arrow": "arrow",
            ".idx": "megatron", ".bin": "megatron"}  # fmt: skip
_COMPRESSED = ("text", "json lines", "csv")
"""Kinds that may be compressed as whole files."""
SUFFIX_WORDS = f"{', '.join(SUFFIXES)}, or .gz or .zst of text, JSON lines or CSV"
_ABOUT = re.compile(
    r"(readme|licen[cs]e|copying|notice|changelog|contributing|citation|authors)([-_.].*)?"
    r"|dataset_infos?\.json|dataset_dict\.json|state\.json|metadata\.json|index\.json|plan\.json"
    r"|cache-[0-9a-f]+.*\.arrow"
    r"|(tokenizer|special_tokens_map|vocab|added_tokens|generation_config|config).*\.json",
    re.IGNORECASE,
)
"""Names of metadata files that often lie beside data."""
_CHECKPOINT = re.compile(r"-checkpoint$")
"""End of the stem of a backup copy that a notebook editor makes."""
_SPLIT = re.compile(r"(?:^|[-_./])(train|test|validation|valid|val|dev|eval)(?=[-_./]|$)", re.IGNORECASE)


def kind_of(path: PurePath) -> str:
    """Returns the kind implied by the file's suffix, in any case; "" for an unknown suffix."""
    suffix, compression = suffix_of(path)
    kind = SUFFIXES.get(suffix, "")
    return "" if compression and kind not in _COMPRESSED else kind


def data_files(folder: InputPath) -> tuple[list[InputPath], list[InputPath]]:
    """Returns the data files in `folder`, at any depth, sorted by path, and the metadata files with a data suffix.

    Raises:
        InputError: there are no data files, or several kinds or splits, of which the user must choose one.
    """
    listed: Iterable[InputPath] = folder.rglob("*")
    is_remote = isinstance(folder, RemotePath)  # lists only files; `is_file` would be a request for each
    of_kind = (path for path in listed if kind_of(path) and (is_remote or path.is_file()))
    with_suffix = sorted(of_kind, key=lambda path: path.parts)
    files = [path for path in with_suffix if _is_data(path.relative_to(folder))]
    if not files:
        raise InputError(f"the folder {folder} holds no file of data with a suffix {SUFFIX_WORDS}")
    _check_one_kind(folder, files)
    _check_one_split(folder, files)
    data = set(files)
    return files, [path for path in with_suffix if path not in data]


def _is_data(path: PurePath) -> bool:
    hidden = any(part.startswith(".") or part == "__pycache__" for part in path.parts)
    return not (hidden or _ABOUT.fullmatch(path.name) or _CHECKPOINT.search(path.stem))


def _check_one_kind(folder: PurePath, files: Collection[InputPath]) -> None:
    kinds = Counter(map(kind_of, files))
    if len(kinds) > 1:
        raise _choice(folder, "files of several kinds", kinds, files, {path: kind_of(path) for path in files})


def _check_one_split(folder: PurePath, files: Collection[InputPath]) -> None:
    """Checks that a training split is not mixed with other splits."""
    splits = {
        path: matches[-1].lower()
        for path in files
        if (matches := _SPLIT.findall(str(path.relative_to(folder).with_suffix(""))))
    }
    if "train" in splits.values() and len(set(splits.values())) > 1:
        raise _choice(folder, "files of several splits", Counter(splits.values()), files, splits)


def _choice(
    folder: PurePath,
    description: str,
    counts: Counter[str],
    files: Collection[InputPath],
    group_of: dict[InputPath, str],
) -> InputError:
    """Returns the error that asks the user to choose, with an example of each group."""
    examples = {group: next(path for path in files if group_of.get(path) == group) for group in counts}
    listed = ", ".join(
        f"{count:,} of {group} ({examples[group].relative_to(folder)})" for group, count in counts.items()
    )
    return InputError(f"the folder {folder} holds {description}: {listed}: name the files or the folder to read")
