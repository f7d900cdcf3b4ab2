"""Searches where the link between hosts is slow, as on two nodes of Jean Zay. From the checkout, as root:

python -m benchmarks.slow_network
python -m benchmarks.slow_network --hosts 4 --mbit 100

Network namespaces stand for hosts, each with two workers on a core of its own and a link held to `--mbit` by tbf; Ray
runs across them and `platform.search` in the first. It searches on one host and on all, for each global batch: a larger
one is reached by accumulating gradients. All points of `slow_network_space.py` are measured; nothing here knows what
should win. `--set "point=ddp 8,pipeline 8"` picks some. The table
has what the cost model expects of the exchange alone.

Its figures: docs/lab/networks.csv#slow-link, docs/lab/networks.csv#slow-networks-quiet.
"""

import argparse
import dataclasses
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.hosts import HostsError, RayHosts, hosts
from benchmarks.slow_network_space import WORKERS
from platform.common.signals import interruptible
from platform.common.text import figure
from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.step_time import step_time
from platform.study.study import names, read
from trainers.records.measurement import Measurement, Outcome

ROOT = Path(__file__).resolve().parent.parent
_SPACE = """
import benchmarks.slow_network_space as small


def space():
    return small.space({hosts}, {batches})
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the search, prints the table in Markdown; the exit code is the search's, 2 where hosts cannot be made."""
    command_parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_network")
    command_parser.add_argument("--hosts", type=int, default=2, choices=(2, 3, 4), help="(default: %(default)s)")
    command_parser.add_argument(
        "--mbit", type=float, default=200.0, metavar="N", help="of each link (default: %(default)s)"
    )
    command_parser.add_argument(
        "--batches", default="8,128", metavar="N,N", help="global batches (default: %(default)s)"
    )
    command_parser.add_argument(
        "--set", action="append", default=[], metavar="AXIS=VALUE[,VALUE]", help="as in the search"
    )
    command_parser.add_argument(
        "--gpus", metavar="N,N", help="workers of each search (default: those of one host and all)"
    )
    command_parser.add_argument(
        "--studies", type=Path, metavar="DIR", help="keep the studies there; the table has all of them"
    )
    command_parser.add_argument("--picture", type=Path, metavar="FILE.png", help="draw the table there too")
    options = command_parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="slow") as scratch:
        folder = Path(scratch)
        studies = (options.studies or folder / "studies").absolute()
        space = folder / "slow_network.py"
        space.write_text(
            _SPACE.format(hosts=options.hosts, batches=[int(batch) for batch in options.batches.split(",")])
        )
        counts = options.gpus or f"{WORKERS},{WORKERS * options.hosts}"
        search = [sys.executable, "-m", "platform.search", str(space), "--gpus", counts, "--all"]
        search += ["--searcher", "sweep", "--name", f"slow-{len(names(studies)) + 1}", "--studies", str(studies)]
        for change in options.set:
            search += ["--set", change]
        log = folder / "search.log"
        cores = [str(core) for core in range(os.cpu_count() or 1)]
        try:
            with interruptible(), hosts(options.hosts, mbit_per_s=options.mbit, cores=cores) as made_hosts:
                cluster = RayHosts(made_hosts, folder)
                for number in range(options.hosts):
                    cluster.start(number, num_cpus=WORKERS)  # so that each host holds as many workers as another
                full_command = ["env", "-C", str(ROOT), *search, "--address", cluster.address]
                code = made_hosts[0].popen(full_command, cluster.environment, log).wait()
        except HostsError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(log.read_text(), file=sys.stderr)
        measured = measured_in(studies)
        print_table(measured, options.mbit)
        if options.picture is not None:
            draw(measured, options.mbit, options.picture)
    return code


def measured_in(studies: Path) -> list[Measurement]:
    """Returns the measurements of all studies in this folder, without skipped points."""
    measurements = (measurement for name in names(studies) for measurement in read(studies / name)[0].measurements)
    return [measurement for measurement in measurements if measurement.outcome is not Outcome.SKIPPED]


def by_batch(measured: Sequence[Measurement]) -> dict[int, list[Measurement]]:
    """Returns the measurements by global batch, the fastest first."""
    groups: dict[int, list[Measurement]] = {}
    for measurement in sorted(measured, key=lambda row: (row.recipe.global_batch, -(row.tokens_per_s or 0.0))):
        groups.setdefault(measurement.recipe.global_batch, []).append(measurement)
    return groups


def print_table(measured: Sequence[Measurement], mbit_per_s: float) -> None:
    """Prints a row for each measurement, the fastest of a global batch first and bold."""
    print(
        f"| batch | hosts, links of {mbit_per_s:g} Mbit/s | layout | compression | MBS x GAS | exchange predicted s",
        end="",
    )
    print(" | step s | tokens/s |\n|---|---|---|---|---|---|---|---|")
    for rows in by_batch(measured).values():
        for place, measurement in enumerate(rows):
            print(_row(measurement, mbit_per_s, is_winner=not place))


def exchange_s(measurement: Measurement, mbit_per_s: float) -> float:
    """Returns the seconds of a step's exchange between ranks by the cost model, with these links and no compute to hide
    it.

    The model knows no CPUs: a GPU's compute, next to nothing for so small a model, stands in its place.
    """
    num_hosts = max(1, measurement.num_devices // WORKERS)
    cluster = dataclasses.replace(
        find_cluster(f"{num_hosts}x{WORKERS}xH200"), inter_gb_per_s=mbit_per_s / 8e3, group_gb_per_s=math.inf
    )
    step = step_time(from_points([(measurement.recipe, measurement.layout, measurement.batch)], cluster))
    return float((step.data_s + step.tensor_s + step.pipeline_s)[0])


def _row(measurement: Measurement, mbit_per_s: float, *, is_winner: bool) -> str:
    tilde = "~" if measurement.step_time_derived else ""
    speed = f"{figure(measurement.tokens_per_s)}{tilde}" if measurement.tokens_per_s else measurement.outcome.value
    step = f"{measurement.step_time_s:.3f}{tilde}" if measurement.step_time_s else ""
    cells = (
        measurement.recipe.global_batch,
        measurement.num_devices // WORKERS,
        measurement.layout.label,
        measurement.recipe.compression,
        f"{measurement.batch.micro_batch} x {measurement.batch.grad_accum}",
        f"{exchange_s(measurement, mbit_per_s):.3f}",
        step,
        f"**{speed}**" if is_winner else speed,
    )
    return f"| {' | '.join(map(str, cells))} |"


def draw(measured: Sequence[Measurement], mbit_per_s: float, path: Path) -> None:
    """Draws a picture: a panel for each global batch, a bar for each measurement."""
    # Here, since the table does without it.
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = by_batch([row for row in measured if row.tokens_per_s])
    heights = [len(rows) for rows in panels.values()]
    figure_, axes = plt.subplots(
        len(panels), 1, figsize=(9, 1.2 + 0.32 * sum(heights)), squeeze=False, height_ratios=heights, sharex=True
    )
    for (batch, rows), axis in zip(panels.items(), axes[:, 0], strict=True):
        for place, measurement in enumerate(rows):
            color = "#0f766e" if measurement.layout.pp > 1 else "#6b7280"
            axis.barh(
                place,
                measurement.tokens_per_s or 0.0,
                color=color,
                alpha=1.0 if measurement.num_devices > WORKERS else 0.45,
            )
        hosts_of = ("1 host" if row.num_devices <= WORKERS else f"{row.num_devices // WORKERS} hosts" for row in rows)
        words = (", ".join(_words(row)) for row in rows)
        axis.set_yticks(
            range(len(rows)),
            [f"{host_names}: {layout_text}" for host_names, layout_text in zip(hosts_of, words, strict=True)],
        )
        axis.invert_yaxis()
        axis.set_title(f"global batch {batch}", loc="left", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("tokens/s (pipelines with a stage on each host in green; one host paler)")
    figure_.suptitle(f"GPT-2 of 1.8 M parameters, links of {mbit_per_s:g} Mbit/s between hosts", x=0.02, ha="left")
    figure_.tight_layout()
    figure_.savefig(path, dpi=110)


def _words(measurement: Measurement) -> list[str]:
    compression = measurement.recipe.compression
    point = f"{measurement.batch.micro_batch} x {measurement.batch.grad_accum}"
    return [measurement.layout.label, *([compression] if compression != "none" else []), point]


if __name__ == "__main__":
    sys.exit(main())
