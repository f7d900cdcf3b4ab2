"""`ray up cluster.yaml` and `ray down` against moto's EC2 on loopback: the requests to AWS, and that nothing is left.

Stand-ins for ssh and rsync come first on the path, so nothing is sent to the mock's made-up addresses; they play a host
with Docker.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.aws import prepare
from tests.loopback import free_port

pytestmark = [pytest.mark.ray, pytest.mark.heavy]
ROOT = Path(__file__).resolve().parents[2]
REGION, ZONE, BUCKET = "us-west-2", "us-west-2b", "layout-search-artifacts"
SSH = """\
#!/bin/bash
echo "$*" >> "$SSH_LOG"
case "$*" in
    *Config.Env*) echo '["HOME=/home/ray","PATH=/usr/bin"]' ;;
    *State.Running*) echo true ;;
    *Mounts*) echo '[]' ;;
    *'docker info'*) echo 'map[runc:{}]' ;;
esac
"""


class Aws:
    """The mock, and a user's machine that knows no other AWS."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.log = folder / "ssh.log"
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        self.home.mkdir()
        self.log.touch()
        for name, text in (("ssh", SSH), ("rsync", '#!/bin/bash\necho "rsync $*" >> "$SSH_LOG"\n')):
            (bin_folder / name).write_text(text)
            (bin_folder / name).chmod(0o755)
        self.url = f"http://127.0.0.1:{port}"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "AWS_"))},
            "PATH": f"{bin_folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "SSH_LOG": str(self.log),
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def client(self, region: str = REGION, service: str = "ec2") -> Any:
        """Returns Boto's client of a service of the mock."""
        import boto3

        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        return boto3.client(service, region_name=region, endpoint_url=self.url, **keys)

    def instances(self, *, alive: bool = True) -> list[dict[str, Any]]:
        """Returns the instances that are pending, running or stopped; with `alive=False`, all that were launched."""
        all_instances = [
            instance for part in self.client().describe_instances()["Reservations"] for instance in part["Instances"]
        ]
        return [
            all_instance
            for all_instance in all_instances
            if not alive or all_instance["State"]["Name"] in ("pending", "running", "stopped")
        ]

    def ray(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `ray ...` as that user, in the checkout."""
        command = [sys.executable, "-m", "ray.scripts.scripts", *arguments]
        return subprocess.run(
            command,
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[Aws]:
    """Yields a running mock of AWS that holds only what an account has by default."""
    server = Path(sys.executable).with_name("moto_server")
    assert server.exists(), "moto is a development dependency: make setup"
    port = free_port()
    log = (tmp_path / "moto.log").open("wb")
    environment = {**os.environ, "MOTO_IAM_LOAD_MANAGED_POLICIES": "true"}
    with subprocess.Popen(
        [str(server), "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log, env=environment
    ) as mock:
        created, until_s = Aws(tmp_path, port), time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{created.url}/moto-api/", timeout=5).close()
                break
            except OSError:
                assert mock.poll() is None and time.monotonic() < until_s, (tmp_path / "moto.log").read_text()
                time.sleep(0.2)
        yield created
        mock.kill()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Returns the path of a user's copy of the cluster file."""
    return Path(shutil.copy(ROOT / "cluster.yaml", tmp_path))


def prepared(aws: Aws, file: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Prepares the file with subnets of the zone, as docs/clusters.md says."""
    ec2 = aws.client()
    (public,) = ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": [ZONE]}])["Subnets"]
    private = ec2.create_subnet(VpcId=public["VpcId"], CidrBlock="172.31.128.0/20", AvailabilityZone=ZONE)["Subnet"]
    monkeypatch.setenv("HOME", str(aws.home))
    arguments = ["--subnet", public["SubnetId"], "--private-subnet", private["SubnetId"], "--bucket", BUCKET]
    return prepare.main([str(file), "--ssh-from", "203.0.113.7/32", *arguments], client=aws.client)


def test_what_is_not_prepared_is_refused_before_anything_is_launched(aws: Aws, file: Path) -> None:
    completed = aws.ray("up", "--yes", "--no-config-cache", str(file))
    assert completed.returncode != 0, completed.stdout
    assert aws.instances(alive=False) == []
    # Nor did Ray make a group of its own, which would open port 22 to the world.
    groups = aws.client().describe_security_groups()["SecurityGroups"]
    assert {group["GroupName"] for group in groups} == {"default"}


def test_a_missing_token_is_noticed_before_the_head_is_launched(
    aws: Aws, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks `ray up` with the prepared file on another machine, whose user has no token."""
    assert prepared(aws, file, monkeypatch) == 0
    (aws.home / ".ray" / "auth_token").unlink()
    completed = aws.ray("up", "--yes", "--no-config-cache", str(file))
    assert completed.returncode != 0 and ".ray/auth_token" in completed.stdout, completed.stdout
    assert aws.instances(alive=False) == []


def test_ray_up_launches_one_head_in_the_prepared_group_and_ray_down_leaves_nothing(
    aws: Aws, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepared(aws, file, monkeypatch) == 0, capsys.readouterr().err
    assert "Still to change" not in capsys.readouterr().out
    assert (aws.home / ".ray" / "auth_token").stat().st_mode & 0o077 == 0
    s3 = aws.client(service="s3")
    assert s3.get_bucket_location(Bucket=BUCKET)["LocationConstraint"] == REGION
    up = aws.ray("up", "--yes", "--no-config-cache", str(file))
    assert up.returncode == 0, up.stdout[-3000:]
    (head,) = aws.instances(alive=False)  # no GPU node: those a search asks for
    assert f"ubuntu@{head['PublicIpAddress']}" in aws.log.read_text()
    assert head["InstanceType"] == "m7i.2xlarge"
    tags = {tag["Key"]: tag["Value"] for tag in head["Tags"]}
    assert (tags["ray-cluster-name"], tags["ray-node-type"]) == ("layout-search", "head")
    (group,) = head["SecurityGroups"]
    assert group["GroupName"] == "layout-search"
    _only_ssh_from_one_network(aws, group["GroupId"])
    started = aws.log.read_text()
    assert "ray start --head" in started and "RAY_AUTH_MODE=token" in started
    assert f"deploy/mlflow/serve.sh /home/ray/mlflow s3://{BUCKET}/mlflow " in started
    assert "--volume /home/ubuntu/studies:/home/ray/studies" in started

    down = aws.ray("down", "--yes", str(file))
    assert down.returncode == 0, down.stdout[-3000:]
    assert aws.instances() == []
    assert {describe_volume["State"] for describe_volume in aws.client().describe_volumes()["Volumes"]} <= {"available"}


def _only_ssh_from_one_network(aws: Aws, group: str) -> None:
    ec2 = aws.client()
    (security_group,) = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"]
    open_to = [ip_range for rule in security_group["IpPermissions"] for ip_range in rule["IpRanges"]]
    assert [ip_range["CidrIp"] for ip_range in open_to] == ["203.0.113.7/32"]
    (ssh,) = [rule for rule in security_group["IpPermissions"] if rule["IpRanges"]]
    assert (ssh["FromPort"], ssh["ToPort"]) == (22, 22)
    for rules in (security_group["IpPermissions"], security_group["IpPermissionsEgress"]):  # EFA wants both
        assert [pair["GroupId"] for rule in rules for pair in rule["UserIdGroupPairs"]] == [group]


def test_preparing_again_replaces_the_address_and_makes_nothing_twice(
    aws: Aws, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(aws.home))
    (aws.home / ".ray").mkdir()
    (aws.home / ".ray" / "auth_token").write_text("a" * 64)
    for network in ("198.51.100.1/32", "203.0.113.7/32"):
        assert prepare.main([str(file), "--ssh-from", network, "--bucket", BUCKET], client=aws.client) == 0
    groups = aws.client().describe_security_groups()["SecurityGroups"]
    (security_group,) = [group for group in groups if group["GroupName"] == "layout-search"]
    _only_ssh_from_one_network(aws, security_group["GroupId"])
    assert f"SecurityGroupIds: &group [{security_group['GroupId']}]" in file.read_text()
    assert (aws.home / ".ray" / "auth_token").read_text() == "a" * 64


def test_the_autoscaler_s_request_for_a_gpu_node_is_what_the_file_says(
    aws: Aws, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls Ray's own node provider in the way in which the autoscaler on the head calls it."""
    assert prepared(aws, file, monkeypatch) == 0
    config = yaml.safe_load(file.read_text())
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, aws.environment[name])
    script = (
        "import sys, yaml, json\n"
        "from ray.autoscaler._private.util import prepare_config\n"
        "from ray.autoscaler._private.commands import _bootstrap_config\n"
        "from ray.autoscaler._private.aws.node_provider import AWSNodeProvider\n"
        "config = _bootstrap_config(yaml.safe_load(open(sys.argv[1])), no_config_cache=True)\n"
        "provider = AWSNodeProvider(config['provider'], config['cluster_name'])\n"
        "node = config['available_node_types']['p4d']\n"
        "asked = {'resources': node['resources']}\n"
        "events = provider.ec2_fail_fast.meta.client.meta.events\n"
        "events.register('before-parameter-build.ec2.RunInstances', lambda params, **_: asked.update(params))\n"
        "provider.create_node(node['node_config'], {'ray-node-kind': 'worker', 'ray-user-node-type': 'p4d'}, 2)\n"
        "print('\\n' + json.dumps(asked))\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", script, str(file)],
        cwd=ROOT,
        env=aws.environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout[-2000:] + completed.stderr[-2000:]
    request = json.loads(completed.stdout.splitlines()[-1])
    assert request["resources"]["GPU"] == 8 and request["resources"]["accelerator_type:A100"] == 1
    assert (request["InstanceType"], request["MaxCount"]) == ("p4d.24xlarge", 2)
    assert request["Placement"]["GroupName"] == "layout-search"
    cards = request["NetworkInterfaces"]
    assert [card["InterfaceType"] for card in cards] == ["efa", "efa-only", "efa-only", "efa-only"]
    group = config["available_node_types"]["head"]["node_config"]["SecurityGroupIds"]
    assert all(card["Groups"] == group and card["SubnetId"].startswith("subnet-") for card in cards)
    (tags,) = [
        specification["Tags"]
        for specification in request["TagSpecifications"]
        if specification["ResourceType"] == "instance"
    ]
    assert {"Key": "ray-cluster-name", "Value": "layout-search"} in tags
    assert {instance["InstanceType"] for instance in aws.instances()} == {"p4d.24xlarge"}
