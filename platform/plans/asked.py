"""What may be asked of `python -m platform.plan` at once, and within which bounds."""

import argparse

from platform.common.errors import InputError
from platform.plans.picture import check_path
from trainers.codec import shortened

_LARGEST = {"top": 1e6, "micro_batch": 1e6, "tokens": 1e18, "device_memory_gib": 1e6, "price_per_gpu_h": 1e6}
"""By option: a number must be above 0 and no larger, so that nothing overflows; what is no number is refused too."""
_QUESTIONS = ("max_model", "min_nodes", "batch_rampup")


def check(options: argparse.Namespace) -> None:
    """That the options are within bounds, and that none of them would go unanswered beside another.

    Raises:
        InputError: they are not.
    """
    for name, most in _LARGEST.items():
        value = getattr(options, name)
        if value is not None and not 0 < value <= most:
            raise InputError(f"{_option(name)} must be above 0 and at most {most:g}, got {shortened(value)}")
    asked = [_option(name) for name in _QUESTIONS if getattr(options, name)]
    if len(asked) > 1:
        raise InputError(f"{' and '.join(asked)} are different questions: ask one at a time")
    if options.gpus and asked and not options.max_model:
        raise InputError(f"--gpus says nothing to {asked[0]}, which goes through counts of its own")
    if options.micro_batch and not options.max_model:
        raise InputError("--micro-batch belongs to --max-model; --set micro_batch=N fixes it elsewhere")
    if options.png is not None:
        if not options.gpus or asked:
            raise InputError("--png draws days against devices: give it with --gpus alone, such as --gpus 8,16,32")
        check_path(options.png)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
