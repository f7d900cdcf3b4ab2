"""A space whose layouts get different faults; `test_worker.py` injects most of them by the name of a point."""

from search_spaces.space import Point, Space
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

_DDP = ("hang", "dies twice", "memory of the host", "well", "memory of Tune's process")
_LAYOUTS = {name: {"engine": "ddp", "bucket_mib": 8 * place} for place, name in enumerate(_DDP)}
_LAYOUTS["compile that never ends"] = {"engine": "ddp", "compile": "block"}
_LAYOUTS["no import"] = {"engine": "deepspeed"}


def space() -> Space:
    """Returns a space of two workers and steps of half a second: a test can act in the middle of a rung."""
    model = ModelSpec(
        name="tiny",
        architecture="gpt2",
        num_layers=1,
        hidden_size=256,
        num_heads=2,
        vocab_size=8192,
        max_positions=512,
    )
    points = [Point(name=name, micro_batch=2, layout=layout) for name, layout in _LAYOUTS.items()]
    points += [
        Point(name="killed after a rung", micro_batch=1, layout={"engine": "ddp", "bucket_mib": 64}),
        Point(name="and the next", micro_batch=2, layout={"engine": "ddp", "bucket_mib": 64}),
        Point(name="memory of a rank", micro_batch=2, layout={"engine": "ddp"}, recipe={"global_batch": 12}),
        Point(name="and no more", micro_batch=6, layout={"engine": "ddp"}, recipe={"global_batch": 12}),
        Point(name="loss", micro_batch=2, layout={"engine": "ddp"}, recipe={"learning_rate": 1e30}),
    ]
    return Space(
        name="hurt",
        summary="layouts that are hurt",
        recipe=Recipe(model=model, seq_len=512, global_batch=4, compute_precision="fp32", learning_rate=1e-3),
        axes={},
        points=tuple(points),
        repeats=0,
        num_workers=2,
        hang_floor_s=12.0,
        first_step_s=90.0,
    )
