"""`Device`: the figures of one accelerator."""

import dataclasses
from collections.abc import Mapping

from platform.cost_model import constants

PLAIN_SHARE = constants.number("hardware", "PLAIN_SHARE")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One accelerator, as torch counts them."""

    name: str
    architecture: str
    """The generation, by which some constants are stated (`constants.json`, `stacks.json`)."""
    memory_gib: float
    """Total memory that the driver reports."""
    bandwidth_gb_per_s: float
    host_gb_per_s: float
    """Datasheet bandwidth of the link to the host, one direction."""
    tflops: Mapping[str, float]
    """Datasheet peak by compute precision, dense."""
    matmul_share: float
    """Share of the peak that large matrix products sustain in training."""
    flash_share: float
    """Share of the peak that fused attention sustains, forward and backward together."""
    link: str
    """The catalogue's name of the link between the devices of a node."""
    units: int
    """Streaming multiprocessors, among which a product's tiles are distributed."""
    context_gib: float
    """Memory of a bare device context."""
    source: str
    sigma: float = 0.0
    """Log deviation of the device's rates if no training run on it was available."""
    link_gb_per_s: float | None = None
    """Datasheet bandwidth of the link between devices, one direction; None for the catalogue's value."""
    power_share: float | None = None
    """Mean rate of the matrix units over a block, as a share of `matmul_share` x peak, above which the power cap lowers
    clocks; None where no trace shows it.
    """
    best_tflops: float | None = None
    """Rate of the best bf16 product in a published benchmark (stas00/ml-engineering, compute/accelerator, "maximum
    achievable matmul FLOPS"); None without one.
    """
    scales: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    """Rate of products measured by `platform.probe` divided by `expected_tflops`, by precision; may be empty."""

    def peak_tflops(self, precision: str) -> float:
        """Returns the datasheet peak of `precision`; without fp8 units the peak of bf16."""
        return self.tflops.get(precision, self.tflops["bf16"])

    def expected_tflops(self, precision: str, training_share: float) -> float:
        """Returns the expected rate of large products in a benchmark: the published one, else `matmul_share` divided by
        `training_share`, times the peak.
        """
        peak = self.peak_tflops(precision)
        if precision == "fp32":
            return PLAIN_SHARE * peak
        best = self.best_tflops or self.matmul_share / training_share * self.tflops["bf16"]
        return best * peak / self.tflops["bf16"]

    def scale(self, precision: str) -> float:
        """Returns the measured rate of large products divided by the catalogue's; 1 without a probe."""
        return self.scales.get(precision, self.scales.get("bf16", 1.0))
