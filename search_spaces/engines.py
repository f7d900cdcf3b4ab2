"""The engines that a space tries, in order, derived from their rules; new engines are included automatically."""

from collections.abc import Callable

from trainers.spec import engines
from trainers.spec.engines.rules import EngineRules
from trainers.spec.layout_axes import CUTTING


def replicas_first() -> tuple[str, ...]:
    """Returns all engines, the simplest first, for models whose states fit on a device many times."""
    return tuple(rules.name for rules in sorted(engines.registered(), key=lambda rules: rules.complexity_rank))


def shards_first() -> tuple[str, ...]:
    """Returns all engines, sharding engines before engines with whole replicas only, for models that fill a device."""
    return (*sharding(), *replicating())


def sharding() -> tuple[str, ...]:
    return _engines_where(lambda rules: max(rules.stages) > 0)


def sharing_experts_out() -> tuple[str, ...]:
    """Returns the engines with expert parallelism, the simplest first."""
    return _engines_where(lambda rules: not set(CUTTING["experts"]).isdisjoint(rules.model_parallel))


def replicating() -> tuple[str, ...]:
    """Returns the engines with whole replicas only, the simplest first."""
    return _engines_where(lambda rules: max(rules.stages) == 0)


def compressing() -> tuple[str, ...]:
    return _engines_where(lambda rules: rules.has_compression)


def adapting() -> tuple[str, ...]:
    """Returns the engines that train adapters beside frozen weights, the simplest first."""
    return _engines_where(lambda rules: rules.has_adapters)


def splitting(order: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the engines of `order` that support model parallelism."""
    split = _engines_where(lambda rules: bool(rules.model_parallel))
    return tuple(name for name in order if name in split)


def _engines_where(predicate: Callable[[EngineRules], bool]) -> tuple[str, ...]:
    return tuple(name for name in replicas_first() if predicate(engines.rules_of(name)))
