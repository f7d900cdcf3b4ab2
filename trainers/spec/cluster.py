"""`Cluster`: the devices a study runs on, as plain facts (no torch, no Ray)."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Equal nodes with equal devices.

    Raises:
        ValueError: a count below 1.
    """

    device_kind: Literal["cuda", "cpu"]
    device: str
    """Device name as the driver reports it, such as "NVIDIA H200"; for CPUs the processor's name."""
    device_memory_gib: float
    """Memory of one device; for a CPU worker its share of the node's memory."""
    capability: tuple[int, int] | None = None
    """CUDA compute capability, None for CPUs."""
    num_nodes: int = 1
    devices_per_node: int = 1
    host_share_gib: float | None = None
    """Host memory of a node divided by all of its devices; None if unknown, as for CPU workers."""

    def __post_init__(self) -> None:
        for field in ("num_nodes", "devices_per_node"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, got {getattr(self, field)}")

    @property
    def num_devices(self) -> int:
        return self.num_nodes * self.devices_per_node

    @property
    def device_word(self) -> str:
        """Noun for a device in messages: "GPU", or "worker" for CPU workers."""
        return "GPU" if self.device_kind == "cuda" else "worker"

    @property
    def label(self) -> str:
        """A line for people, such as "4 x NVIDIA H200 (139.8 GiB)"."""
        return self.label_under(None)

    def label_under(self, cap_gib: float | None) -> str:
        """Returns the label, with `cap_gib` as the memory limit of a device unless it is None."""
        nodes = f"{self.num_nodes} nodes x " if self.num_nodes > 1 else ""
        limit = "" if cap_gib is None else f", held to {cap_gib:g}"
        return f"{nodes}{self.devices_per_node} x {self.device} ({self.device_memory_gib:.1f} GiB{limit})"
