"""Reports the steps of transformers' Trainer, or of a trainer derived from it, to a search. Copy this file beside your
script:

    from step_lines import StepLines
    trainer = Trainer(..., callbacks=[StepLines()])

It needs nothing of the project that it comes from, and does nothing unless a search runs the script.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback


class StepLines(TrainerCallback):
    """Appends a line of JSON for each optimizer step to the file that LAYOUT_SEARCH_STEPS names: the tokens of all
    processes, padding included, and the seconds since the previous step; with --logging_steps 1 the loss too.
    """

    def __init__(self) -> None:
        self._path = os.environ.get("LAYOUT_SEARCH_STEPS", "")
        self._tokens, self._since_s = 0, 0.0
        self._line: dict[str, float] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if self._path:
            model.register_forward_pre_hook(self._count, with_kwargs=True)
        self._since_s = time.perf_counter()

    def _count(self, module: Any, positional: Any, named: Any) -> None:
        if module.training:
            inputs = named.get("input_ids", positional[0] if positional else None)
            self._tokens += inputs.numel()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self._path:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now_s = time.perf_counter()
        self._write()
        self._line = {"tokens": self._tokens * args.world_size, "s": now_s - self._since_s}
        self._tokens, self._since_s = 0, now_s
        if args.logging_steps != 1:
            self._write()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if self._line is not None and "loss" in (logs or {}):
            self._line["loss"] = float(logs["loss"])
            self._write()

    def _write(self) -> None:
        line, self._line = self._line, None
        if line is not None and int(os.environ.get("RANK", "0")) == 0:
            with Path(self._path).open("a") as file:
                file.write(json.dumps(line) + "\n")
