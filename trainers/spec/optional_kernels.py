"""Kernels in packages that the project does not require, by axis and value."""

import dataclasses
import functools
import importlib.metadata

from trainers.spec.degree import Cut
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

HOPPER = (9, 0)
"""Least compute capability of the kernels of optional packages. Below it FlashAttention-4 has no score modification,
and quack-kernels were not tried.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OptionalKernel:
    """A kernel in a package that the project does not require."""

    package: str
    version: str
    """Versions that were tried, such as ">=1.0"."""
    instead: str
    """Values of the same axis that do not need the package."""
    undivided: Cut
    """The part of the work that ranks did not divide in any run of the kernel."""
    beside_fp8: bool
    """Whether the kernel, which runs in bf16 and fp16, may run beside linear layers in FP8."""

    @property
    def requirement(self) -> str:
        return f"{self.package}[cu13]{self.version}"

    @property
    def is_installed(self) -> bool:
        return is_installed(self.package, self.version)


@functools.cache  # called for each layout of a space, and each check reads a file
def is_installed(package: str, version: str) -> bool:
    """Returns whether this environment has `package` in a version that the specifier `version` allows."""
    for distribution in importlib.metadata.distributions(name=package):
        from packaging.specifiers import SpecifierSet  # imported here because spaces are loaded without any package

        return SpecifierSet(version, prereleases=True).contains(distribution.version)
    return False


def _quack(instead: str) -> OptionalKernel:
    return OptionalKernel(
        package="quack-kernels", version=">=0.6.5", instead=instead, undivided="width", beside_fp8=False
    )


OPTIONAL = {
    ("attention", "flash4"): OptionalKernel(
        package="flash-attn-4", version=">=4.0.0b36", instead="flex or sdpa", undivided="tokens", beside_fp8=True
    ),
    ("mlp", "quack"): _quack("plain"),
    ("loss", "quack"): _quack("chunked"),
}
"""The kernel of each pair of axis and value."""
PACKAGES = ("torchao", *dict.fromkeys(kernel.package for kernel in OPTIONAL.values()))
"""Packages that some recipes and layouts need and that the project does not require."""


def kernels_of(layout: Layout) -> dict[str, OptionalKernel]:
    """Returns the optional kernels of `layout` by "axis value", such as "mlp quack"."""
    return {f"{axis} {value}": kernel for (axis, value), kernel in OPTIONAL.items() if getattr(layout, axis) == value}


def packages_of(recipe: Recipe, layout: Layout) -> tuple[str, ...]:
    """Returns the optional packages that training `recipe` on `layout` loads."""
    packages = (kernel.package for kernel in kernels_of(layout).values())
    return (*(("torchao",) if recipe.float8_scaling else ()), *dict.fromkeys(packages))


def installed_values(axis: str) -> tuple[str, ...]:
    """Returns the values of `axis` that need an optional package and have it installed here."""
    return tuple(value for (name, value), kernel in OPTIONAL.items() if name == axis and kernel.is_installed)
