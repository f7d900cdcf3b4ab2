"""EXAONE 4: norms after attention and feed-forward block instead of before, a norm of each head of queries and keys,
and a window in three of four blocks; the fourth block has no rotary positions. Without a window all blocks have them.
"""

from trainers.spec.architectures.windows import WindowByBlock

ARCHITECTURE = WindowByBlock(
    name="exaone4",
    query_key_norm="head",
    global_every=4,
    config_defaults={"num_key_value_heads": 32},
    masks_always=False,
)
