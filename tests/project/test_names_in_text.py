"""Names in backticks, in docstrings and comments, exist: a name that was changed is changed in the text too."""

import ast
import builtins
import functools
import io
import keyword
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("benchmarks", "deploy", "platform", "scripts", "search_spaces", "tests", "trainers")
QUOTED = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)(?:\(\))?`(?!`)")
OF_OTHERS = frozenset((
    "_build_compact_grad_partition_buffer", "_ToFloat8ConstrFunc", "all_reduce_stream", "AllGatherCoalescedHandle",
    "AsyncCollectiveTensor", "average_tensor", "ban_recompute_materialized_backward", "bloom_gelu_back",
    "bloom_gelu_forward", "bytes_to_unicode", "copy_chunk_with_pad", "copy_grads_in_partition",
    "CUDACachingAllocator.cpp", "cuInit", "ddp_bucket_size", "efficient_gemm.md", "F.linear_cross_entropy",
    "finalize_backward", "fp8_params",
    "fsdp_pre_all_gather", "FSDPParam.accumulate_unsharded_grad_if_needed", "FSDPParamGroup.wait_for_unshard",
    "fwd_cache", "is_first_microbatch", "log_table", "modeling_gpt2.py", "modeling_llama.py", "NewGELUActivation",
    "nf4_tensor.py", "nohup", "partition_grads", "pipe_partitioned", "reduce_scatter_coalesced",
    "release_cached_blocks", "ReLUSquaredActivation", "save_to_disk", "send_forward_recv_backward",
    "set_is_last_backward", "SoftMax.cu", "StableEmbedding", "stage3.py", "stage_1_and_2.py", "TensorShape.cu",
    "to_fp8_saturated", "torchinductor_USER", "update_hp_grads", "use_multi_rank_bucket_allreduce",
    "with_quantized_all_gather",
))  # fmt: skip
"""Names of torch, DeepSpeed, Megatron-LM, nanotron and others that text explains and no code here uses."""


@functools.cache
def _nodes(source: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(source)))


@functools.cache
def texts(source: str) -> list[tuple[int, str]]:
    """Returns the line and the text of each docstring, of modules, classes, functions and values, and each comment."""
    docstrings = [
        (node.lineno, node.value.value)
        for node in _nodes(source)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    comments = [
        (token.start[0], token.string)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    return docstrings + comments


def names(source: str) -> Iterator[str]:
    """Yields each name that the code has, and each word of its strings, which name axes, options and keys."""
    docstrings = {id(node.value) for node in _nodes(source) if isinstance(node, ast.Expr)}
    for node in _nodes(source):
        match node:
            case (
                ast.Name(id=name)
                | ast.Attribute(attr=name)
                | ast.arg(arg=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield name
            case ast.keyword(arg=str(name)):
                yield name
            case ast.alias(name=dotted):
                yield from dotted.split(".")
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield from re.findall(r"\w+", text)
            case _:
                pass


@functools.cache
def _sources() -> dict[Path, str]:
    return {path: path.read_text("utf-8") for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))}


@functools.cache
def _known() -> frozenset[str]:
    files = [path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.*")]
    places = {part for path in files for part in (*path.parts, path.stem, path.suffix[1:])}
    code = {name for source in _sources().values() for name in names(source)}
    return frozenset((*dir(builtins), *keyword.kwlist, *places, *code))


def unknown(source: str, known: frozenset[str]) -> Iterator[str]:
    """Yields the line and each quoted name of which a part is not known."""
    for line, text in texts(source):
        for name in QUOTED.findall(text):
            if name not in OF_OTHERS and not known.issuperset(name.split(".")):
                yield f"{line}: {name}"


def test_names_in_backticks_exist() -> None:
    assert [
        f"{path.relative_to(ROOT)}:{finding}"
        for path, source in _sources().items()
        for finding in unknown(source, _known())
    ] == []


def test_names_of_others_are_still_quoted() -> None:
    quoted = {name for source in _sources().values() for _, text in texts(source) for name in QUOTED.findall(text)}
    assert quoted >= OF_OTHERS


def test_a_name_that_is_gone_is_seen() -> None:
    source = '"""See `a.b` and `gone.b`."""\na = b = 1  # as `lost` does\n"""In `b`, not ``gone`` and `gone + 1`."""\n'
    assert list(unknown(source, frozenset(names(source)))) == ["1: gone.b", "2: lost"]
