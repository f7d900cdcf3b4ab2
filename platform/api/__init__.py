"""The Python API: plans, searches and studies as values. An installed package provides it as `layout_search`.

    import layout_search

    plan = layout_search.plan("bloom7b", cluster="8xH100", set={"seq_len": 1024})
    plan.best["tokens_per_s"]
    study = layout_search.search("bloom7b", gpus=4, time_budget_s=600)
    study.best["layout"]["label"]
    study.frame().sort_values("tokens_per_s_per_gpu")

Options are those of the commands, with `_` for `-`. Nothing is printed unless `verbose` is set. A user's mistake raises
`InputError` and a fault of the cluster `ClusterError`, with the sentences of the commands.
"""

from platform.api.functions import measure
from platform.api.plans import Plan, plan
from platform.api.searches import Search, search
from platform.api.studies import MeasuredStudy, open
from platform.common.errors import ClusterError, InputError

__all__ = ["ClusterError", "InputError", "MeasuredStudy", "Plan", "Search", "measure", "open", "plan", "search"]
