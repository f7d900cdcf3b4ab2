"""What a search finds where the link between hosts is slow, as on two nodes of Jean Zay. From the checkout, as root:

python -m benchmarks.slow_network
python -m benchmarks.slow_network --hosts 4 --mbit 100

Network namespaces stand for hosts, each with two workers on a core of its own and a link held to `--mbit` by tbf; Ray
runs across them and `platform.search` in the first. It searches on one host and on all, for each global batch: a larger
one is reached by accumulating gradients. All points of `slow_network_space.py` are measured; nothing here knows what
should win. `--set "point=ddp 8,hybrid 8"` picks some.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.hosts import HostsError, RayHosts, hosts
from benchmarks.slow_network_space import WORKERS
from platform.common.signals import interruptible
from platform.common.text import figure
from platform.study.study import names, read
from trainers.values.measurement import Measurement, Outcome

ROOT = Path(__file__).resolve().parent.parent
_SPACE = """
import benchmarks.slow_network_space as small


def space():
    return small.space({hosts}, {batches})
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the search, prints the table in Markdown; the exit code is the search's, 2 where hosts cannot be made."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.slow_network")
    made.add_argument("--hosts", type=int, default=2, choices=(2, 3, 4), help="(default: %(default)s)")
    made.add_argument("--mbit", type=float, default=200.0, metavar="N", help="of each link (default: %(default)s)")
    made.add_argument("--batches", default="8,128", metavar="N,N", help="global batches (default: %(default)s)")
    made.add_argument("--set", action="append", default=[], metavar="AXIS=VALUE[,VALUE]", help="as in the search")
    made.add_argument("--studies", type=Path, metavar="DIR", help="keep the studies there")
    options = made.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="slow") as scratch:
        folder = Path(scratch)
        studies = (options.studies or folder / "studies").absolute()
        space = folder / "slow_network.py"
        space.write_text(_SPACE.format(hosts=options.hosts, batches=[int(each) for each in options.batches.split(",")]))
        counts = f"{WORKERS},{WORKERS * options.hosts}"
        search = [sys.executable, "-m", "platform.search", str(space), "--gpus", counts, "--all"]
        search += ["--searcher", "sweep", "--name", "slow", "--studies", str(studies)]
        for change in options.set:
            search += ["--set", change]
        log = folder / "search.log"
        try:
            with interruptible(), hosts(options.hosts, mbit_per_s=options.mbit, cores=os.cpu_count()) as made_hosts:
                cluster = RayHosts(made_hosts, folder)
                for number in range(options.hosts):
                    cluster.start(number, num_cpus=WORKERS + (not number))  # Tune's own share is the head's
                whole = ["env", "-C", str(ROOT), *search, "--address", cluster.address]
                code = made_hosts[0].popen(whole, cluster.environment, log).wait()
        except HostsError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(log.read_text(), file=sys.stderr)
        print_table(studies, options.mbit)
    return code


def print_table(studies: Path, mbit_per_s: float) -> None:
    """A row for each measurement, the fastest of a global batch first and bold."""
    measured = [
        each
        for name in names(studies)
        for each in read(studies / name)[0].measurements
        if each.outcome is not Outcome.SKIPPED
    ]
    print(f"| batch | hosts, links of {mbit_per_s:g} Mbit/s | layout | compression | MBS x GAS | step s | tokens/s |")
    print("|---|---|---|---|---|---|---|")
    for batch in sorted({each.recipe.global_batch for each in measured}):
        rows = [each for each in measured if each.recipe.global_batch == batch]
        rows.sort(key=lambda each: -(each.tokens_per_s or 0.0))
        for place, each in enumerate(rows):
            print(_row(each, won=not place))


def _row(each: Measurement, *, won: bool) -> str:
    tilde = "~" if each.step_time_derived else ""
    speed = f"{figure(each.tokens_per_s)}{tilde}" if each.tokens_per_s else each.outcome.value
    step = f"{each.step_time_s:.3f}{tilde}" if each.step_time_s else ""
    cells = (
        each.recipe.global_batch,
        each.num_devices // WORKERS,
        each.layout.label,
        each.recipe.compression,
        f"{each.batch.micro_batch} x {each.batch.grad_accum}",
        step,
        f"**{speed}**" if won else speed,
    )
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    sys.exit(main())
