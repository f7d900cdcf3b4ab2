"""Searches over two hosts that are halves of one machine with several GPUs. From the checkout, as root:

python -m benchmarks.gpu_hosts --gbit 1,10,25 -- bloom7b --gpus 4 --time-budget 400
python -m benchmarks.gpu_hosts --gbit 10 --points small -- --all --set "point=ddp 64,pipeline 64"

Network namespaces stand for hosts, each with half of the GPUs and cores, and a link that tbf holds to each of `--gbit`
in turn. NCCL_HOSTID makes NCCL take them for two hosts, so that it talks TCP between them. Unlike real hosts they have
no RDMA and no wire between them, and they share the bandwidth of host memory. What stands behind `--` goes to
`platform.search`; `--points` names a function of `gpu_hosts_space.py`. `--probe` measures the links first, so that the
search knows them.

Its figures: docs/lab/networks.csv#links-first-trial-gpus.
"""

import argparse
import dataclasses
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.hosts import Host, HostsError, RayHosts, hosts
from benchmarks.slow_network import measured_in
from platform.common.signals import interruptible
from platform.common.text import figure
from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.step_time import step_time
from trainers.records.measurement import Measurement

ROOT = Path(__file__).resolve().parent.parent
_SPACE = "import benchmarks.gpu_hosts_space as spaces\n\n\ndef space():\n    return spaces.{}()\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a search at each rate and prints all rows in Markdown; the exit code is the worst search's, 2 where hosts
    cannot be namespaces.
    """
    command_parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_hosts")
    command_parser.add_argument("--gbit", default="10", metavar="N,N", help="rates of a link (default: %(default)s)")
    command_parser.add_argument("--points", choices=("small", "large"), help="the points of gpu_hosts_space.py")
    command_parser.add_argument("--probe", action="store_true", help="measure the links before the search")
    command_parser.add_argument("--studies", type=Path, required=True, metavar="DIR", help="keep the studies there")
    command_parser.add_argument("search", nargs=argparse.REMAINDER, help="options of platform.search")
    options = command_parser.parse_args(argv)
    studies = options.studies.absolute()
    arguments = [argument for argument in options.search if argument != "--"]
    num_gpus, cores = torch.cuda.device_count(), sorted(os.sched_getaffinity(0))
    worst = 0
    with tempfile.TemporaryDirectory(prefix="hosts") as scratch:
        folder = Path(scratch)
        if options.points:
            space = folder / "points.py"
            space.write_text(_SPACE.format(options.points))
            arguments = [str(space), *arguments]
        halves = [cores[: len(cores) // 2], cores[len(cores) // 2 :]]
        try:
            with interruptible(), hosts(2, cores=[",".join(map(str, half)) for half in halves]) as namespaces:
                cluster = RayHosts(namespaces, folder)
                for number, host in enumerate(namespaces):
                    environment = _environment(host, number, num_gpus)
                    cluster.start(number, num_cpus=max(2, len(halves[number])), environment=environment)
                first = {**cluster.environment, **_environment(namespaces[0], 0, num_gpus)}
                for rate in options.gbit.split(","):
                    for host in namespaces:
                        host.limit(float(rate) * 1e3)
                    at = ["--studies", str(studies / rate), "--address", cluster.address]
                    log = studies / f"{rate}.log"
                    log.parent.mkdir(parents=True, exist_ok=True)
                    if options.probe:
                        _python(namespaces[0], ["-m", "platform.probe", *at], first, log)
                    worst = max(worst, _python(namespaces[0], ["-m", "platform.search", *arguments, *at], first, log))
        except HostsError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            worst = 130  # what was measured until then is printed
    _print_table(studies, options.gbit.split(","), num_gpus)
    return worst


def _environment(host: Host, number: int, num_gpus: int) -> dict[str, str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(num_gpus)))
    half = visible.split(",")[number * (num_gpus // 2) :][: num_gpus // 2]
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(half),
        "NCCL_HOSTID": host.name,
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_IB_DISABLE": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }


def _python(host: Host, arguments: Sequence[str], environment: dict[str, str], log: Path) -> int:
    command = ["env", "-C", str(ROOT), sys.executable, *arguments]
    return host.popen(command, environment, log).wait()


def _print_table(studies: Path, rates: Sequence[str], num_gpus: int) -> None:
    """Prints a row for each measurement: at each rate the fastest of a recipe first."""
    device = torch.cuda.get_device_name(0) if num_gpus else "CPU"
    print(f"{device}; tokens/s over two hosts of {num_gpus // 2}; predicted by the link that was set")
    print("| Gbit/s | batch | layout | compression | MBS x GAS | devices | outcome | step s | predicted s | tokens/s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for rate in rates:
        rows = measured_in(studies / rate) if (studies / rate).is_dir() else []
        for row in sorted(rows, key=lambda row: (row.recipe.global_batch, row.recipe.id, -(row.tokens_per_s or 0.0))):
            predicted = f"{predicted_s(row, float(rate)):.3f}" if num_gpus else ""
            print(_row(row, rate, predicted))


def predicted_s(row: Measurement, gbit_per_s: float) -> float:
    """Returns the seconds of a step by the cost model, on hosts joined by links of that rate."""
    device = row.conditions.device if row.conditions else ""
    kind = "H200" if "H200" in device else "H100-80GB"
    hosts_taken = 2 if row.num_devices > torch.cuda.device_count() // 2 else 1
    cluster = find_cluster(f"{hosts_taken}x{row.num_devices // hosts_taken}x{kind}")
    cluster = dataclasses.replace(cluster, inter_gb_per_s=gbit_per_s / 8)
    return float(step_time(from_points([(row.recipe, row.layout, row.batch)], cluster)).total_s[0])


def _row(row: Measurement, rate: str, predicted: str) -> str:
    tilde = "~" if row.step_time_derived else ""
    cells = (
        rate,
        row.recipe.global_batch,
        row.layout.label,
        row.recipe.compression,
        f"{row.batch.micro_batch} x {row.batch.grad_accum}",
        row.num_devices,
        row.outcome.value,
        f"{row.step_time_s:.3f}{tilde}" if row.step_time_s else "",
        predicted,
        f"{figure(row.tokens_per_s)}{tilde}" if row.tokens_per_s else "",
    )
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    sys.exit(main())
