"""An S3 bucket on this machine (moto's server), and the environment variables by which libraries find it."""

import contextlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from platform.common.places import _file_system  # pyright: ignore[reportPrivateUsage]


@contextlib.contextmanager
def s3_bucket(name: str, files: Mapping[str, Path | bytes]) -> Generator[None]:
    """Runs a server with a bucket that holds these files by key; sets this process's environment to it."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    import boto3

    with pytest.MonkeyPatch.context() as patch:
        server.start()
        for variable, value in {
            "AWS_ENDPOINT_URL": "http://{}:{}".format(*server.get_host_and_port()),
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            patch.setenv(variable, value)
        client: Any = boto3.client("s3")
        client.create_bucket(Bucket=name)
        for key, content in files.items():
            client.put_object(
                Bucket=name, Key=key, Body=content if isinstance(content, bytes) else content.read_bytes()
            )
        try:
            yield
        finally:
            _file_system.cache_clear()
            server.stop()
