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
    version: str
    """Versions that were tried, such as ">=1.0"."""
    instead: str
    """Values of the same axis that need no such package."""

    @property
    def requirement(self) -> str:
        """The package as pip is asked for it."""
        return f"{self.package}[cu13]{self.version}"

    @property
    def is_installed(self) -> bool:
        """Whether the package is installed in this environment, in such a version."""
        for each in importlib.metadata.distributions(name=self.package):
            from packaging.specifiers import SpecifierSet  # spaces are loaded where no package is

            return SpecifierSet(self.version, prereleases=True).contains(each.version)
        return False


OPTIONAL = {
    ("attention", "flash4"): OptionalKernel(package="flash-attn-4", version=">=4.0.0b36", instead="flex or sdpa"),
    ("mlp", "quack"): OptionalKernel(package="quack-kernels", version=">=0.6.5", instead="plain"),
    ("loss", "quack"): OptionalKernel(package="quack-kernels", version=">=0.6.5", instead="chunked"),
}
"""Axis and value -> its kernels."""


def installed_values(axis: str) -> tuple[str, ...]:
    """Returns the values of `axis` whose kernels are in optional packages that are installed here."""
    return tuple(value for (name, value), kernel in OPTIONAL.items() if name == axis and kernel.is_installed)
