"""Prints the table and the winner of a study, finished, cut short or running, and writes its files.

    python -m platform.report bloom7b-1 --csv bloom7b.csv
    python -m platform.report bloom7b-1 --markdown > bloom7b.md
    python -m platform.report bloom7b-1gpu bloom7b-4gpu --html report.html
    python -m platform.report --compare bloom7b-1:3f2a bloom7b-2

The command reads only journals, and brings MLflow up to date. Exit codes: 0 there is a winner, 1 nothing fits in
memory, 2 bad input, 4 not resolved which layout is the fastest.
"""

import dataclasses
import gc
import os
from collections.abc import Sequence
from pathlib import Path

from platform.common.command import exit_code_of
from platform.common.errors import InputError, one_line
from platform.common.json_form import print_json
from platform.common.options import CommandParser, argument, json_field, markdown_field, option
from platform.common.output import print_line, terminal_width, wrapped
from platform.common.signals import exit_with
from platform.report import serving
from platform.report.console import rendered
from platform.report.difference import difference, measurement_by_prefix
from platform.report.difference_words import sentences
from platform.report.endings import duration_sentence, last_ending, next_trainings, report_exit_code, written
from platform.report.group_report import report
from platform.report.html.page import write_page
from platform.report.image_formats import pictures_field
from platform.report.json_report import as_json, finite
from platform.report.markdown import as_markdown
from platform.report.measurement_table import write_table
from platform.report.show import PLAIN_WIDTH, show
from platform.report.summary import verdicts
from platform.report.team import name_below, team_parts
from platform.study.bucket import fetched, is_address
from platform.study.folder import located, studies_field, user_path
from platform.study.group import is_group, read_group
from platform.study.journal import JOURNAL
from platform.study.lock import is_locked
from platform.study.result.result import StudyResult
from platform.study.study import below, find, is_study, read
from platform.tracking.mirror import Mirror
from platform.tracking.mirrors import Mirrors
from platform.tracking.uri import check_uri, report_uri
from platform.tracking.wandb_option import wandb_field
from platform.tracking.wandb_runs import WandbMirror
from trainers.records.measurement import Measurement
from trainers.records.trust import not_written, other_owner
from trainers.spec.codec import to_json

_MIRROR_S = 120.0
"""Longest time in seconds for updating MLflow."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReportOptions:
    names: tuple[str, ...] = argument(
        (),
        nargs="*",
        metavar="STUDY",
        about="a study's name or the path of its folder, several with --html; or a folder or bucket of studies",
    )
    html: Path | None = option(None, metavar="FILE", about="write one self-contained page on the studies to FILE")
    serve: int | None = option(
        None,
        metavar="PORT",
        about="show that page at http://127.0.0.1:PORT until Ctrl-C, renewed while a search runs (0: a free port)",
    )
    compare: tuple[str, ...] = option(
        (),
        nargs=2,
        metavar=("A", "B"),
        about="say what differs between two measurements and what each difference makes: STUDY for its winner, STUDY:ID"
        " for the one whose id begins so; STUDY may be an address",
    )
    studies: Path = studies_field()
    json: bool = json_field()
    markdown: bool = markdown_field()
    csv: Path | None = option(None, metavar="FILE", about="write the measurement table to FILE too")
    pictures: str = pictures_field()
    mlflow: str | None = option(
        None, metavar="URI", about="MLflow server to bring up to date (default: MLFLOW_TRACKING_URI)"
    )
    wandb: str | None = wandb_field()
    trust: bool = option(False, about="write files and MLflow runs for other users' studies too")
    no_mlflow: bool = option(False, about="do not write to MLflow")


PARSER = CommandParser(
    ReportOptions,
    prog="python -m platform.report",
    description="Shows a study: its table, its winner and where its files are; brings MLflow up to date.",
    epilog="Exit codes: 0 there is a winner, 1 nothing fits in memory, 2 bad input, 4 not resolved which layout is the"
    " fastest. Examples: python -m platform.report bloom7b-1 --html report.html; python -m platform.report"
    " --compare bloom7b-1:3f2a bloom7b-2",
)


def main(argv: Sequence[str] | None = None) -> int:
    return exit_code_of(lambda: _report(PARSER.read(argv)))


def _report(options: ReportOptions) -> int:
    if options.markdown and (options.json or options.compare):
        raise InputError("--markdown goes with neither --json nor --compare: leave one out")
    if options.compare:
        return _compare(options)
    if of_bucket := any(map(is_address, options.names)):
        fetch = fetched if len(options.names) == 1 else _of_bucket
        names = tuple(str(fetch(name)) if is_address(name) else name for name in options.names)
        options = dataclasses.replace(options, names=names, no_mlflow=True)
    places = [_located(options, name) for name in options.names]
    if not places:
        raise InputError("no study is named: give its name, or two measurements by --compare")
    root = places[0][0] / places[0][1]
    is_folder = of_bucket or (root.is_dir() and not is_study(root) and not is_group(root))
    if len(places) == 1 and is_folder and (paths := [root] if is_study(root) else below(root)):
        return _report_team(root, paths, options)
    several = [is_group(studies / name) for studies, name in places]
    if options.csv is not None and (len(places) > 1 or any(several)):
        name = " and ".join(name for _, name in places)
        raise InputError(f"{name} is several studies: give one's name with --csv, or take its scaling.csv")
    is_together = options.html is not None or options.markdown or options.serve is not None
    if len(places) > 1 and not is_together:
        raise InputError(f"{len(places)} studies are named: give --html FILE for one page on them, or one name")
    if several == [True] and not is_together:
        return report(*places[0], as_object=options.json, trusted=options.trust, form=options.pictures)
    folders = [find(path.parent, path.name) for studies, name in places for path in _members(studies, name)]
    explicit_uri = options.mlflow or os.environ.get("MLFLOW_TRACKING_URI") or ""
    if explicit_uri and not options.no_mlflow:
        check_uri(explicit_uri)  # a wrong URI is reported before anything is printed
    if options.serve is not None:
        serving.serve(serving.Pages(folders, _read), options.serve)
        return 0
    if len(folders) == 1:
        return _report_one(folders[0], explicit_uri, options)
    return _report_together(folders, explicit_uri, options)


def _located(options: ReportOptions, name: str) -> tuple[Path, str]:
    return located(user_path(options.studies).absolute(), name)


def _members(studies: Path, name: str) -> list[Path]:
    """Returns the study's folder; for several searches of one command, those of its begun studies."""
    if not is_group(studies / name):
        return [studies / name]
    return [path for member in read_group(studies / name).members(name) if is_study(path := studies / member)]


def _report_one(folder: Path, explicit_uri: str, options: ReportOptions) -> int:
    running = is_locked(folder)  # before the journal is read: what ends meanwhile has no last line yet
    result = _read(folder)
    owner = "" if options.trust else other_owner((folder, folder / JOURNAL))
    if owner:
        print_line(not_written(owner))
    files: list[Path] = [] if owner else written(folder, result, options.pictures)
    if options.csv is not None:
        write_table(options.csv, result)
        files.append(options.csv)
    if options.html is not None:
        files.append(write_page(options.html, [result], [folder]))
    if options.markdown:
        print(as_markdown(result), end="")
    else:
        show(result, files, as_object=options.json)
    if running:
        print_line("The study is running: its search mirrors it to MLflow.")
        return report_exit_code(result)
    if not options.json and not options.markdown:
        sentences = (last_ending(result.history.end, folder), duration_sentence(result.history))
        print(
            *map(wrapped, (*sentences, *(training.sentence for training in next_trainings(result, folder)))), sep="\n"
        )
    if not options.no_mlflow and not owner:
        _mirror(folder, result, explicit_uri, options.html, options.wandb)
    return report_exit_code(result)


def _report_team(root: Path, paths: Sequence[Path], options: ReportOptions) -> int:
    """Prints all studies below a folder, whoever owns them, without writing there; returns the best exit code."""
    if options.csv is not None and len(paths) > 1:
        raise InputError(f"{root} is a folder of {len(paths)} studies: give one's name with --csv")
    if options.serve is not None:
        serving.serve(serving.Pages(paths, _read), options.serve)
        return 0
    studies: list[tuple[Path, StudyResult]] = []
    for path in paths:
        try:
            studies.append((path, _read(path)))
        except InputError as error:
            print_line(f"Left out: {name_below(path, root)}: {one_line(error)}")
    if not studies:
        raise InputError(f"no study in {root} can be read")
    results = [result for _, result in studies]
    if options.csv is not None:
        write_table(options.csv, results[0])
    if options.html is not None:
        write_page(options.html, results, [path for path, _ in studies])
    if options.json:
        print_json({"studies": [as_json(result) for result in results]})
    elif options.markdown:
        print("\n".join(map(as_markdown, results)), end="")
    else:
        print(rendered(team_parts(studies, root), width=terminal_width(PLAIN_WIDTH)), end="")
    return min(map(report_exit_code, results))


def _report_together(folders: Sequence[Path], explicit_uri: str, options: ReportOptions) -> int:
    """Writes or prints one report on several studies; returns the best of their exit codes."""
    results = [_read(folder) for folder in folders]
    path = None if options.html is None else write_page(options.html, results, folders)
    if options.json:
        print_json({"studies": [as_json(result) for result in results]})
    elif options.markdown:
        print("\n".join(map(as_markdown, results)), end="")
    else:
        for result in results:
            print(f"{result.header.name}:", *verdicts(result), sep="\n  ")
        print("Files:", path, sep="\n  ")
    for folder, result in zip(folders, results, strict=True):
        if not options.no_mlflow and (options.trust or not other_owner((folder, folder / JOURNAL))):
            _mirror(folder, result, explicit_uri, path, options.wandb)
    return min(map(report_exit_code, results))


def _read(folder: Path) -> StudyResult:
    """Returns the result of the study so far; prints remarks on unusable lines of its journal."""
    read_history, remarks = read(folder, last=not is_locked(folder))
    for remark in remarks:
        print_line(remark)
    result = StudyResult.of(read_history)
    gc.freeze()  # kept until the end: the garbage collector need not scan a million objects again
    return result


def _mirror(folder: Path, result: StudyResult, explicit_uri: str, page: Path | None, project: str | None) -> None:
    """Updates MLflow, and W&B if `project` is set; uploads `page` too."""
    if is_locked(folder):
        return
    try:
        of_wandb = (WandbMirror(folder, project),) if project else ()
        uri = report_uri(explicit_uri, result.header.mlflow_uri, folder.parent)
        mirror = Mirrors(all=(Mirror(folder, uri), *of_wandb)).start()
        is_up = "MLflow and W&B are up to date." if project else "MLflow is up to date."
        print_line(mirror.close(_MIRROR_S, result, () if page is None else (page,)) or is_up)
        print_line(mirror.look)
    except InputError as error:
        print_line(one_line(error))


def _named(text: str) -> tuple[str, str]:
    """Returns the parts of STUDY:ID; STUDY may be a path or an address, whose colons come before a slash."""
    name, _, id_prefix = text.rpartition(":")
    return (text, "") if not name or "/" in id_prefix else (name, id_prefix)


def _of_bucket(address: str) -> Path:
    """Returns a local copy of the one study at an address.

    Raises:
        InputError: there is none, or there are several.
    """
    folder = fetched(address)
    if not is_study(folder):
        names = ", ".join(str(path.relative_to(folder)) for path in below(folder)[:3])
        raise InputError(f"{address} is a folder of studies: name one of them, such as {names}, in its address")
    return folder


def _compare(options: ReportOptions) -> int:
    if options.names or options.html or options.csv or options.serve is not None:
        raise InputError(
            "--compare A B goes with neither further studies nor --html, --csv and --serve: leave these out"
        )
    results, sides = list[StudyResult](), list[Measurement]()
    for text in options.compare:
        name, id_prefix = _named(text)
        result = _read(_of_bucket(name) if is_address(name) else find(*_located(options, name)))
        winner = next((best for _, best in result.winners), None)
        sides.append(measurement_by_prefix(result.history.measurements, winner, id_prefix))
        results.append(result)
    measurements = [measurement for result in results for measurement in result.history.measurements]
    comparison = results[0].beside(*sides) if results[0].header == results[1].header else None
    explained = difference(sides[0], sides[1], (results[0].header, results[1].header), measurements, comparison)
    if options.json:
        print_json(finite(to_json(explained)))
    else:
        print("\n".join(sentences(explained)))
    return 0


if __name__ == "__main__":
    exit_with(main)
