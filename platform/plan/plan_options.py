"""The options of `python -m platform.plan` as one frozen value, with limits and exclusions."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from platform.common.errors import InputError
from platform.common.options import argument, config_field, json_field, markdown_field, option
from platform.common.quantities import amount, duration
from platform.cost_model.hardware import THIS_PROJECT
from platform.plan.balances import parse_balances
from platform.plan.goodput import CHECKPOINT_S, RESTART_S, Interruptions
from platform.plan.networks import LARGEST_GBPS, SWEPT, parse_sweep, split_network
from platform.plan.picture import check_path
from platform.study.folder import default_folder
from platform.validate.row_software import CURRENT
from search_spaces.space import Space
from trainers.spec.codec import shortened

_LARGEST = {
    "top": 1e6,
    "micro_batch": 1e6,
    "tokens": 1e18,
    "device_memory_gib": 1e6,
    "price_per_gpu_h": 1e6,
    "node_gbps": LARGEST_GBPS,
}
"""Largest value of an option. A value must also be a number above 0."""
_QUESTIONS = ("max_model", "min_nodes", "batch_rampup", "sweep", "balance")
_OF_ONE = ("gpus", "png", "micro_batch", "save_layout", "learn_from")
"""More options that need one model on one cluster."""
_BY_SIZE = ("gpus", "min_nodes", "batch_rampup")
"""Options whose answers cover other numbers of devices."""
_BY_AXES = (*_BY_SIZE, "sweep", "balance")
"""Options whose answers need a layout for any number of devices, or any network."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlanOptions:
    """All options of one command, named like the command-line options."""

    space: tuple[str, ...] = argument(
        nargs="+",
        metavar="SPACE",
        about="a space's name, its file, a config.json, or OWNER/NAME of the hub; several are compared",
    )
    config: Path | None = config_field()
    cluster: tuple[str, ...] = option(
        (),
        repeated=True,
        metavar="C",
        about="8xA100-80GB, 4x8xH100, 4x8xH100@400 (Gbit/s of a node, as --node-gbps), a name of the catalogue,"
        " 4xp5.48xlarge, 8xPATH.json (a device's file), a probe's file, or ray: the running Ray cluster, as"
        " platform.probe measured it (default with --address or RAY_ADDRESS); repeat --cluster to compare several",
    )
    address: str | None = option(None, metavar="HOST:PORT", about="address of the Ray cluster for --cluster ray")
    studies: Path = option(
        text=default_folder,
        metavar="DIR",
        about="where probes and studies are kept (default: %(default)s)",
    )
    set: tuple[str, ...] = option(
        (), repeated=True, metavar="AXIS=VALUE", about="values of an axis (docs/reference/axes.md)"
    )
    tokens: float | None = option(
        None, read=amount, metavar="N", about="tokens of the training, as in 100B (default: the space's)"
    )
    price_per_gpu_h: float | None = option(
        None, metavar="P", about="price of a device hour, in place of the catalogue's"
    )
    price: tuple[str, ...] = option(
        (),
        repeated=True,
        metavar="CLUSTER=P/h",
        about="dollars an hour for a cluster, a node or a device, as in 8xB200=60/h or H100=2.5/h; applies to all"
        " clusters of such devices",
    )
    deadline: float | None = option(
        None,
        read=duration,
        metavar="TIME",
        about="longest training time, as in 10d: show which clusters keep to it, and the smallest one",
    )
    max_cost: float | None = option(
        None,
        read=amount,
        metavar="USD",
        about="highest cost of the training: show which clusters keep to it, and the cheapest one",
    )
    node_mtbf: float | None = option(
        None,
        read=duration,
        metavar="TIME",
        about="mean time between failures of a node (default: 264d as published, 154d to 427d for the interval)",
    )
    restart: float = option(
        RESTART_S, read=duration, metavar="TIME", about="time from a failure to the next step (default: 10m)"
    )
    checkpoint_s: float = option(
        CHECKPOINT_S, read=duration, metavar="S", about="seconds (or 10m) between checkpoints (default: %(default)g)"
    )
    software: str = option(
        THIS_PROJECT,
        metavar="NAME",
        about=f"training software to predict: {', '.join(CURRENT)} (default: %(default)s)",
    )
    node_gbps: float | None = option(
        None, metavar="GBIT/S", about="network rate of a node, in place of the catalogue's"
    )
    learn_from: str | None = option(
        None, metavar="STUDY", about="correct predictions by the measurements of a study (name or path)"
    )
    top: int = option(10, metavar="N", about="layouts to show (default: 10)")
    device_memory_gib: float | None = option(None, metavar="GIB", about="limit the memory of each device")
    gpus: str | None = option(
        None, metavar="COUNTS", about="numbers of devices, 2..3072 or 4,8,16: show days against devices"
    )
    png: Path | None = option(None, metavar="FILE", about="draw the days of --gpus to FILE: .png, .pdf or .svg")
    save_layout: Path | None = option(None, metavar="FILE", about="write the first layout to FILE, as a layout.json")
    max_model: bool = option(False, about="show the largest version of the model that fits one node, or each of --gpus")
    micro_batch: int | None = option(None, metavar="B", about="micro-batch for --max-model")
    min_nodes: bool = option(False, about="show the fewest nodes with enough memory, and time against nodes")
    batch_rampup: str | None = option(
        None,
        metavar="PHASES",
        about="phases by batch, 32,64,128, or batch and nodes, 32:8,64:16: show nodes and micro-batch of each",
    )
    sweep: str | None = option(
        None,
        metavar="node-gbps=VALUES",
        about="show the best layout for each network rate, in Gbit/s of a node, as in node-gbps=10,100,400",
    )
    balance: str | None = option(
        None,
        metavar="VALUES",
        about="show the best layout for uneven experts: rows of the fullest rank over the mean, as in 1,1.3,2",
    )
    csv: Path | None = option(None, metavar="FILE", about="write the answer's rows to FILE too, with every digit")
    json: bool = json_field()
    markdown: bool = markdown_field()

    @property
    def interruptions(self) -> Interruptions:
        """Causes of lost time in the training."""
        return Interruptions(node_mtbf_s=self.node_mtbf, restart_s=self.restart, checkpoint_s=self.checkpoint_s)

    @property
    def compares(self) -> bool:
        """Whether the answer is a table with one row for each model and cluster."""
        return len(self.space) > 1 or len(self.cluster) > 1 or self.deadline is not None or self.max_cost is not None

    def alone(self, space: str, cluster: str) -> "PlanOptions":
        """Returns the options of a plan for one space on one cluster."""
        return dataclasses.replace(self, space=(space,), cluster=(cluster,)).with_written_network()

    @property
    def fixes_recipe(self) -> bool:
        """Whether the answer is for a single recipe."""
        return bool(self.gpus or any(getattr(self, name) for name in _QUESTIONS))

    @property
    def asks_of_several_nodes(self) -> bool:
        """Whether the answer also covers other numbers of devices, and therefore perhaps several nodes."""
        return any(getattr(self, name) for name in _BY_SIZE)

    def with_written_network(self) -> "PlanOptions":
        """Returns the options with the network of `--cluster 2x8xH100@400` moved to `--node-gbps`.

        Raises:
            InputError: the network is invalid, or `--node-gbps` states another one.
        """
        if len(self.cluster) != 1:
            return self
        cluster, network = split_network(self.cluster[0])
        if network is None:
            return self
        if self.node_gbps not in (None, network):
            raise InputError(
                f"--cluster {self.cluster[0]} and --node-gbps {self.node_gbps:g} are two networks: leave one of them"
                " out"
            )
        return dataclasses.replace(self, cluster=(cluster,), node_gbps=network)

    def check_comparison(self, spaces: Sequence[Space]) -> None:
        """Checks that a comparison has no options for a plan of one model on one cluster.

        Raises:
            InputError: it has one, or a space consists of named points.
        """
        self._check_bounds()
        if excluded := [_option(name) for name in (*_QUESTIONS, *_OF_ONE) if getattr(self, name)]:
            is_several = len(self.space) > 1 or len(self.cluster) > 1
            several = "several models or clusters" if is_several else "a deadline or a cost"
            raise InputError(f"{excluded[0]} is of one model on one cluster, got {several}: leave one of the two out")
        if self.node_gbps is not None and any("@" in cluster for cluster in self.cluster):
            raise InputError("--node-gbps and a network behind a cluster's @ are two networks: leave one of them out")
        for space in spaces:
            if space.points:
                raise InputError(f"space {space.name} has named points, which are planned on one cluster: leave it out")

    def check(self, space: Space) -> None:
        """Checks that all options are within limits, compatible with each other, and effective for the space.

        Raises:
            InputError: an option is not.
        """
        self._check_bounds()
        if self.sweep is not None:
            self._check_sweep(self.sweep)
        if self.balance is not None:
            parse_balances(self.balance)
        question_options = [_option(name) for name in _QUESTIONS if getattr(self, name)]
        if self.learn_from and (question_options or space.points):
            question = question_options[0] if question_options else f"the named points of {space.name}"
            raise InputError(
                f"--learn-from corrects plans of layouts by axes, got {question}: leave one of the two out"
            )
        if len(question_options) > 1:
            raise InputError(f"{' and '.join(question_options)} are different questions: ask one at a time")
        if self.gpus and question_options and not self.max_model:
            is_of_cluster = self.sweep or self.balance
            reason = "which is for one number of devices" if is_of_cluster else "which tries its own counts"
            raise InputError(f"--gpus has no effect on {question_options[0]}, {reason}: leave it out")
        if self.micro_batch and not self.max_model:
            raise InputError("--micro-batch belongs to --max-model; --set micro_batch=N fixes it elsewhere")
        if self.png is not None:
            if not self.gpus or question_options:
                raise InputError("--png draws days against devices: give it with --gpus alone, such as --gpus 8,16,32")
            check_path(self.png)
        if self.save_layout is not None:
            self._check_saving(space, question_options)
        by_axes = next((_option(name) for name in _BY_AXES if getattr(self, name)), None)
        if space.points and by_axes and not self.max_model:
            raise InputError(
                f"{by_axes} goes through layouts by axes, and space {space.name} has named points: leave it out"
            )

    def _check_bounds(self) -> None:
        if self.json and self.markdown:
            raise InputError("--json and --markdown are two forms of one answer: leave one out")
        for name, largest in _LARGEST.items():
            value = getattr(self, name)
            if value is not None and not 0 < value <= largest:
                raise InputError(f"{_option(name)} must be above 0 and at most {largest:g}, got {shortened(value)}")

    def _check_sweep(self, written: str) -> None:
        """Checks that the sweep is valid and that no other network is given."""
        parse_sweep(written)
        if self.node_gbps is not None:
            raise InputError(
                f"--sweep {SWEPT} tries its own networks, got {self.node_gbps:g} Gbit/s a node too: leave one of them"
                " out"
            )

    def _check_saving(self, space: Space, question_options: list[str]) -> None:
        """Checks that the answer has a single first layout that this project's commands can run."""
        questions = [*question_options, *(["--gpus"] if self.gpus else [])]
        if questions or space.points:
            question = questions[0] if questions else f"the named points of {space.name}"
            raise InputError(f"--save-layout saves the first row of a plan of layouts by axes, got {question}")
        if len(space.recipes) > 1:
            raise InputError(f"--save-layout saves a layout of one recipe, got {len(space.recipes)}: fix one by --set")
        if self.software != THIS_PROJECT:
            raise InputError(f"--save-layout saves what this project runs, got --software {self.software}")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
