"""Kernels in packages that the project does not require, by the value of an axis that has them."""

import dataclasses
import functools
import importlib.metadata

from trainers.spec.degree import Cut
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

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
    undivided: Cut
    """The part of the work that ranks did not share out in any trial of it."""
    beside_fp8: bool
    """Whether it may run beside linear layers in FP8, as in bf16 and fp16."""

    @property
    def requirement(self) -> str:
        """The package as pip is asked for it."""
        return f"{self.package}[cu13]{self.version}"

    @property
    def is_installed(self) -> bool:
        """Whether the package is installed in this environment, in such a version."""
        return is_installed(self.package, self.version)


@functools.cache  # each layout of a space asks, and an answer takes a file's reading
def is_installed(package: str, version: str) -> bool:
    """Returns whether `package` is installed in this environment, in one of the versions that `version` allows."""
    for distribution in importlib.metadata.distributions(name=package):
        from packaging.specifiers import SpecifierSet  # spaces are loaded where no package is

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
"""Axis and value -> its kernels."""
PACKAGES = ("torchao", *dict.fromkeys(kernel.package for kernel in OPTIONAL.values()))
"""Packages that some recipes and layouts need and that the project does not require."""


def kernels_of(layout: Layout) -> dict[str, OptionalKernel]:
    """Returns the optional kernels of `layout` by axis and value, such as "mlp quack"."""
    return {f"{axis} {value}": kernel for (axis, value), kernel in OPTIONAL.items() if getattr(layout, axis) == value}


def packages_of(recipe: Recipe, layout: Layout) -> tuple[str, ...]:
    """Returns the packages that training `recipe` on `layout` loads and that the project does not require."""
    packages = (kernel.package for kernel in kernels_of(layout).values())
    return (*(("torchao",) if recipe.float8_scaling else ()), *dict.fromkeys(packages))


def installed_values(axis: str) -> tuple[str, ...]:
    """Returns the values of `axis` whose kernels are in optional packages that are installed here."""
    return tuple(value for (name, value), kernel in OPTIONAL.items() if name == axis and kernel.is_installed)
