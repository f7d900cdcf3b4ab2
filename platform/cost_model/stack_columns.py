"""Columns of software other than this project's, by stack."""

from platform.cost_model import constants
from platform.cost_model.stacks import fact

TENSOR_OVERLAP = constants.number("features", "TENSOR_OVERLAP")
BLIND_SIGMA = constants.number("evidence", "BLIND_SIGMA")
STACK_HOST = ("block_host", "block_host_backward", "host_skew", "host_pipe")
"""Columns of a stack's host time."""


def stack_costs(software: str, tp_overlap: str = "", dp_overlap: str = "", cp_comm: str = "") -> dict[str, float]:
    """Returns the columns that all runs of `software` share; `tp_overlap`, `dp_overlap` and `cp_comm` are the row's
    columns with these names, "" if blank.
    """
    overlap = float(fact(software, "tensor_overlap", 0.0)) if tp_overlap != "no" else 0.0
    return {
        "copies_attention": float(fact(software, "copies_attention", False)),
        "keeps_casts": float(fact(software, "keeps_casts", False)),
        "keeps_gathered": float(fact(software, "keeps_gathered", False)),
        "block_host": float(fact(software, "host_forward_s", 0.0)),
        "block_host_backward": float(fact(software, "host_backward_s", 0.0)),
        "host_skew": float(fact(software, "host_skew_s", 0.0)),
        "host_pipe": float(fact(software, "host_pipe_s", 0.0)),
        "exchanges_heads": float((cp_comm or fact(software, "cp_comm", "ring")) == "all_to_all"),
        "merges_eagerly": float(fact(software, "merges_eagerly", False)),
        "tensor_overlap": TENSOR_OVERLAP if tp_overlap == "yes" else overlap,
        "gathers_again": float(fact(software, "gathers_again", False)),
        "all_reduced_bytes": float(fact(software, "all_reduced_bytes", 0.0)),
        "overlaps_reduction": _stated(dp_overlap, fact(software, "overlaps_reduction", False)),
        "overlaps_gather": _stated(dp_overlap, fact(software, "overlaps_gather", False)),
        "stated_overlap": {"yes": 1.0, "no": -1.0}.get(dp_overlap, 0.0),
        "broadcasts_parts": float(fact(software, "broadcasts_parts", False)),
        "reduces_by_hooks": float(fact(software, "reduces_by_hooks", False)),
        "cuts_by_cost": float(fact(software, "stages_by_cost", False)),
        "metric_losses": float(fact(software, "metric_losses", 0.0)),
        "wants_warm_up": float(fact(software, "wants_warm_up", False)),
        "stack_sigma": float(fact(software, "sigma", BLIND_SIGMA)),
        "stall_exchange_s": float(fact(software, "stall_exchange_s", 0.0)),
        "stall_chance": float(fact(software, "stall_chance", 0.0)),
        "stall_chance_data": float(fact(software, "stall_chance_data", 0.0)),
    }


def _stated(word: str, chance: float) -> float:
    """Returns 1 for "yes", 0 for "no", and the more probable value for ""."""
    return float({"yes": True, "no": False}.get(word, chance >= 0.5))
