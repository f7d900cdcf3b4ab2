"""A plan as a value."""

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from platform.api.arguments import arguments
from platform.common.json_form import with_schema
from platform.common.options import CommandParser
from platform.plan.answered import answered
from platform.plan.plan_options import PlanOptions
from platform.plan.rows import rows_of

if TYPE_CHECKING:
    import pandas as pd

Model = str | os.PathLike[str]
"""A space's name, its file or folder, or OWNER/NAME of the hub."""
_PARSER = CommandParser(PlanOptions, prog="layout_search.plan", description=None)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A result of `plan`: predicted, not measured."""

    answer: Mapping[str, Any]
    """The object that `python -m platform.plan --json` prints."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows: layouts, the best first, or a row for each cluster, number of devices, network or phase."""
        return rows_of(self.answer)

    @property
    def best(self) -> dict[str, Any]:
        return self.rows[0]

    def frame(self) -> "pd.DataFrame":
        """Returns the rows as a pandas frame with a column for each key of the command's JSON."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def _repr_html_(self) -> str:
        return self.frame().to_html(max_rows=20)


def plan(
    space: Model | Sequence[Model],
    cluster: str | Sequence[str] | None = None,
    *,
    verbose: bool = False,
    **options: Any,
) -> Plan:
    """Returns the predictions for the layouts of a space, `config.json` or hub model on a cluster; several are
    compared, a row each.

    `options` are those of `python -m platform.plan`: `tokens="100B"`, `set={"seq_len": 1024}`, `gpus=[4, 8]`. `verbose`
    also prints the command's tables.

    Raises:
        InputError: an argument is wrong; `NothingFits` if no layout fits.
        ClusterError: Ray failed when asked for its cluster.
    """
    spaces = [space] if isinstance(space, str | os.PathLike) else space
    read = _PARSER.read(arguments(*(os.fspath(model) for model in spaces), cluster=cluster, **options))
    with contextlib.ExitStack() as stack:
        nowhere = None if verbose else stack.enter_context(Path(os.devnull).open("w"))
        if nowhere is not None:
            stack.enter_context(contextlib.redirect_stderr(nowhere))
        console = Console(file=nowhere, highlight=False, markup=False, emoji=False)
        return Plan(answer=with_schema(answered(read, console)[0]))
