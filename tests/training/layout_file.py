"""A `layout.json` of a small model as a search writes it."""

import json
from pathlib import Path
from typing import Any

from tests.training.values import DDP, RECIPE
from trainers.spec.batch import BatchPoint
from trainers.spec.codec import to_json
from trainers.spec.layout import Layout


def write_layout(path: Path, layout: Layout = DDP, **parts: Any) -> Path:
    """Writes the file with a recipe and a batch point, which `parts` may replace."""
    batch = BatchPoint(micro_batch=4 // layout.data_parallel, grad_accum=1)
    path.write_text(json.dumps(to_json({"layout": layout, "recipe": RECIPE, "batch": batch, **parts})))
    return path
