"""A folder with one sound file of each kind that commands read, which `benchmarks.fuzz_files` replaces by odd ones."""

import contextlib
import gzip
import io
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.fuzz import CONFIG, FIELDS, SPACE, TABLES, command_main
from tests.samples import header, measurement
from tests.train.preparing.corpus import write_megatron
from tests.training.layout_file import write_layout
from trainers.records import checkpoints
from trainers.records.checkpoint_manifest import FORMAT, Contents, Manifest, StoredFile
from trainers.records.journal import Measured
from trainers.records.journal_lines import record
from trainers.records.training import LearningRateSchedule, Saved
from trainers.records.training_lines import write as write_record


def write_sound(folder: Path, training: Sequence[str]) -> None:
    """Fills the folder; `training` are the arguments that make a training in it."""

    def put(path: str, data: Any) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")

    put("model/config.json", CONFIG)
    put("weights/config.json", {**CONFIG, "n_layer": 1, "n_embd": 16, "n_head": 2, "n_inner": 64})
    put("weights/model.safetensors.index.json", {"weight_map": {"a": "model.safetensors"}})
    put("space.py", SPACE.format(**{name: repr(value) for name, value in FIELDS.items()}))
    for name in ("text.txt", "text.md"):
        put(name, "some text\n\nmore text\n" * 20)
    put("text.jsonl", '{"text": "some text"}\n{"text": "more"}\n')
    (folder / "text.jsonl.gz").write_bytes(gzip.compress((folder / "text.jsonl").read_bytes()))
    put("options.yaml", "space: gpt2\n")
    put("compared/rates.json", {"no such mathematics": {"value": 0.1, "source": "a search"}})
    with TABLES[0].open(encoding="utf-8") as table:
        put("table.csv", "".join(table.readline() for _ in range(9)))
    write_layout(folder / "layout.json")
    write_megatron(folder / "pair.bin", [[[1, 2, 3]], [[4, 5]]])
    pq.write_table(pa.table({"tokens": pa.array([[1, 2, 3], [4]], pa.list_(pa.uint16()))}), folder / "part.parquet")
    _write_studies(folder / "studies")
    before = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert command_main("prepare", "text.txt", "--out", "tokens", "--workers", "1") == 0
            assert command_main("prepare", "text.jsonl", "--out", "begun", "--workers", "1") == 0
            assert command_main("train", *training) == 2  # it writes its plan before it looks for a Ray
    finally:
        os.chdir(before)
    (folder / "begun" / "index.json").unlink()
    _write_training(folder / "training")


def _write_studies(studies: Path) -> None:
    for name in ("one", "group-1gpu"):
        (studies / name).mkdir(parents=True)
        journal = studies / name / "journal.jsonl"
        record(journal, header(name, options={"space": "bloom7b"}))
        for number in range(3):
            record(journal, Measured(measurement=measurement(tokens_per_s=1000.0 + number)))
        write_layout(studies / name / "layout.json")
        (studies / name / "system.jsonl").write_text('{"at_ms": 1}\n')
    note = {"host": "h", "boot": "b", "ray_session": "", "scratch": ""}
    (studies / "one" / "running.json").write_text(json.dumps(note))
    (studies / "group").mkdir()
    (studies / "group" / "scaling.json").write_text(json.dumps({"counts": [1], "options": {}}))


def _write_training(folder: Path) -> None:
    (folder / ".attempt").write_text("1")
    write_record(
        folder / "training.jsonl",
        Saved(attempt=1, step=1, name="step-00000001-1", stall_s=1.0, background_s=1.0, gib=0.0),
    )
    checkpoint = folder / "checkpoints" / "step-00000001-1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "rank-00000.safetensors").write_bytes(bytes(8))
    file = StoredFile(name="rank-00000.safetensors", size_bytes=8, crc32=f"{zlib.crc32(bytes(8)):08x}")
    manifest = Manifest(
        format=FORMAT, recipe_id="", step=1, tokens=64, samples=4, epoch=0, sample=4, optimizer_step=1,
        loss_scale=None, loss_scale_steps=0, learning_rate=0.1,
        lr_schedule=LearningRateSchedule(kind="constant", tokens=10), train_s=1.0, layout="DDP", attempt=1,
        contents=Contents(files=(file,), tensors={}),
    )  # fmt: skip
    checkpoints.write_manifest(checkpoint, manifest)
