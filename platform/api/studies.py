"""A study as a value."""

import dataclasses
import functools
import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platform.api.arguments import arguments
from platform.common.errors import InputError
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

    from platform.train.exporting.command import Exported


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredStudy:
    """The measurements and result of a study when it was opened; `open` reads it again."""

    path: Path
    result: StudyResult = dataclasses.field(repr=False)

    @property
    def name(self) -> str:
        return self.path.name

    @functools.cached_property
    def answer(self) -> dict[str, Any]:
        """The object that `python -m platform.report --json` prints."""
        return with_schema(as_json(self.result))

    @property
    def best(self) -> dict[str, Any] | None:
        """The winner of the study's first recipe; None if nothing fits or the winner is not resolved."""
        return self.answer["winner"]

    @property
    def caveats(self) -> list[str]:
        """Names of the result's caveats, such as "not gated"."""
        return [caveat["name"] for caveat in self.answer["caveats"]]

    def frame(self) -> "pd.DataFrame":
        """Returns the CSV table as a pandas frame: a row for each measurement, skipped ones included."""
        import pandas as pd

        return pd.DataFrame(records(*table_of(self.result)))

    def export(self, to: str, out: str | Path, **options: Any) -> "Exported":
        """Writes the winner into the new folder `out` for another program or torchrun; returns the folder's
        description.

        `to` and `options` are those of `python -m platform.export`, such as `to="accelerate"` and `tokens="2B"`.

        Raises:
            InputError: the options have a mistake, or the study has no winner.
        """
        from platform.train.exporting import command  # what a look at a study need not wait for

        if options.get("run"):
            raise InputError("an export from Python writes files and runs nothing: use python -m platform.export --run")
        return command.export(command.PARSER.read(arguments(self.path, to=to, out=out, **options)))

    def _repr_html_(self) -> str:
        sentences = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in verdicts(self.result))
        return sentences + self.frame().to_html(max_rows=20)


def open(study: str | Path, studies: str | Path | None = None) -> MeasuredStudy:
    """Returns the study with that name in the folder `studies` (default: the commands'), or at a path.

    Raises:
        InputError: there is none, or its journal cannot be read.
    """
    folder = find(*located(user_path(studies or default_folder()).absolute(), str(study)))
    return MeasuredStudy(path=folder, result=StudyResult.of(read(folder, last=not is_locked(folder))[0]))
