"""The files of a folder that are data: those of a known suffix that are not about the data."""

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
"""Kinds that may be compressed as a whole."""
SUFFIX_WORDS = f"{', '.join(SUFFIXES)}, or .gz or .zst of text, JSON lines or CSV"
_ABOUT = re.compile(
    r"(readme|licen[cs]e|copying|notice|changelog|contributing|citation|authors)([-_.].*)?"
    r"|dataset_infos?\.json|dataset_dict\.json|state\.json|metadata\.json|index\.json|plan\.json"
    r"|cache-[0-9a-f]+.*\.arrow"
    r"|(tokenizer|special_tokens_map|vocab|added_tokens|generation_config|config).*\.json",
    re.IGNORECASE,
)
"""Names of files that stand beside data and are none."""
_CHECKPOINT = re.compile(r"-checkpoint$")
"""End of the stem of a copy that a notebook's editor keeps."""
_SPLIT = re.compile(r"(?:^|[-_./])(train|test|validation|valid|val|dev|eval)(?=[-_./]|$)", re.IGNORECASE)


def kind_of(path: PurePath) -> str:
    """Returns the kind that the file's name promises, whatever the case of its suffix; "" for none."""
    suffix, compression = suffix_of(path)
    kind = SUFFIXES.get(suffix, "")
    return "" if compression and kind not in _COMPRESSED else kind


def data_files(folder: InputPath) -> tuple[list[InputPath], list[InputPath]]:
    """Returns the files of data in `folder`, at any depth and in the order of their paths, and those left out though
    their suffix is one of data.

    Raises:
        InputError: there is none, or there are several kinds or splits, of which one must be chosen.
    """
    listed: Iterable[InputPath] = folder.rglob("*")
    is_remote = isinstance(folder, RemotePath)  # whose files alone are listed, without a question for each
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
    """Refuses a training split beside one that is meant for another purpose."""
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
    """Returns the error that asks for a choice, with an example of each group."""
    examples = {group: next(path for path in files if group_of.get(path) == group) for group in counts}
    listed = ", ".join(
        f"{count:,} of {group} ({examples[group].relative_to(folder)})" for group, count in counts.items()
    )
    return InputError(f"the folder {folder} holds {description}: {listed}: name the files or the folder to read")
