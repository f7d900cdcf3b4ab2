"""Optimisations that only make trials start sooner and change no result.

`prestart` starts the processes of the next trial, with their imports, while a trial runs. `import_stubs` imports the
large libraries without unneeded parts. LAYOUT_SEARCH_FAST_START=0 in the driver's environment disables both, on every
node.
"""

import os

SWITCH = "LAYOUT_SEARCH_FAST_START"


def is_on() -> bool:
    return os.environ.get(SWITCH, "1") != "0"
