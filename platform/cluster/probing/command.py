"""Measures through Ray Train, in under a minute, what this cluster's devices and links achieve.

It times matrix products by size and precision and copies on every device, and all-reduce, all-gather and
reduce-scatter inside and between nodes by size; it measures the memory of a bare context, and names what lags. The
result is stored under the cluster's fingerprint, for `platform.plan --cluster ray` and `platform.search`.

Exit codes: 0, 2 bad input, 3 the cluster is at fault.
"""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from platform.cluster import connection as clusters
from platform.cluster.probing import probe_store
from platform.cluster.probing.probe_run import measure
from platform.cluster.probing.probe_tables import show, to_object
from platform.common.command import exit_code_of
from platform.common.json_form import print_json
from platform.common.options import CommandParser, address_field, json_field
from platform.study.folder import studies_field, user_path


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProbeOptions:
    address: str | None = address_field()
    studies: Path = studies_field(read=str, then=user_path)
    json: bool = json_field()


PARSER = CommandParser(
    ProbeOptions,
    prog="python -m platform.probe",
    description=__doc__,
    epilog="Example: python -m platform.probe --json > probe.json",
)


def main(argv: Sequence[str] | None = None) -> int:
    return exit_code_of(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    began_s = time.monotonic()
    options = PARSER.read(argv)
    with clusters.connected(options.address) as handle:
        probe = measure(handle, began_s)
    path = probe_store.write(options.studies, probe)
    if options.json:
        print_json(to_object(probe, path), indent=1)
    else:
        show(probe, path, Console(highlight=False, markup=False, emoji=False))
    return 0
