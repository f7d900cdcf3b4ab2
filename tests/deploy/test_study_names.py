"""The name that a job of SLURM gives a study."""

import re
import subprocess

import pytest

from platform.common.checkout import ROOT
from platform.study.study import check_name


@pytest.mark.parametrize(
    ("space", "name"),
    [
        ("bloom7b", "bloom7b"),
        ("models/a/config.json", "models-a-config"),
        ("models/b/config.json", "models-b-config"),
        ("/gpfs/über all/mine.py", "gpfs-ber-all-mine"),
    ],
)
def test_a_study_s_name_is_of_the_whole_path(space: str, name: str) -> None:
    lines = (ROOT / "deploy" / "slurm" / "search.sbatch").read_text().splitlines()
    naming = "\n".join(line for line in lines if line.startswith(("of_path=", "name=")))
    run = subprocess.run(
        ["bash", "-c", f'space=$1\n{naming}\nprintf %s "$name"', "-", space],
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.sub("-+", "-", run.stdout) == name
    check_name(run.stdout)
