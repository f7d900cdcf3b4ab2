"""Predicts layouts, speed and memory before anything is measured.

    python -m platform.plan bloom7b --cluster 8xH100 --save-layout layout.json     for search --layout, train, export
    python -m platform.plan bloom7b --cluster 8xH100 --markdown > plan.md
    python -m platform.plan bloom7b --cluster ray                             on the running Ray cluster
    python -m platform.plan bloom7b --cluster 8xH100 --software megatron-core   as other software would run it
    python -m platform.plan bloom7b --cluster 64x8xH100 --learn-from studies/NAME    projected from a study
    python -m platform.plan gpt_175b --cluster 128xdgx-a100 --gpus 64..3072 --png days.png
    python -m platform.plan bloom7b --cluster 2x8xH100 --sweep node-gbps=10,100,400      best layout by network
    python -m platform.plan bloom7b gpt2_xl --cluster 2x8xH100@400 --cluster 8xB200 --price 8xB200=60/h --deadline 10d
    python -m platform.plan gpt_175b --cluster jean-zay-v100 --min-nodes
    python -m platform.plan gpt2_xl --cluster p3.8xlarge --max-model --gpus 4,8,16 --micro-batch 16
    python -m platform.plan tr3m_1b3 --cluster 64xjean-zay-v100 --batch-rampup 32,64,128

Exit codes: 0, 1 nothing fits in memory or meets a deadline or cost, 2 bad input, 3 Ray is at fault.
"""

from collections.abc import Sequence

from rich.console import Console

from platform.common.command import exit_code_of
from platform.common.json_form import print_json
from platform.common.options import CommandParser
from platform.common.signals import exit_with
from platform.plan.answered import answered
from platform.plan.plan_options import PlanOptions
from platform.report.markdown import MarkdownConsole

_MARKDOWN_WIDTH = 200
"""Table width in characters for Markdown output, which has no terminal width."""

PARSER = CommandParser(PlanOptions, prog="python -m platform.plan", description=__doc__)


def run(options: PlanOptions) -> int:
    """Prints the answer and returns the exit code.

    Raises:
        InputError: the options are invalid.
        ClusterError: Ray fails.
    """
    kind = MarkdownConsole if options.markdown else Console
    width = _MARKDOWN_WIDTH if options.markdown else None
    answer, code = answered(options, kind(quiet=options.json, width=width, highlight=False, markup=False, emoji=False))
    if options.json:
        print_json(answer, indent=2)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns the exit code."""
    return exit_code_of(lambda: run(PARSER.read(arguments)))


if __name__ == "__main__":
    exit_with(main)
