"""Every name that the product defines is read by the product, a script or a benchmark, and not by tests alone."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT, USERS = ("platform", "search_spaces", "trainers"), ("benchmarks", "deploy", "scripts")
WORD = re.compile(r"\w+")
CALLED_BY_LIBRARIES = {
    *("_repr_html_", "do_GET", "log_message"),
    *("set_search_properties", "after_controller_start", "_maybe_send_resource_request", "backend_cls"),
    *("on_train_begin", "on_step_end", "on_log", "on_save"),
    *("compute_loss", "create_optimizer", "create_scheduler"),
    *("forward_maybe_with_nosync", "perform_reduce_grad"),
    *("_gelu_of_product", "_gelu_gradient"),  # torch.library calls them by their decorator
}
FOR_THE_USER = {"StepLines"}
"""Names that a user's own program imports."""


def _files(folders: tuple[str, ...], ending: str) -> Iterator[Path]:
    for folder in folders:
        yield from (ROOT / folder).glob(f"**/*{ending}")


def _read(tree: ast.AST) -> Iterator[str]:
    """Yields the names that a module reads; words of texts count, for registries and `getattr` name things so."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                yield name
            case ast.MatchClass(kwd_attrs=names):
                yield from names
            case ast.Constant(value=str() as text):
                yield from WORD.findall(text) if len(text) < 60 and "\n" not in text else ()
            case _:
                pass


def _defined(tree: ast.Module) -> Iterator[str]:
    """Yields functions, methods, classes, constants, fields of classes, and attributes that methods set."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name, body=body):
                yield name
                is_form = any(ast.unparse(base).endswith(("TypedDict", "Form")) for base in node.bases)
                yield from () if is_form else _assigned(body)
            case ast.Attribute(attr=name, ctx=ast.Store(), value=ast.Name(id="self")):
                yield name
            case _:
                pass
    yield from _assigned(tree.body)


def _assigned(body: list[ast.stmt]) -> Iterator[str]:
    for statement in body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def test_every_name_is_read_outside_of_tests() -> None:
    product = {path: ast.parse(path.read_text(encoding="utf-8")) for path in _files(PRODUCT, ".py")}
    others = [ast.parse(path.read_text(encoding="utf-8")) for path in _files(USERS, ".py")]
    read = {name for tree in (*product.values(), *others) for name in _read(tree)}
    read |= {word for path in _files(PRODUCT, ".html") for word in WORD.findall(path.read_text(encoding="utf-8"))}
    unread = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, tree in product.items()
        for name in _defined(tree)
        if name not in read | CALLED_BY_LIBRARIES | FOR_THE_USER and not name.startswith("__")
    }
    assert not unread, "delete it, or use it"
