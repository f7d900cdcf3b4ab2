"""Kernels in packages that the project does not require, by the value of an axis that has them."""

import dataclasses
import importlib.metadata

HOPPER = (9, 0)
"""Least compute capability of the kernels of optional packages. FlashAttention-4 has no score modification below it;
quack-kernels were not tried below it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OptionalKernel:
    """Kernels in a package that the project does not require."""

    package: str
    requirement: str
    """The package as pip is asked for it."""
    instead: str
    """Values of the same axis that need no such package."""

    @property
    def is_installed(self) -> bool:
        """Whether the package is installed in this environment."""
        return any(importlib.metadata.distributions(name=self.package))


OPTIONAL = {
    ("attention", "flash4"): OptionalKernel(
        package="flash-attn-4", requirement="flash-attn-4[cu13]>=4.0.0b36", instead="flex or sdpa"
    ),
    ("mlp", "quack"): OptionalKernel(
        package="quack-kernels", requirement="quack-kernels[cu13]>=0.6.5", instead="plain"
    ),
    ("loss", "quack"): OptionalKernel(
        package="quack-kernels", requirement="quack-kernels[cu13]>=0.6.5", instead="chunked"
    ),
}
"""Axis and value -> its kernels."""


def installed_values(axis: str) -> tuple[str, ...]:
    """Returns the values of `axis` whose kernels are in optional packages that are installed here."""
    return tuple(value for (name, value), kernel in OPTIONAL.items() if name == axis and kernel.is_installed)
