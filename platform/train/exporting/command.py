"""Exports a trained model, or the layout that a search found, for other programs.

    python -m platform.export studies/gpt2-1/training --out model              # a transformers folder
    python -m platform.export gpt2-1 --to torchrun --tokens 2e9 --out runs/first   # our trainer, without Ray
    python -m platform.export gpt2-1 --to accelerate --tokens 2e9 --out hf --run 20
    python -m platform.export gpt2-1 --to trainer-flags --out flags            # for your own script

From a training's newest checkpoint it writes the model; from a training, a study's winner or a layout.json it writes a
folder whose launch.sh trains that layout in another program. What that program does not support is printed and noted in
launch.sh. With --run both are trained for some steps here and their speeds compared.
Exit codes: 0, 2 bad input, 3 the export's own run failed, 130 interrupted.
"""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from platform.common.errors import ClusterError, InputError, one_line
from platform.common.options import CommandParser, argument, option
from platform.common.output import print_line
from platform.common.quantities import amount
from platform.common.signals import INTERRUPTED
from platform.study.atomic_write import replacing
from platform.study.folder import absolute_path, make_folder, studies_field, trust_field
from platform.train.data_path import data_field
from platform.train.exporting.export_speed import (
    beside_search,
    check_devices,
    compared,
    run_ours,
    run_plain,
    run_torchrun,
)
from platform.train.exporting.formats import (
    FORMATS,
    Device,
    write_accelerate,
    write_caveats,
    write_deepspeed,
    write_torchrun,
)
from platform.train.exporting.trainer_flags import done_otherwise, trainer_flags
from platform.train.target import Target, read_target
from platform.train.train_options import TrainOptions
from platform.train.training_folder import TrainingFolder
from platform.train.training_plan import make_plan
from trainers.records.training import TrainingPlan


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ExportOptions:
    target: str = argument(
        metavar="TRAINING|STUDY|FILE",
        about="the folder of a training (platform.train's --out), a study whose winner is exported, or a layout.json",
    )
    out: Path = option(
        then=absolute_path, metavar="FOLDER", about="the folder to write; it must not exist, or be empty"
    )
    to: str = option(
        "transformers",
        choices=FORMATS,
        about="program to export for; transformers takes a training's model (default: %(default)s)",
    )
    dtype: Literal["fp32", "bf16", "fp16"] = option("fp32", about="type of the model's weights (default: %(default)s)")
    merged: bool = option(False, about="add adapters to the weights and write a whole model, in place of peft's files")
    tokens: float | None = option(
        None, read=amount, metavar="N", about="tokens to train on, for a study or a file, as in 2e9 or 2B"
    )
    data: str | None = data_field()
    start_from: str | None = option(None, metavar="FOLDER", about="begin with the weights of a transformers folder")
    device: Device | None = option(
        None, about="device that the exported training runs on (default: the study's devices, else cuda)"
    )
    run: int | None = option(
        None,
        metavar="STEPS",
        about="run STEPS steps of the export and of this project's trainer here, and print both speeds",
    )
    studies: Path = studies_field(read=str)
    trust: bool = trust_field()


PARSER = CommandParser(ExportOptions, prog="python -m platform.export", description=__doc__)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """The folder that an export wrote."""

    folder: Path
    launch: Path | None = None
    """The script that trains the layout in another program; None for a model."""
    limits: tuple[str, ...] = ()
    """Parts of the layout or recipe that the other program does not support."""
    caveats: tuple[str, ...] = ()
    """Caveats of the study's result, a sentence each."""
    remarks: tuple[str, ...] = ()
    """Sentences on the files written."""

    @property
    def sentences(self) -> tuple[str, ...]:
        return (*self.caveats, *self.remarks, *(f"- {limit}" for limit in self.limits))


def main(argv: Sequence[str] | None = None) -> int:
    try:
        options = PARSER.read(argv)
        for sentence in export(options).sentences:
            print_line(sentence)
        if options.run is not None and options.to not in ("transformers", "trainer-flags"):
            print(speed(options, options.run))
        return 0
    except (InputError, ClusterError) as error:
        print_line(f"{'error' if isinstance(error, InputError) else 'the run failed'}: {one_line(error)}")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


def export(options: ExportOptions) -> Exported:
    """Writes the model or the layout into the output folder and returns its description.

    Raises:
        InputError: the options, or the files that they name, have a mistake.
    """
    out = options.out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is there already: give --out a new folder")
    exporters = {"transformers": _export_model, "trainer-flags": _export_flags}
    return exporters.get(options.to, _export_layout)(options, out)


def _check_effect(options: ExportOptions) -> None:
    """Checks that every option has an effect on this export.

    Raises:
        InputError: one has none.
    """
    needless = {
        "transformers": ("tokens", "data", "start_from", "run", "device"),
        "trainer-flags": ("tokens", "data", "start_from", "run", "device", "merged"),
    }.get(options.to, ("merged",))
    given = [f"--{name.replace('_', '-')}" for name in needless if getattr(options, name) not in (None, False)]
    if options.to != "transformers" and options.dtype != "fp32":
        given.append("--dtype")
    if given:
        raise InputError(
            f"an export --to {options.to} has no use for {', '.join(given)}: leave out what it lacks, or name another"
            " program by --to"
        )


def _export_model(options: ExportOptions, out: Path) -> Exported:
    folder = TrainingFolder(absolute_path(options.target), trusted=options.trust)
    plan = folder.plan()
    newest, damages = (None, []) if plan is None else folder.verified_checkpoint()
    if plan is None or newest is None:
        raise InputError(f"{folder.path} holds no checkpoint of a training: give platform.train's --out")
    _check_effect(options)
    remarks = [f"The checkpoint {damage.path.name} is not used: {damage.reason}" for damage in damages]
    has_adapters = plan.recipe.adapter_rank > 0
    if options.merged and not has_adapters:
        raise InputError(f"{folder.path} trained the whole model: there are no adapters for --merged to add")
    from trainers.training import export as model_export  # imports torch

    writes = model_export.export_adapters if has_adapters and not options.merged else model_export.export
    try:
        writes(newest, plan.recipe, out, dtype=options.dtype, base=plan.initial_weights)
        has_tokenizer = model_export.write_tokenizer(plan.recipe, out, initial_weights=plan.initial_weights)
    except ValueError as error:
        raise InputError(str(error)) from error
    if not has_tokenizer:
        remarks.append(f"No tokenizer of the data {plan.recipe.data} is known: put yours into {out}.")
    if writes is model_export.export_adapters:
        base = repr(plan.initial_weights) if plan.initial_weights else "its first weights"
        remarks.append(
            f"{out} holds the adapters of {newest.name}: PeftModel.from_pretrained(model, {str(out)!r}) of peft"
            f" adds them to a model of {base}; --merged writes that model"
        )
    else:
        remarks.append(f"{out} holds the model of {newest.name}: AutoModelForCausalLM.from_pretrained({str(out)!r})")
    return Exported(folder=out, remarks=tuple(remarks))


def _export_layout(options: ExportOptions, out: Path) -> Exported:
    _check_effect(options)
    plan, target, device = _plan(options)
    if options.run is not None:
        check_devices(plan, device, options.run)
    match options.to:
        case "torchrun":
            limits = write_torchrun(plan, out)
        case "accelerate":
            limits = write_accelerate(plan, out, device)
        case _:
            limits = write_deepspeed(plan, out)
    caveats = target.caveats if target else ()
    write_caveats(out, caveats)
    launch = out / "launch.sh"
    return Exported(
        folder=out,
        launch=launch,
        limits=tuple(limits),
        caveats=tuple(caveats),
        remarks=(f"{launch} trains {plan.phases[0].layout.label} in {options.to}. It does not carry:",),
    )


def speed(options: ExportOptions, steps: int) -> str:
    """Trains the export and this project's trainer for `steps` steps here; returns a sentence on both speeds.

    Raises:
        InputError: the layout cannot run here.
        ClusterError: a run failed.
    """
    plan, target, device = _plan(options)
    per_step = plan.tokens_per_step(plan.phases[0])
    if options.to == "torchrun":
        ran = run_torchrun(options.out, steps, device)
        return beside_search(ran, target and target.tokens_per_s, tokens_per_step=per_step)
    ours = run_ours(plan, steps, device)
    return compared(options.to, run_plain(options.out, steps, device), ours, tokens_per_step=per_step)


def _export_flags(options: ExportOptions, out: Path) -> Exported:
    _check_effect(options)
    target = read_target(options.target, absolute_path(options.studies), None, trusted=options.trust)
    if target.recipe is None or target.batch is None:
        raise InputError(f"{options.target} has no recipe and batch, from which flags could be written: give a study")
    flags = shlex.join(trainer_flags(target.recipe, target.layout, target.batch))
    make_folder(out)
    with replacing(out / "flags.txt") as part:
        part.write_text(f"{flags}\n")
    about = f"{out / 'flags.txt'} has the flags of {target.layout.label} for a script with TrainingArguments:"
    command = f"torchrun --nproc-per-node {target.layout.world_size} train.py {flags}"
    return Exported(
        folder=out,
        limits=tuple(done_otherwise(target.recipe)),
        caveats=tuple(target.caveats),
        remarks=(about, command, "They do not carry:"),
    )


def _plan(options: ExportOptions) -> tuple[TrainingPlan, Target | None, Device]:
    """Returns the plan to export, its study or file (None for a training), and the kind of device."""
    folder = TrainingFolder(absolute_path(options.target), trusted=options.trust)
    if (stored_plan := folder.plan()) is not None:
        if options.tokens or options.data or options.start_from:
            raise InputError(f"{folder.path} is a training with a plan of its own: leave --tokens, --data and"
                             " --start-from out")  # fmt: skip
        return stored_plan, None, options.device or "cuda"
    if options.tokens is None or options.tokens < 1 or options.tokens != int(options.tokens):
        raise InputError(f"--to {options.to} needs --tokens, a whole number to train on as in 2e9, for a study or file")
    studies = absolute_path(options.studies)
    target = read_target(options.target, studies, None, trusted=options.trust)
    train_options = TrainOptions(
        target=options.target, studies=studies, tokens=int(options.tokens), data=options.data,
        start_from=options.start_from,
    )  # fmt: skip
    device: Device = options.device or ("cpu" if target.device_kind == "cpu" else "cuda")
    return make_plan(train_options, target, None), target, device
