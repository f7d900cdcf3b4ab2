"""Prepares AWS for `ray up`: `python -m deploy.aws.prepare cluster.yaml --ssh-from 203.0.113.7/32`.

Creates the missing parts: the cluster's token; a security group that admits its own nodes, and one network to port 22;
and the bucket for MLflow's artifacts. Writes the group's id and the given ids into the cluster file. Launches nothing
and costs nothing.
"""

import contextlib
import dataclasses
import ipaddress
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from platform.common.errors import InputError, one_line
from platform.common.options import CommandParser, argument, option
from platform.common.signals import exit_with

GROUP = "layout-search"
"""Name of the security group."""
TOKEN = Path("~/.ray/auth_token")
_WIDEST = 16
"""Prefix length in bits of the widest network that may reach port 22."""
_EXAMPLES = {
    "--subnet": "subnet-00000000000000001",
    "--private-subnet": "subnet-00000000000000002",
    "--bucket": "bucket-00000000000000001",
}
"""Placeholder in the cluster file that an option replaces."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AwsOptions:
    file: Path = argument(about="the cluster file")
    ssh_from: str = option(
        metavar="CIDR",
        about="the network that may reach port 22 of the nodes, such as your own address with /32",
    )
    subnet: str | None = option(None, metavar="ID", about="a subnet whose nodes get a public address, for the head")
    private_subnet: str | None = option(
        None,
        metavar="ID",
        about="a subnet of the same VPC with a NAT gateway, for nodes with several network cards",
    )
    bucket: str | None = option(None, metavar="NAME", about="an S3 bucket of yours for MLflow's artifacts")


PARSER = CommandParser(
    AwsOptions,
    prog="python -m deploy.aws.prepare",
    description="Makes the token, security group and bucket that `ray up` needs on AWS, and writes the ids of network"
    " and bucket into the cluster file.",
)


def main(argv: Sequence[str] | None = None, client: Callable[[str, str], Any] | None = None) -> int:
    """Runs the command; returns its exit code. `client(region, service)` returns an AWS client."""
    try:
        options = PARSER.read(argv)
        text, config = _file(options.file)
        network = ssh_network(options.ssh_from)
        make_token()
        client, region = client or _client, config["provider"]["region"]
        ec2 = client(region, "ec2")
        subnets = [subnet for subnet in (options.subnet, options.private_subnet) if subnet]
        try:
            group = security_group(ec2, vpc_of(ec2, subnets), network)
            if options.bucket:
                make_bucket(client(region, "s3"), options.bucket, region)
        except Exception as error:  # boto3 creates its error classes at run time
            if not type(error).__module__.startswith("botocore"):
                raise
            raise InputError(f"AWS refused in {region}: {one_line(error)}") from error
        id_by_option = {
            "--subnet": options.subnet,
            "--private-subnet": options.private_subnet,
            "--bucket": options.bucket,
        }
        changed = with_ids(text, group, id_by_option)
        options.file.write_text(changed, encoding="utf-8")
    except InputError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return InputError.exit_code
    print(f"{options.file}: security group {group} (port 22 from {network}). Next: ray up {options.file}")
    if unchanged := [f"{example} ({name})" for name, example in _EXAMPLES.items() if example in changed]:
        print(f"Still to change in it: {', '.join(unchanged)}.")
    return 0


def _file(path: Path) -> tuple[str, Mapping[str, Any]]:
    """Returns the text of a cluster file and its parsed content.

    Raises:
        InputError: the file cannot be read, or is not for AWS.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        config: Any = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"the cluster file {path} cannot be read: {one_line(error)}") from error
    provider: Any = config.get("provider") if isinstance(config, dict) else None
    if not isinstance(provider, dict) or provider.get("type") != "aws" or not provider.get("region"):
        raise InputError(f"the cluster file {path} must have a provider of type aws with a region")
    return text, config


def ssh_network(text: str) -> str:
    """Returns the network that may reach port 22.

    Raises:
        InputError: the text is no network, or the network is too wide.
    """
    try:
        network = ipaddress.IPv4Network(text, strict=False)
    except ValueError as error:
        raise InputError(f"--ssh-from must be an IPv4 network such as 203.0.113.7/32, got {text!r}") from error
    if network.prefixlen < _WIDEST:
        raise InputError(
            f"--ssh-from {network} opens port 22 to {network.num_addresses:,} addresses: name your own, /32"
        )
    return str(network)


def make_token() -> None:
    """Creates the token that every node requires, if it does not exist.

    Raises:
        InputError: the token cannot be created.
    """
    path = TOKEN.expanduser()
    if path.is_file() and path.read_text().strip():
        path.chmod(0o600)
        return
    ray = Path(sys.executable).with_name("ray")
    completed = subprocess.run([str(ray), "get-auth-token", "--generate"], capture_output=True, text=True, check=False)
    if completed.returncode or not path.is_file():
        raise InputError(f"`ray get-auth-token --generate` made no {path}: {one_line(completed.stderr)[-300:]}")
    path.chmod(0o600)  # Ray leaves it readable for all users of the machine


def vpc_of(ec2: Any, subnets: Sequence[str]) -> str:
    """Returns the VPC of the subnets, or the account's default VPC if none are given.

    Raises:
        InputError: there is no VPC, or the subnets belong to several.
    """
    if subnets:
        vpcs = {
            describe_subnet["VpcId"] for describe_subnet in ec2.describe_subnets(SubnetIds=list(subnets))["Subnets"]
        }
        if len(vpcs) != 1:
            raise InputError(
                f"the subnets {' and '.join(subnets)} must be of one VPC, got {' and '.join(sorted(vpcs))}"
            )
        return vpcs.pop()
    default = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    if not default:
        raise InputError("the account has no default VPC in this region: give --subnet")
    return default[0]["VpcId"]


def security_group(ec2: Any, vpc: str, network: str) -> str:
    """Returns the id of the security group in the VPC; creates the group if missing, and sets its rules as its only
    ingress.
    """
    by_name = [{"Name": "group-name", "Values": [GROUP]}, {"Name": "vpc-id", "Values": [vpc]}]
    groups = ec2.describe_security_groups(Filters=by_name)["SecurityGroups"]
    if not groups:
        created = ec2.create_security_group(
            GroupName=GROUP, VpcId=vpc, Description="Nodes of layout searches: each other, and ssh from one network"
        )
        groups = ec2.describe_security_groups(GroupIds=[created["GroupId"]])["SecurityGroups"]
    (group,) = groups
    group_id = group["GroupId"]
    itself = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}
    ssh = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": network}]}
    if group["IpPermissions"]:  # removes the rules for earlier addresses
        ec2.revoke_security_group_ingress(GroupId=group_id, IpPermissions=group["IpPermissions"])
    ec2.authorize_security_group_ingress(GroupId=group_id, IpPermissions=[itself, ssh])
    # EFA requires an egress rule to the group itself, besides the default egress rule.
    outwards = [
        pair["GroupId"]
        for permission in group["IpPermissionsEgress"]
        for pair in permission.get("UserIdGroupPairs", ())
    ]
    if group_id not in outwards:
        ec2.authorize_security_group_egress(GroupId=group_id, IpPermissions=[itself])
    return group_id


def make_bucket(s3: Any, name: str, region: str) -> None:
    """Creates the bucket in the region, unless the account owns it."""
    elsewhere = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    with contextlib.suppress(s3.exceptions.BucketAlreadyOwnedByYou):
        s3.create_bucket(Bucket=name, **elsewhere)


def with_ids(text: str, group: str, id_by_option: Mapping[str, str | None]) -> str:
    """Returns the cluster file with the group's id at each place for one, and the options' ids in place of their
    examples.

    Raises:
        InputError: the file names no security group.
    """
    changed, count = re.subn(r"(SecurityGroupIds: (?:&\w+ )?\[)sg-\w+(\])", rf"\g<1>{group}\g<2>", text)
    if not count:
        raise InputError("the cluster file must have `SecurityGroupIds: [sg-...]`: without it Ray opens port 22 to all")
    for name, example in _EXAMPLES.items():
        changed = changed.replace(example, id_by_option[name] or example)
    return changed


def _client(region: str, service: str) -> Any:
    try:
        import boto3
    except ImportError as error:
        raise InputError("boto3 is missing: pip install --constraint constraints.txt boto3") from error
    return boto3.client(service, region_name=region)


if __name__ == "__main__":
    exit_with(main)
