"""Reads and writes the YAML file of `--config`.

    space: bloom7b
    gpus: [1, 2, 4]
    time_budget: 30m
    set: {seq_len: 4096, engine: [fsdp, ddp]}

A key is an option's name without its dashes. Values stay texts and are read as on the command line. YAML converts none
of them: `no` does not become false, nor `1:30` a number.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from platform.common.errors import InputError, one_line
from trainers.records.plain_files import read_plain

_MOST_BYTES = 2**20
_MOST_NODES = 100_000
"""Largest number of values in a file, with those that its aliases repeat: a few lines of aliases of aliases would take
any memory.
"""

Value = str | list[str] | dict[str, str]
"""A value in the file: a text, a list of texts, or texts by name."""


def read_config(path: Path) -> dict[str, Value]:
    """Returns the file's values by key, with `-` in keys replaced by `_`.

    Raises:
        InputError: the file cannot be read or is not a mapping of options; the text names the file.
    """
    content = load_yaml(path)
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold options as KEY: VALUE lines")
    read: dict[str, Value] = {}
    for written, value in content.items():
        key = written.replace("-", "_") if isinstance(written, str) else str(written)
        if key in read:
            raise InputError(f"{path} gives {key} twice: keep one of them")
        read[key] = _value(value, f"{path}: {written}")
    return read


def load_yaml(path: Path, *, typed: bool = False) -> Any:
    """Returns the content of a YAML file: each scalar as it is written, or with YAML's type if `typed`.

    Raises:
        InputError: the file cannot be read, is no YAML, gives a key twice, or holds a value that is not of its type.
    """
    import yaml  # imported here to save its time in calls without a file

    class Loader(yaml.SafeLoader):
        if not typed:  # only "<<", which copies another mapping's keys, keeps its meaning
            yaml_implicit_resolvers: ClassVar = {"<": yaml.SafeLoader.yaml_implicit_resolvers["<"]}

        def get_single_node(self) -> Any:
            node: Any = super().get_single_node()
            if node is not None and _num_nodes(node, {}) > _MOST_NODES:
                raise InputError(f"{path} has more than {_MOST_NODES:,} values with those that aliases repeat")
            return node

        def compose_mapping_node(self, anchor: Any) -> Any:
            node: Any = super().compose_mapping_node(anchor)
            keys = [getattr(key, "value", "") for key, _ in node.value]
            if twice := [str(key) for key in keys if keys.count(key) > 1]:
                raise InputError(f"{path} gives {twice[0]} twice: keep one of them")
            return node

    try:
        return yaml.load(read_plain(path, links=True, most_bytes=_MOST_BYTES), Loader)
    except InputError:
        raise
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is no YAML file: {one_line(str(error))}") from error
    except (ValueError, LookupError, AttributeError) as error:  # from YAML's constructors, for tags such as !!int
        raise InputError(f"{path} holds a value that is not of its YAML type: {one_line(str(error))}") from error


def _num_nodes(node: Any, known: dict[int, int]) -> int:
    """Returns the number of a YAML node's values, each as often as it is repeated, but not in itself."""
    if id(node) not in known:
        known[id(node)] = 0
        content = node.value if isinstance(node.value, list) else ()
        parts = (part for item in content for part in (item if isinstance(item, tuple) else (item,)))
        known[id(node)] = 1 + sum(_num_nodes(part, known) for part in parts)
    return known[id(node)]


def _value(value: Any, where: str) -> Value:
    if value == "":
        raise InputError(f"{where} has no value: give one, or leave it out")
    if isinstance(value, dict):
        return {str(key): _text(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_text(item, where) for item in value]
    return str(value)


def _text(item: Any, where: str) -> str:
    """Returns an item as text; a list of texts is joined with commas.

    Raises:
        InputError: the item is empty or nested.
    """
    if isinstance(item, list) and item and all(isinstance(part, str) and part for part in item):
        return ",".join(item)
    if isinstance(item, str) and item:
        return item
    raise InputError(f"{where} must be texts or numbers, got {'nothing' if item in ('', []) else 'something nested'}")


def words_of(option: str, value: Value, *, kind: str) -> list[str]:
    """Returns the command-line words that set `option` to `value`.

    `kind` is how many values the option takes: "switch", "one", "joined" (by commas), "repeated" or "several".

    Raises:
        ValueError: the value does not fit `kind`; the text is a clause such as "must be one value, got a list".
    """
    match kind, value:
        case "switch", "true" | "false":
            return [option] if value == "true" else []
        case (("one" | "joined"), str()):
            return [f"{option}={value}"]
        case "joined", list():
            return [f"{option}={','.join(value)}"]
        case "repeated", str():
            return [f"{option}={value}"]
        case "repeated", list():
            return [f"{option}={item}" for item in value]
        case "repeated", dict():
            return [f"{option}={key}={item}" for key, item in value.items()]
        case "several", list():
            return [option, *value]
        case _:
            came = repr(value) if isinstance(value, str) else _KINDS["several" if isinstance(value, list) else "names"]
            raise ValueError(f"must be {_KINDS[kind]}, got {came}")


_KINDS: Mapping[str, str] = {
    "switch": "true or false",
    "one": "one value",
    "joined": "one value or a list",
    "repeated": "a value, a list, or names with values",
    "several": "a list",
    "names": "names with values",
}


def write_config(path: Path, values: Mapping[str, Any], about: str) -> None:
    """Writes `values` as a file that `read_config` reads, below the comment `about`.

    `values` holds texts, numbers, true, or lists of texts and numbers.

    Raises:
        OSError: the file cannot be written.
    """
    import yaml

    written = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
    text = yaml.safe_dump(written, sort_keys=False, allow_unicode=True, width=10**6) if written else ""
    path.write_text(f"# {about}\n{text}", encoding="utf-8")


def near(key: str, keys: Iterable[str]) -> str:
    """Returns a clause such as ": did you mean gpus?" on the known key with the nearest spelling; "" if none is."""
    import difflib

    close = difflib.get_close_matches(key, list(keys), n=1)
    return f": did you mean {close[0]}?" if close else ""
