"""What a search finds where the link between hosts is slow, as on two nodes of Jean Zay. From the checkout, as root:

python -m benchmarks.slow_network
python -m benchmarks.slow_network --hosts 4 --mbit 100 --set engine=ddp,fsdp --set zero_stage=0,3

Network namespaces stand for hosts, each with one worker on one core and a link held to `--mbit` by tbf; Ray runs across
them and `platform.search` in the first. It searches on one host and on all, for each global batch: a larger one is
reached by accumulating gradients. `--set` goes to the search, so whatever it knows can stand beside: another engine,
compression, a sharding inside nodes. All is measured; nothing here knows what should win.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.hosts import HostsError, RayHosts, hosts
from platform.finals.ranking import winners
from platform.reports.text import figure
from platform.study.study import names, read
from trainers.measurement import Measurement, Outcome

ROOT = Path(__file__).resolve().parent.parent
_SPACE = """
import dataclasses
import benchmarks.slow_network_space as small


def space():
    return dataclasses.replace(small.space(), num_workers={hosts})
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
        space.write_text(_SPACE.format(hosts=options.hosts))
        search = [sys.executable, "-m", "platform.search", str(space), "--gpus", f"1,{options.hosts}"]
        search += ["--searcher", "sweep", "--name", "slow", "--studies", str(studies)]
        for change in (f"global_batch={options.batches}", *options.set):
            search += ["--set", change]
        try:
            with hosts(options.hosts, mbit_per_s=options.mbit) as made_hosts:
                cluster = RayHosts(made_hosts, folder)
                for number in range(options.hosts):
                    cluster.start(number)
                log = folder / "search.log"
                whole = ["env", "-C", str(ROOT), *search, "--address", cluster.address]
                code = made_hosts[0].popen(whole, cluster.environment, log).wait()
        except HostsError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(log.read_text(), file=sys.stderr)
        print_table(studies, options.mbit)
    return code


def print_table(studies: Path, mbit_per_s: float) -> None:
    """A row for each measurement, fastest first within a global batch; the winner of each study and batch is bold."""
    print(f"| hosts, links of {mbit_per_s:g} Mbit/s | recipe | layout | MBS x GAS | step s | tokens/s |")
    print("|---|---|---|---|---|---|")
    for name in names(studies):
        history, _ = read(studies / name)
        best = {each.id for each in winners(history.measurements).values()}
        measured = [each for each in history.measurements if each.outcome is not Outcome.SKIPPED]
        for each in sorted(measured, key=lambda each: (each.recipe.global_batch, -(each.tokens_per_s or 0.0))):
            print(_row(each, each.id in best))


def _row(measurement: Measurement, won: bool) -> str:
    recipe, batch = measurement.recipe, measurement.batch
    batches = f"global batch {recipe.global_batch}" + (
        f", {recipe.compression} compression" if recipe.compression != "none" else ""
    )
    tilde = "~" if measurement.step_time_derived else ""
    speed = f"{figure(measurement.tokens_per_s)}{tilde}" if measurement.tokens_per_s else measurement.outcome.value
    step = f"{measurement.step_time_s:.3f}{tilde}" if measurement.step_time_s else ""
    speed = f"**{speed}**" if won else speed
    point = f"{batch.micro_batch} x {batch.grad_accum}"
    return f"| {measurement.num_devices} | {batches} | {measurement.layout.label} | {point} | {step} | {speed} |"


if __name__ == "__main__":
    sys.exit(main())
