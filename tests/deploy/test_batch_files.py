"""The batch files of SLURM: the name that a job gives a study, and the time that it leaves for a last checkpoint."""

import os
import re
import subprocess

import pytest

from platform.common.checkout import ROOT
from platform.study.study import check_name
from platform.train.__main__ import PARSER


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


@pytest.mark.parametrize("notice", [None, "1800"])
def test_a_training_knows_the_time_between_slurm_s_signal_and_its_kill(notice: str | None) -> None:
    text = (ROOT / "deploy" / "slurm" / "train.sbatch").read_text()
    (stated,) = re.findall(r"^#SBATCH --signal=B:TERM@(\d+)", text, re.MULTILINE)
    settings = "\n".join(re.findall(r"^(?:NOTICE|LEFT_FOR_RAY)=.*$", text, re.MULTILINE))
    (grace,) = re.findall(r"--grace (\S.*?\)\)\")", text)
    environment = {"PATH": os.environ["PATH"]} | ({} if notice is None else {"NOTICE": notice})
    command = ["bash", "-c", f"{settings}\nprintf %s {grace}"]
    grace_s = int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert 0 < grace_s < int(notice or stated) <= grace_s + 60
    PARSER.read(["study", "--tokens", "1", "--grace", str(grace_s)])


@pytest.mark.parametrize("name", ["ray_job.sh", "search.sbatch", "train.sbatch"])
def test_the_shell_reads_it(name: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / "deploy" / "slurm" / name)], check=True)
