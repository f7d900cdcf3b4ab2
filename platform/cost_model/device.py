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
    """Its generation, by which some constants are stated (`constants.json`, `stacks.json`)."""
    memory_gib: float
    """Total memory that the driver reports."""
    bandwidth_gb_per_s: float
    host_gb_per_s: float
    """Datasheet bandwidth of the link to the host, in one direction."""
    tflops: Mapping[str, float]
    """Datasheet peak by compute precision, dense."""
    matmul_share: float
    """Share of the peak that large matrix products sustain in training."""
    flash_share: float
    """Share of the peak that fused attention sustains, forward and backward together."""
    link: str
    """The catalogue's link between the devices of a node."""
    units: int
    """Streaming multiprocessors, among which a product's tiles are distributed."""
    context_gib: float
    """Memory of a bare device context."""
    source: str
    sigma: float = 0.0
    """Log deviation of the device's rates where no training run on it was available."""
    link_gb_per_s: float | None = None
    """Datasheet bandwidth of that link, in one direction, in place of the catalogue's."""
    best_tflops: float | None = None
    """Rate of the best bf16 product in a benchmark; None where none is published (stas00/ml-engineering,
    compute/accelerator, "maximum achievable matmul FLOPS").
    """
    scales: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    """Rate of products that `platform.probe` measured over `expected_tflops`, by precision; empty without a probe."""

    def peak_tflops(self, precision: str) -> float:
        """Returns the datasheet peak of `precision`; a device without fp8 units computes it as bf16."""
        return self.tflops.get(precision, self.tflops["bf16"])

    def expected_tflops(self, precision: str, training_share: float) -> float:
        """Returns the rate that a benchmark of large products should reach: the published one, else from `matmul_share`
        over `training_share`.
        """
        peak = self.peak_tflops(precision)
        if precision == "fp32":
            return PLAIN_SHARE * peak
        best = self.best_tflops or self.matmul_share / training_share * self.tflops["bf16"]
        return best * peak / self.tflops["bf16"]

    def scale(self, precision: str) -> float:
        """Returns the measured rate of large products over the catalogue's; 1 without a probe."""
        return self.scales.get(precision, self.scales.get("bf16", 1.0))
