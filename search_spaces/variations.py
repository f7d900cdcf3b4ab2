"""Values that a space tries one axis at a time, and the reasons for fewer values than elsewhere."""

from collections.abc import Iterator, Mapping
from typing import Any

from search_spaces.degrees import fewest_devices, fill
from trainers.spec.axis import axes_of
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.spec.support import standing_refusal

_ATTENTION = ("sdpa", "flex", "eager")
"""Attention kernels that need no optional package."""
_VARIED = (
    "attention",
    "compile",
    "cuda_graphs",
    "checkpointing",
    "prefetch",
    "bucket_mib",
    "overlap",
    "reshard",
    "after_backward",
    "dp_shard",
    "fp8_weights",
)
_OF_EXCHANGES = ("bucket_mib", "overlap", "prefetch", "reshard", "after_backward")
"""Axes without effect on a single data-parallel rank, which exchanges nothing."""
BESIDE_FASTEST = "some values one axis at a time, beside the likely fastest kernels: all combinations are too many"
NARROWED: Mapping[str, str] = {
    **dict.fromkeys(_VARIED, BESIDE_FASTEST),
    **dict.fromkeys(
        ("loss", "grad_sync"), "one value where tp, pp or cp split the model, whose degrees multiply the layouts"
    ),
    "offload": "none, and moments beside the likely fastest kernels: the host memory of others is not predicted",
}
"""`Space.narrowed` of a space with `variations` and with layouts that split the model."""


def variations(*kernels: str) -> tuple[dict[str, tuple[Any, ...]], ...]:
    """Returns `Space.variations` for a model. `kernels` are the attention kernels that the space tries in every
    combination, the likely fastest first.
    """
    fastest: dict[str, tuple[Any, ...]] = {"attention": kernels[:1], "compile": ("block",), "loss": ("chunked",)}
    # DeepSpeed's ZeRO-3, which has most of an engine's options, cannot run compiled code.
    of_engines = {**fastest, "compile": ("block", "none"), "checkpointing": ("none", "full")}
    others = tuple(kernel for kernel in _ATTENTION if kernel not in kernels)
    return (
        *({**fastest, "attention": (kernel,)} for kernel in others),
        {**fastest, "checkpointing": ("budget_75", "budget_50", "budget_25", "every_4", "every_2")},
        # When the host takes no time, only the gradient exchange remains, so its bucket sizes are varied. A model
        # compiled whole has its own loss and attention.
        {"attention": ("sdpa",), "compile": ("model",), "loss": ("plain",), "bucket_mib": (0, 100, 256)},
        {**fastest, "cuda_graphs": ("on",), "bucket_mib": (0, 100, 256)},
        # Room for larger micro-batches.
        {**fastest, "offload": ("moments",), "checkpointing": ("none", "selective", "full")},
        {**of_engines, "prefetch": (1, 2, 4)},
        {**of_engines, "bucket_mib": (100, 256)},
        {**of_engines, "overlap": ("on", "off")},
        {**of_engines, "reshard": (2, 4, 8)},
        {**of_engines, "after_backward": ("keep",)},
        {**of_engines, "dp_shard": (2, 4, 8)},
        # In FP8 recipes under DDP they are faster wherever they fit, so each way to save memory is tried beside them.
        {
            **fastest,
            "loss": ("chunked", "plain"),
            "checkpointing": ("none", "selective", "full"),
            "grad_sync": ("last",),
            "fp8_weights": ("kept",),
            "offload": ("none", "moments"),
        },
    )


def may_run(recipe: Recipe, values: Mapping[str, Any], num_devices: int | None) -> bool:
    """Returns whether the engine supports these axis values on a number of devices that is a multiple of their degrees
    (None: the smallest number).
    """
    fewest = fewest_devices(values)
    if num_devices is not None and num_devices % fewest:
        return False
    try:
        layout = fill(values, num_devices or fewest)
    except ValueError:
        return False
    if layout.data_parallel == 1 and any(layout.is_set(axis) for axis in _OF_EXCHANGES):
        return False
    return standing_refusal(recipe, layout, num_devices or fewest) is None


def every_axis(reason: str) -> dict[str, str]:
    """Returns `Space.narrowed` for a space in which all axes have fewer values for the same reason."""
    return dict.fromkeys(axes_of(Layout), reason)


def narrowed_sentences(narrowed: Mapping[str, str]) -> Iterator[str]:
    """Yields a sentence for each reason of `Space.narrowed`, with its axes."""
    for reason in dict.fromkeys(narrowed.values()):
        axes = [axis for axis, its_reason in narrowed.items() if its_reason == reason]
        every = set(axes) >= set(axes_of(Layout))
        yield f"tried in part: {'all axes' if every else ', '.join(axes)} ({reason}); --set tries other values"
