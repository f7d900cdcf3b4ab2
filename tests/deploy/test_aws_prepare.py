"""Tests of the input that `deploy.aws.prepare` refuses and of the file that it writes. No test here calls AWS: EC2's
answers come from a mock in test_aws.py.
"""

from pathlib import Path

import pytest

from deploy.aws import prepare
from platform.common.errors import InputError

FILE = Path(__file__).resolve().parents[2] / "cluster.yaml"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0.0.0.0/0", "opens port 22 to 4,294,967,296 addresses"),
        ("10.0.0.0/8", "opens port 22 to 16,777,216 addresses"),
        ("here", "must be an IPv4 network such as 203.0.113.7/32, got 'here'"),
        ("10.0.0.0/99", "must be an IPv4 network"),
    ],
)
def test_port_22_is_not_opened_to_the_world(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        prepare.ssh_network(text)


def test_an_address_is_a_network_of_its_own() -> None:
    assert prepare.ssh_network("203.0.113.7") == "203.0.113.7/32"
    assert prepare.ssh_network("203.0.113.7/24") == "203.0.113.0/24"


def test_ids_are_written_in_place_and_nothing_else_changes() -> None:
    text = FILE.read_text()
    arguments = {"--subnet": "subnet-0a", "--private-subnet": None, "--bucket": "mine"}
    changed = prepare.with_ids(text, "sg-0abc", arguments)
    assert "SecurityGroupIds: &group [sg-0abc]" in changed and "[subnet-0a]" in changed
    assert "SubnetId: subnet-00000000000000002" in changed  # not given
    assert " s3://mine/mlflow " in changed
    back = prepare.with_ids(changed, "sg-00000000000000001", dict.fromkeys(arguments))
    back = back.replace("[subnet-0a]", "[subnet-00000000000000001]")
    assert back.replace("s3://mine/", "s3://bucket-00000000000000001/") == text


def test_a_file_without_a_group_is_refused() -> None:
    with pytest.raises(InputError, match="without it Ray opens port 22 to all"):
        prepare.with_ids("provider: {type: aws}", "sg-0abc", {})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("provider: {type: local}", "must have a provider of type aws with a region"),
        ("provider: [", "cannot be read"),
        ("- a", "must have a provider of type aws"),
    ],
)
def test_another_file_is_refused_in_one_sentence_before_aws_is_asked(
    text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    assert prepare.main([str(file), "--ssh-from", "203.0.113.7/32"], client=lambda *_: pytest.fail("asked")) == 2
    output = capsys.readouterr().err
    assert output.startswith("error: ") and sentence in output and output.count("\n") == 1


def test_a_missing_option_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare.main([str(FILE)]) == 2
    assert "--ssh-from" in capsys.readouterr().err
