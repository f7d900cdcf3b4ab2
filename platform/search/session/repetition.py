"""The file in a study's folder that repeats its search: `platform.search --config STUDY/run.yaml`."""

from pathlib import Path

from platform.common.config_file import write_config
from platform.common.options import non_default
from platform.search.setup.options import SearchOptions, StudyOptions
from platform.study.atomic_write import replacing

RUN = "run.yaml"
_OF_SESSIONS = ("profile", "safe", "max_trials", "time_budget_s", "gpu_s", "exclude_slow")
"""Options that affect the measurements but are not kept by a study."""


def write_run(folder: Path, options: SearchOptions, study: StudyOptions) -> None:
    """Writes the options that define the search of `folder`: the study's, and the session's that affect measurements.

    Names, places and clusters are left out.

    Raises:
        InputError: the file cannot be written.
    """
    values = non_default(study, StudyOptions())
    values |= {name: value for name in _OF_SESSIONS if (value := getattr(options, name)) not in (None, False)}
    with replacing(folder / RUN) as part:
        write_config(part, values, f"Repeats the search {folder.name}: python -m platform.search --config {RUN}")
