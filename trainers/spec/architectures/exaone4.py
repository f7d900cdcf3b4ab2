"""EXAONE 4: norms after attention and feed-forward in place of before them, a norm of each head of queries and keys,
and a window in three of four blocks, of which the fourth is not rotated; without a window all blocks are rotated.
"""

from trainers.spec.architectures.windows import WindowByBlock

ARCHITECTURE = WindowByBlock(
    name="exaone4",
    query_key_norm="head",
    global_every=4,
    config_defaults={"num_key_value_heads": 32},
    masks_always=False,
)
