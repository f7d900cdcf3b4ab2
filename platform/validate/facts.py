"""Extracts facts from a row's prose and writes them into columns. No other module reads prose.

Published tables state facts in `source` and `notes`. `normalized` converts them into columns with fixed words and
numbers when a table is read; all other code reads columns. A value stated in a column has priority over prose.
"""

import contextlib
import functools
import re
from collections.abc import Mapping
from typing import get_args

from platform.cost_model.hardware import find_device_by_memory, find_node
from platform.cost_model.stacks import fact, names
from platform.validate.cells import Row, number
from trainers.spec import architectures
from trainers.spec.axis import axes_of, choices_of, defaults_of
from trainers.spec.layout import Layout
from trainers.spec.model import FlopsConvention

STUDIES = (
    ("other", "aleph alpha", "aleph-alpha"),
    ("megatron-deepspeed", "vtrain", "vtrain"),
    ("megatron-core", r"\bnemo\b\D{0,20}(?:202[34]|2[34]\.\d\d)", "nemo-2024"),
    ("megatron-core", r"\bnemo\b|mlperf|dgx ?cloud", "nemo"),
    (
        "megatron-core",
        r"flagperf|flagscale|(?:megatron(?!-deepspeed)|(?<!tensor[- ])\bm?core\b)\D{0,20}202[34]",
        "megatron-core-2024",
    ),
    ("torchtitan", r"torchtitan\D{0,20}2024", "torchtitan-2024"),
    ("torchtitan", r"torchtitan\D{0,20}2025", "torchtitan-2025"),
    ("megatron-deepspeed", "bigscience", "bigscience"),
    ("other", r"kempner ?forge", "kempnerforge"),
    ("other", r"xtuner", "xtuner"),
)
"""(software, pattern of words, stack) for studies and years whose software has its own facts."""
_SOFTWARE = (
    (r"llm-foundry|mosaicml", "llm-foundry"),
    (r"torchtitan", "torchtitan"),
    (r"fms-fsdp", "fms-fsdp"),
    (r"nanotron", "nanotron"),
    (r"internevo|internlm", "internevo"),
    (r"litgpt|lit-gpt", "litgpt"),
    (r"lightning", "lightning"),
    (r"hf trainer|hugging ?face", "huggingface"),
    (r"bigscience|megatron-deepspeed|megatron ?\+ ?deepspeed|gpt-?neox", "megatron-deepspeed"),
    (r"megatron-core|\bnemo\b|megatron(?!-deepspeed)\D{0,20}202[34]", "megatron-core"),
    (r"megatron|mt-nlg", "megatron-lm"),
    (r"\bfsdp\b", "fms-fsdp"),
    (r"deepspeed|\bzero\b", "deepspeed"),
    ("", "other"),
)
WORDS = ("source", "notes")
"""Columns with prose."""
_OFF = r"(?:n\b|no\b|off\b|false|none|0\b|disabled|not (?:set|used|on|enabled)\b)"
_NOT = rf"(?![ :=]*(?:(?:is|was) )?{_OFF})"
_EXCHANGE = r"overlap[-_ ](?:grad|param|dp|all)\w*(?:[-_ ](?:reduc\w+|gather\w*|scatter))*"
_INPUTS_ON_HOST = r"full cpu offload|zero-3 old branch|pa_cpu=y"
_PARTITIONED = r"^(?!.*no partition-activations).*partition-activations"
_COLUMNS: Mapping[str, tuple[tuple[str, str | None], ...]] = {
    "offload": (
        (r"param offload y", "all"),
        (r"optimizer offload y", "optimizer"),
        (rf"(?:full|param\w*)[ -](?:cpu )?offload{_NOT}|offload_param\b", "all"),
        (
            rf"optimi[sz]er[ -](?:state[s]? )?(?:cpu )?offload{_NOT}|zero-?offload|offload_optimizer\b|cpu[ -]?adam"
            r"|offload\w* (?:the )?optimi[sz]er|optimi[sz]er (?:states )?(?:on|in) (?:the )?(?:cpu|host)",
            "optimizer",
        ),
        (r"offload[ :=]*(?:n\b|no\b|off\b|false|none|0\b)|(?:no|without)(?: cpu)?[ -]offload", ""),
        (r"cpu offload", "all"),
    ),
    "dp_overlap": (
        (rf"\b(?:no|without) overlap|{_EXCHANGE}[ :=]+(?:(?:is|was) )?{_OFF}", "no"),
        (r"overlap[-_ ](?:grad|param|dp|all)|overlap\w* (?:of )?(?:all|the gradient|gradient|data[- ]parallel)", "yes"),
    ),
    "cp_comm": ((r"all[- ]to[- ]all|ulysses|a2a", "all_to_all"), (r"ring[- ]attention|\bring\b|p2p", "ring")),
    "optimizer": ((r"8-bit optimizer", "adam8bit"),),
    "padded_vocab": ((r"vocab\w*(?: size)? (?:is |was )?padded to (\d+)", None),),
    "launch_blocking": ((r"cuda_launch_blocking=1", "yes"),),
    "checkpoint_blocks": ((r"checkpoint-num-layers=(\d+)", None),),
    # BigScience's first table used an unreleased ZeRO-3 branch with checkpoint inputs on the host, unless a row states
    # otherwise: 48 sequences of 64 blocks would fill 51 GB of a 32 GB device.
    "checkpoint_inputs": (
        (rf"^(?!.*(?:no checkpoint-in-cpu|pa_cpu=n)).*(?:{_INPUTS_ON_HOST})", "host"),
        (
            r"(?<!no )(?<!without )(?<!no activation )(?<!without activation )"
            r"(?:activation|checkpoint)\w* (?!(?:no|without|and|or) )(?:\w+ )?"
            rf"offload(?:ing|ed|s)?\b(?! (?:the )?(?:optimi|param)){_NOT}"
            r"|(?<!no )(?<!without )\boffload(?:ing|ed|s)? (?:the )?(?:activation|checkpoint)",
            "host",
        ),
        (rf"{_INPUTS_ON_HOST}|{_PARTITIONED}", "split"),
    ),
    "regathers": ((r"reshard\w*[ :=]+(?:always|true|yes|on)\b|reshard\w*(?: \w+){0,3} (?:every|each) micro", "yes"),),
    "schedule": ((r"interleav", "interleaved"),),
    "loss_chunks": ((r"tiled\w*[- ](?:logits|loss|compute)", "8"),),
    "bucket_sizes": ((r"hf trainer", "auto"),),
    "bare_loop": ((r"bare loop", "yes"),),
    "node_gbps": ((r"(\d+) ?gbps (?:node|inter)", None),),
    "flops": (
        *((rf"flops by {name}", name) for name in get_args(FlopsConvention)),
        (r"96\*b\*s\*l\*h\^2|exact megatron formula", "megatron_hardware"),
        (r"8\*n\*tokens|4\*2\*n\*tokens", "8n"),
        (r"3\*2\*n\*tokens", "6n"),
        (r"hardware flops", "megatron_hardware"),
        (r"model flops", "megatron_model"),
    ),
}
"""(pattern of words, value) by column. The first match counts; None stands for the text of the pattern's group."""
_EAGER = (
    r"hf trainer|pytorch eager|eager (?:mode|execution|pytorch)|(?:no|without) (?:torch.)?compile\b"
    r"|torch.compile[ :=]+(?:no|off|false|none|0)\b"
)
_COMPILES = r"torch.compile|compiled"
_FUSED_LOSS = r"fused cross|fused loss|fused kernels|liger"
"""Words for stacks that use FlashAttention's cross-entropy or a similar one."""
_SIMULATED = r"config\w*(?: files?)? (?:give|state)s? intra"
"""Words for rows whose link rate comes from a simulator's configuration."""
_PRECISIONS = (
    (r"float8|fp8", "fp8"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16", "fp16"),
    (r"tf32", "tf32"),
    (r"fp32|float32", "fp32"),
)
"""Patterns of precisions, narrowest first: for "bf16, float8 products" the precision is that of the products."""
_SCALINGS = (
    (r"row[-_ ]?wise|per[-_ ]row", "rowwise"),
    (r"block[-_ ]?(?:wise|scal\w+)|1 ?x ?128|128 ?x ?128|mxfp8", "blockwise"),
    (r"tensor[-_ ]?wise|per[-_ ]tensor|(?:delayed|current)[-_ ]scaling", "tensorwise"),
)
"""Patterns for the granularity of FP8 scales."""
NOTED = {name: axis.note for name, axis in axes_of(Layout).items() if axis.note and axis.column == "kernels"}
"""Axes that this project's tables state in their notes."""


def noted_column(axis: str) -> str:
    """Returns the column of an axis stated in notes. The column has the axis's name, except if published tables use
    this name for the number of experts.
    """
    return "experts_kernel" if axis == "experts" else axis


def _match(text: str, patterns: tuple[tuple[str, str | None], ...]) -> str:
    for pattern, value in patterns:
        if match := re.search(pattern, text):
            return match[1] if value is None else value
    return ""


def noted_kernels(notes: str) -> dict[str, str]:
    """Returns the layout's kernels by axis from the notes of this project's row, because the measurement table has no
    columns for them. Axes at their defaults are omitted.
    """
    return {
        name: value
        for name, note in NOTED.items()
        for value in choices_of(Layout)[name]
        if value != defaults_of(Layout)[name] and note.format(value) in notes
    }


def mlp_of(notes: str) -> str:
    return noted_kernels(notes).get("mlp", "plain")


def _software(row: Row, text: str) -> str:
    stated = row.get("software", "")
    if stated or row.get("engine"):
        return next((stack for name, words, stack in STUDIES if name == stated and re.search(words, text)), stated)
    if "bigscience" in text and row["strategy"] == "ddp" and ("megatron-lm" in text or "ds=n" in text):
        return "megatron-lm"  # runs with plain Megatron-LM, or with DeepSpeed switched off
    named = _match(text, _SOFTWARE)
    studies = (study for study in STUDIES if named == "other" or study[0] in (named, "other"))
    return next((stack for _, words, stack in studies if re.search(words, text)), named)


def _is_eager(row: Row, text: str) -> bool:
    """Returns whether the stack runs transformers or PyTorch unmodified, without fused kernels or a compiler."""
    if re.search(_EAGER, text):
        return True
    software, stated = row.get("software", ""), row.get("compile", "").lower()
    if stated == "none" and software in names() and fact(software, "compiles", "none") != "none":
        return not row.get("fused")  # this software fuses by compiling
    plain = software in ("huggingface", "lightning") and not row.get("fused")
    return plain and row.get("compile", "") in ("", "none") and not re.search(_COMPILES, text)


def _node(row: Row, text: str) -> str:
    with contextlib.suppress(ValueError):  # unknown device: reading the row reports it
        memory_gb = None if row.get("engine") else number(row, "gpu_mem_gb")
        return find_node(text, find_device_by_memory(row.get("gpu", ""), memory_gb).name) or ""
    return ""


@functools.cache
def _in_names(architecture: str) -> str:
    """Returns the pattern of an architecture in the names of its models."""
    plain = architecture.removesuffix("_text").replace("_", "")
    return "[-_.]?".join(plain) + r"(?!\.?\d*b)"


def _architecture(model: str, *, has_experts: bool) -> str:
    """Returns the architecture with the longest name that the model's name (in small letters) contains, or its variant
    with experts if the model has some; "" if it contains none.

    Hyphens, underscores and dots do not count: gpt_oss is in gpt-oss-20b, ernie4_5 in ERNIE-4.5, and gemma3_text in
    gemma-3. A number of billions is no part of a name: gpt2 is neither in GPT-2.7B nor in GPT-20B.
    """
    names = architectures.names()
    found = max((name for name in names if re.search(_in_names(name), model)), key=len, default="")
    return f"{found}_moe" if has_experts and f"{found}_moe" in names else found


def _facts(row: Row, text: str) -> dict[str, str]:
    """Returns the facts in a row and its prose by column; "" for facts that they do not state."""
    precision, has_experts = row.get("precision", "").lower(), row.get("experts", "") not in ("", "0", "1")
    facts = {
        "software": _software(row, text),
        **{name: _match(text, patterns) for name, patterns in _COLUMNS.items()},
        **{noted_column(axis): value for axis, value in noted_kernels(row.get("notes", "")).items()},
        "dp_overlap": _match(f"{text} {row.get('derived', '')}".lower(), _COLUMNS["dp_overlap"]),
        "eager": "yes" if _is_eager(row, text) else "",
        "node": _node(row, text),
        "matmul_precision": _match(precision, _PRECISIONS),
        "float8_scaling": _match(f"{precision} {text}", _SCALINGS) if "fp8" in _match(precision, _PRECISIONS) else "",
        "gradient_precision": "fp32" if "fp32 grad" in precision or "mp mode default" in text else "",
        "architecture": _architecture(row.get("model", "").lower(), has_experts=has_experts),
    }
    if facts["node"] == "jean-zay-a100" and "bigscience" in text:
        # Its large runs hung without this setting (train/tr11-176B-ml/tr11-176B-ml.slurm: "do not remove").
        facts["launch_blocking"] = "yes"
    if not row.get("attention_kernel") and not row.get("attention") and "flash" in text:
        facts["flash_attention"] = "yes"
    return facts


_READ = (
    "strategy", "model", "gpu", "gpu_mem_gb", "precision", "software", "engine", "fused", "compile", "attention",
    "attention_kernel", "notes", "derived", "experts",
)  # fmt: skip
"""Columns that `_facts` reads."""


@functools.lru_cache(maxsize=4096)
def _facts_of(text: str, cells: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Returns `_facts`, cached by prose and by the columns in `_READ`, which many rows of a table share."""
    return _facts(dict(cells), text)


def normalized(row: Row) -> Row:
    """Returns `row` with the facts in its prose as columns; `from_words` lists the columns that were blank.

    Two stated values change. Software with a separate stack for a study is replaced by that stack. A link rate from a
    simulator's configuration is removed: it is the rate at which the simulator expects collectives to run, whereas the
    NVLink of an SXM board is hard-wired.
    """
    text = " ".join(row.get(name, "") for name in WORDS).lower()
    if year := row.get("year"):
        text = f"{text} {row.get('software', '')} {year}"
    facts = _facts_of(text, tuple((name, row[name]) for name in _READ if name in row))
    filled = {name: value for name, value in facts.items() if value and not row.get(name)}
    result = {**row, **filled, "software": facts["software"]}
    if re.search(_FUSED_LOSS, text) and "loss" not in row.get("fused", "").split(";"):
        result["fused"] = ";".join(filter(None, (row.get("fused"), "loss")))
    if re.search(_SIMULATED, text):
        result["link_gbs"] = ""
    from_words = filter(None, (*row.get("from_words", "").split(";"), *filled))
    return {**result, "from_words": ";".join(dict.fromkeys(from_words))}
