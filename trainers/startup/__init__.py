"""Optimisations that only make trials start sooner; a search has the same answer without them. One switch turns them
off.

`prestart` has the processes of the next trial started, and their imports done, while a trial runs. `import_stubs`
imports the big libraries without what they import for others. LAYOUT_SEARCH_FAST_START=0 in the driver's environment
turns both off, on every node.
"""

import os

SWITCH = "LAYOUT_SEARCH_FAST_START"


def is_on() -> bool:
    """Returns whether trials may be started ahead and imports left out."""
    return os.environ.get(SWITCH, "1") != "0"
