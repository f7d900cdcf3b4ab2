"""Applies the tables of moved modules and renamed definitions beside this file to a checkout, on any branch.

    python scripts/moves/move.py [CHECKOUT]

`files.tsv` has a module's old and new name a line, `symbols.tsv` a definition's as `module:name`. Files are moved by
git, imports and the names that they bind are rewritten by the syntax tree, dotted names and paths in all other text by
longest prefix. A definition whose module changes in `symbols.tsv` is carried by hand: only references follow.
"""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMMANDS = ("search", "plan", "report", "train", "validate", "probe", "replay", "export", "converge", "prepare")
"""Commands keep their names in text: `python -m platform.search`."""
TEXT = {".md", ".toml", ".yaml", ".yml", ".sh", ".sbatch", ".json", ".txt", ".cfg", ""}
LEFT = ("docs/lab/", "CHANGELOG.md", "scripts/moves/", "docs/measurements/", "tests/cost_model/tables/", "LICENSE")
"""History and data, which stay as they are."""


def table(name: str) -> dict[str, str]:
    """Returns the rows of a table, old to new."""
    lines = (HERE / name).read_text().splitlines()
    return dict(line.split("\t") for line in lines if line and not line.startswith("#"))


MODULES, SYMBOLS = table("files.tsv") | table("tests.tsv"), table("symbols.tsv")
OF_COMMANDS = {f"platform.{name}" for name in COMMANDS}


def is_package(root: Path, module: str) -> bool:
    return (root / module.replace(".", "/") / "__init__.py").exists()


def path_of(module: str, package: bool) -> str:
    return module.replace(".", "/") + ("/__init__.py" if package else ".py")


def module_of(module: str) -> str:
    """Returns a module's new name, its longest known prefix replaced."""
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        if new := MODULES.get(".".join(parts[:end])):
            return ".".join([new, *parts[end:]])
    return module


class File:
    """Rewrites one Python file, given by its old module name, by edits of byte ranges."""

    def __init__(self, text: str, module: str, known: set[str]) -> None:
        self.source = text.encode()
        self.tree = ast.parse(text)
        self.module, self.known = module, known
        self.starts = [0]
        for line in self.source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.edits: list[tuple[int, int, str]] = []
        self.renamed: dict[str, str] = {}
        """Local name -> its new one."""
        self.aliases: dict[str, str] = {}
        """Local name of a module -> its old name."""
        self.added: set[str] = set()
        """Definitions to import besides, which a module had that is still imported."""

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def rewritten(self) -> str:
        for symbol, new in SYMBOLS.items():
            module, name = symbol.split(":")
            if module == self.module and name != new.split(":")[1]:
                self.renamed[name] = new.split(":")[1]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self.from_import(node)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if (new := module_of(alias.name)) != alias.name:
                        start, end = self.span(alias)
                        text = new + (f" as {alias.asname}" if alias.asname else "")
                        self.edits.append((start, end, text))
                    if alias.asname:
                        self.aliases[alias.asname] = alias.name
        self.names(self.tree, frozenset())
        imports = [self.span(node) for node in ast.walk(self.tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
        taken = [*imports, *((start, end) for start, end, _ in self.edits)]
        text = self.source.decode()
        for start, end, new in in_text(text, self.known):
            start, end = len(text[:start].encode()), len(text[:end].encode())
            if not any(start < other_end and other_start < end for other_start, other_end in taken):
                self.edits.append((start, end, new))
        if self.added:
            first = next(node for node in self.tree.body if isinstance(node, (ast.Import, ast.ImportFrom)))
            lines = "".join(f"from {new.split(':')[0]} import {new.split(':')[1]}\n" for new in sorted(self.added))
            start = self.starts[first.lineno - 1]
            self.edits.append((start, start, lines))
        out = self.source
        for start, end, text in sorted(set(self.edits), reverse=True):
            out = out[:start] + text.encode() + out[end:]
        return out.decode()

    def from_import(self, node: ast.ImportFrom) -> None:
        groups: dict[str, list[str]] = defaultdict(list)
        for alias in node.names:
            old, local = f"{node.module}.{alias.name}", alias.asname or alias.name
            if old in self.known:
                self.aliases[local] = old
                parent, _, last = module_of(old).rpartition(".")
                if alias.asname is None and last != alias.name:
                    self.renamed[alias.name] = last
                groups[parent].append(last + (f" as {alias.asname}" if alias.asname else ""))
                continue
            new = SYMBOLS.get(f"{node.module}:{alias.name}")
            module, name = new.split(":") if new else (module_of(node.module), alias.name)
            if alias.asname is None and name != alias.name:
                self.renamed[alias.name] = name
            groups[module].append(name + (f" as {alias.asname}" if alias.asname else ""))
        before = {node.module: [a.name + (f" as {a.asname}" if a.asname else "") for a in node.names]}
        if dict(groups) == before:
            return
        start, end = self.span(node)
        indent = " " * node.col_offset
        lines = [f"from {module} import ({', '.join(names)})" for module, names in groups.items()]
        lines = [
            line.replace("(", "").replace(")", "") if len(line) < 118 - node.col_offset else line for line in lines
        ]
        self.edits.append((start, end, f"\n{indent}".join(lines)))

    def names(self, node: ast.AST, bound: frozenset[str]) -> None:
        """Renames names that are not bound in an enclosing function."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            for outer in [
                *getattr(node, "decorator_list", []),
                *node.args.defaults,
                *filter(None, node.args.kw_defaults),
            ]:
                self.names(outer, bound)
            for arg in ast.walk(node.args):
                if isinstance(arg, ast.arg) and arg.annotation:
                    self.annotation(arg.annotation, bound)
            if getattr(node, "returns", None):
                self.annotation(node.returns, bound)
            inner = bound | _bound_in(node)
            if not isinstance(node, ast.Lambda):
                self.definition(node, bound)
            for child in node.body if isinstance(node.body, list) else [node.body]:
                self.names(child, inner)
            return
        if isinstance(node, ast.ClassDef):
            self.definition(node, bound)
        if isinstance(node, ast.Name) and node.id in self.renamed and node.id not in bound:
            self.edits.append((*self.span(node), self.renamed[node.id]))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self.aliases:
            if node.value.id not in bound:
                old = self.aliases[node.value.id]
                new = SYMBOLS.get(f"{old}:{node.attr}")
                start, end = self.span(node)
                if new and new.split(":")[0] != module_of(old):
                    self.edits.append((start, end, new.split(":")[1]))
                    self.added.add(new)
                    return
                if new:
                    self.edits.append((end - len(node.attr), end, new.split(":")[1]))
        if isinstance(node, ast.AnnAssign):
            self.annotation(node.annotation, bound)
            for child in filter(None, (node.target, node.value)):
                self.names(child, bound)
            return
        for child in ast.iter_child_nodes(node):
            self.names(child, bound)

    def definition(self, node: ast.AST, bound: frozenset[str]) -> None:
        if node in self.tree.body and node.name in self.renamed:
            start = self.starts[node.lineno - 1]
            match = re.compile(rb"(?:class|def)\s+" + node.name.encode() + rb"\b").search(self.source, start)
            self.edits.append((match.end() - len(node.name), match.end(), self.renamed[node.name]))

    def annotation(self, node: ast.AST, bound: frozenset[str]) -> None:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                text = inner.value
                for old, new in self.renamed.items():
                    text = re.sub(rf"(?<![\w.]){old}\b", new, text)
                if text != inner.value:
                    self.edits.append((*self.span(inner), f'"{text}"'))
        self.names(node, bound)


def _bound_in(function: ast.AST) -> frozenset[str]:
    names = {arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)}
    declared: set[str] = set()
    stack = list(function.body if isinstance(function.body, list) else [function.body])
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            declared |= {*node.names}
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
            continue
        if isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
        stack.extend(ast.iter_child_nodes(node))
    return frozenset(names - declared)


_DOTTED = re.compile(r"\b(?:platform|trainers|search_spaces|tests)(?:\.[A-Za-z_]\w*)+(?::[A-Za-z_]\w*)?")
_PATH = re.compile(r"\b(?:platform|trainers|search_spaces|tests)(?:/\w+)+(?:\.py\b)?/?")


def in_text(text: str, known: set[str]) -> list[tuple[int, int, str]]:
    """Returns the dotted names and paths to replace, as (start, end, new text)."""

    def dotted(whole: str) -> str:
        module, colon, name = whole.partition(":")
        parts = module.split(".")
        for end in range(len(parts), 1, -1):
            prefix = ".".join(parts[:end])
            if prefix in OF_COMMANDS:
                return whole
            if prefix in known:
                rest = parts[end:]
                symbol = rest[0] if rest else name
                if symbol and (new := SYMBOLS.get(f"{prefix}:{symbol}")):
                    new_module, new_name = new.split(":")
                    tail = "".join(f".{part}" for part in rest[1:])
                    return f"{new_module}.{new_name}{tail}" if rest else f"{new_module}:{new_name}"
                return ".".join([module_of(prefix), *rest]) + colon + name
        return whole

    def path(whole: str) -> str:
        slash = whole.endswith("/")
        plain = whole.rstrip("/")
        parts = plain.removesuffix(".py").split("/")
        module = ".".join(parts)
        if plain.endswith(".py"):
            new = MODULES.get(module) if parts[-1] != "__init__" else None
            return new.replace(".", "/") + ".py" if new else whole
        if module in OF_COMMANDS:
            return whole
        return module_of(module).replace(".", "/") + ("/" if slash else "")

    found = [(match, new) for pattern, new in ((_DOTTED, dotted), (_PATH, path)) for match in pattern.finditer(text)]
    return [(*match.span(), new(match[0])) for match, new in found if new(match[0]) != match[0]]


def replaced(text: str, known: set[str]) -> str:
    """Returns text that is no Python with its dotted names and paths replaced."""
    for start, end, new in sorted(in_text(text, known), reverse=True):
        text = text[:start] + new + text[end:]
    return text


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    files = [name for name in listed if name and not name.startswith(LEFT) and (root / name).is_file()]
    modules = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name
        for name in files
        if name.endswith(".py")
    }
    known = {module for module in modules if module.split(".")[0] in ("platform", "trainers", "search_spaces", "tests")}
    new_text: dict[str, str] = {}
    for name in files:
        path = root / name
        if path.suffix == ".py":
            module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            text = path.read_text()
            text = File(text, module, known).rewritten()
            depth, new = module.count("."), module_of(module).count(".")
            if module in MODULES and new != depth and not name.endswith("__init__.py"):
                deeper = lambda match: f"parents[{int(match[1]) + new - depth}]"  # noqa: B023, E731
                lines = text.splitlines(keepends=True)
                text = "".join(
                    re.sub(r"parents\[(\d+)\]", deeper, line) if "__file__" in line else line for line in lines
                )
            new_text[name] = text
        elif path.suffix in TEXT and path.stat().st_size < 10**6:
            try:
                new_text[name] = replaced(path.read_text(), known)
            except UnicodeDecodeError:
                continue
    for name, text in new_text.items():
        if (root / name).read_text() != text:
            (root / name).write_text(text)
    moves = []
    for old, new in MODULES.items():
        if old in modules:
            package = modules[old].endswith("__init__.py") and not new.endswith("engine_axis")
            package = package and new not in ("trainers.models.model",)
            moves.append((modules[old], path_of(new, package)))
    for old, new in moves:  # by way of names of their own: one file's new place is another's old one
        subprocess.run(["git", "mv", old, old + ".moving"], cwd=root, check=True)
    for old, new in moves:
        (root / new).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "mv", old + ".moving", new], cwd=root, check=True)


if __name__ == "__main__":
    main()
