"""The options of `platform.converge`, as one value."""

import dataclasses
from pathlib import Path

from platform.common.options import address_field, argument, json_field, option
from platform.common.quantities import whole_number
from platform.report.image_formats import pictures_field
from platform.study.folder import absolute_path, studies_field, trust_field
from platform.train.data_path import data_field


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ConvergeOptions:
    targets: tuple[str, ...] = argument(
        nargs="+",
        metavar="STUDY|FILE|CHANGES",
        about="a study whose winner is trained, a layout.json, or changes to the first of these, as in"
        " optimizer=adafactor,learning_rate=1e-3",
    )
    steps: int = option(
        read=whole_number(1),
        metavar="N",
        about="optimizer steps of the first strategy; the others train on as many tokens",
    )
    data: str | None = data_field()
    start_from: str | None = option(
        None, metavar="FOLDER", about="begin every training with the weights of a transformers folder"
    )
    seeds: int = option(
        1,
        read=whole_number(1),
        metavar="K",
        about="trainings of each strategy, with seeds 0 to K-1 (default: %(default)s); intervals need at least 2",
    )
    rates: int = option(
        5,
        read=whole_number(0),
        metavar="N",
        about="most learning rates to try, by short trainings, for each recipe that states none; 0 scales the first's"
        " by the square root of the batch (default: %(default)s)",
    )
    val_tokens: int | None = option(
        None,
        read=whole_number(1),
        metavar="N",
        about="tokens at the end of the data that are held out (default: 5 %%, at most a million)",
    )
    out: Path | None = option(
        None,
        read=str,
        then=lambda text: absolute_path(text) if text else None,
        metavar="FOLDER",
        about="the comparison's folder (default: `convergence` beside the first layout)",
    )
    studies: Path = studies_field(read=str, then=absolute_path)
    address: str | None = address_field()
    pictures: str = pictures_field()
    trust: bool = trust_field()
    json: bool = json_field()
