"""Columns that depend on the software that runs a layout: this project's trainer, or a published run's stack."""

from platform.cost_model import constants
from platform.cost_model.stacks import fact

ROUNDING = constants.words("features", "ROUNDING")
STEP_HOST_S = constants.number("host", "STEP_HOST_S")
SHARPNESS = constants.number("host", "SHARPNESS")
TENSOR_OVERLAP = constants.number("features", "TENSOR_OVERLAP")

THIS_PROJECT_COLUMNS = {
    "checkpoint_blocks": 1.0,
    "checkpoint_device_share": 1.0,
    "repeats_core_alone": 0.0,
    "reduces_whole": 1.0,
    "metric_losses": 0.0,
    "loss_moved": 0.0,
    "dropout": 0.0,
    "blocking": 0.0,
    "rounding": ROUNDING["expandable"],
    "transient_rounding": ROUNDING["expandable"],
    "unfused_norm_passes": 0.0,
    "unfused_norm_bytes": 0.0,
    "copies_attention": 0.0,
    "saves_gathered": 1.0,
    "keeps_gathered": 0.0,
    "block_host": 0.0,
    "block_host_backward": 0.0,
    "step_host": STEP_HOST_S,
    "host_skew": 0.0,
    "host_pipe": 0.0,
    "waits_each_pass": 0.0,
    "sharpness": SHARPNESS,
    "tensor_overlap": 0.0,
    "all_reduced_bytes": 0.0,
    "reduces_by_hooks": 0.0,
    "cuts_by_cost": 0.0,
    "wants_warm_up": 0.0,
    "stack_sigma": 0.0,
    "rate_sigma": 0.0,
    "host_sigma": 0.0,
    "stall_exchange_s": 0.0,
    "stall_chance": 0.0,
}
"""Columns of this project's own trainer, for what its layouts do not state."""

STACK_HOST = ("block_host", "block_host_backward", "host_skew", "host_pipe")
"""Columns of a stack's host time."""


def stack_costs(software: str, tp_overlap: str = "") -> dict[str, float]:
    """Returns the columns that all runs of `software` share; `tp_overlap` is the row's column of that name, "" if
    blank.
    """
    overlap = float(fact(software, "tensor_overlap", 0.0)) if tp_overlap != "no" else 0.0
    return {
        "copies_attention": float(fact(software, "copies_attention", False)),
        "keeps_gathered": float(fact(software, "keeps_gathered", False)),
        "block_host": float(fact(software, "host_forward_s", 0.0)),
        "block_host_backward": float(fact(software, "host_backward_s", 0.0)),
        "host_skew": float(fact(software, "host_skew_s", 0.0)),
        "host_pipe": float(fact(software, "host_pipe_s", 0.0)),
        "tensor_overlap": TENSOR_OVERLAP if tp_overlap == "yes" else overlap,
        "all_reduced_bytes": float(fact(software, "all_reduced_bytes", 0.0)),
        "reduces_by_hooks": float(fact(software, "reduces_by_hooks", False)),
        "cuts_by_cost": float(fact(software, "stages_by_cost", False)),
        "metric_losses": float(fact(software, "metric_losses", 0.0)),
        "wants_warm_up": float(fact(software, "wants_warm_up", False)),
        "stack_sigma": float(fact(software, "sigma", 0.0)),
        "stall_exchange_s": float(fact(software, "stall_exchange_s", 0.0)),
        "stall_chance": float(fact(software, "stall_chance", 0.0)),
    }
