"""A study as a value."""

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platform.common.json_form import with_schema
from platform.report.json_report import as_json
from platform.report.measurement_table import table_of
from platform.report.summary import verdicts
from platform.report.table import records
from platform.study.folder import default_folder, located, user_path
from platform.study.lock import is_locked
from platform.study.result.result import StudyResult
from platform.study.study import find, read

if TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredStudy:
    """The measurements and the result of a study when it was opened; `open` reads it anew."""

    path: Path
    result: StudyResult = dataclasses.field(repr=False)

    @property
    def name(self) -> str:
        """The study's name."""
        return self.path.name

    @functools.cached_property
    def answer(self) -> dict[str, Any]:
        """The object that `python -m platform.report --json` prints."""
        return with_schema(as_json(self.result))

    @property
    def best(self) -> dict[str, Any] | None:
        """The winner of the study's first recipe; None where nothing fits or it is not resolved which is the best."""
        return self.answer["winner"]

    @property
    def caveats(self) -> list[str]:
        """Whatever the result lacks as evidence, such as "not gated"."""
        return [caveat["name"] for caveat in self.answer["caveats"]]

    def frame(self) -> "pd.DataFrame":
        """Returns a pandas frame with a row for each measurement, skipped ones included, and the columns of the CSV
        table.
        """
        import pandas as pd

        return pd.DataFrame(records(*table_of(self.result)))

    def _repr_html_(self) -> str:
        return "".join(f"<p>{sentence}</p>" for sentence in verdicts(self.result)) + self.frame().to_html(max_rows=20)


def open(study: str | Path, studies: str | Path | None = None) -> MeasuredStudy:
    """Returns the study of a name in the folder `studies` (default: that of the commands), or at a path.

    Raises:
        InputError: there is none, or its journal cannot be read.
    """
    folder = find(*located(user_path(studies or default_folder()).absolute(), str(study)))
    return MeasuredStudy(path=folder, result=StudyResult.of(read(folder, last=not is_locked(folder))[0]))
