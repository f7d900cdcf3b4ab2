"""The section on trials side by side: nodes and times of each trial."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from platform.report.html.chart import FAINT, LINES, chart
from platform.report.html.elements import Block, Charts, Paragraph, headed
from platform.report.lanes import LaneSpan, lagging_words, lane_spans, lanes_words
from platform.study.result.result import StudyResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def trials_side_by_side(results: Sequence[StudyResult]) -> Iterator[Block]:
    """Yields a picture of nodes and time for each study that ran trials side by side."""
    for result in results:
        if lanes_words(result.history):
            name = result.header.name
            yield from headed(name, results)
            yield Charts([("Trials by node", _picture(f"Trials by node, {name}", lane_spans(result.history)))])
            if words := lagging_words(result.history):
                yield Paragraph(words)
            yield Paragraph("Teal: the search; amber: final runs; grey: lost with its node or process.", note=True)


def _picture(name: str, spans: Sequence[LaneSpan]) -> str:
    nodes = list(dict.fromkeys(sorted((span.node for span in spans), key=_by_number)))

    def draw(axes: "Axes") -> None:
        for span in spans:
            colour = FAINT if span.is_lost else LINES[1] if span.is_final else LINES[0]
            width = (span.end_s - span.begin_s) / 60
            axes.barh(
                nodes.index(span.node), width, left=span.begin_s / 60, height=0.8, color=colour, ec="white", lw=0.5
            )
        axes.set_yticks(range(len(nodes)), nodes)
        axes.invert_yaxis()
        axes.set_xlabel("minutes")

    return chart(name, draw, height_in=1.0 + 0.22 * min(len(nodes), 40))


def _by_number(address: str) -> tuple[str, ...]:
    """Returns the sort key of an address, so that 10.0.0.9 comes before 10.0.0.10."""
    return tuple(f"{int(part):05d}" if part.isdecimal() else part for part in address.split("."))
