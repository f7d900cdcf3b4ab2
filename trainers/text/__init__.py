"""The included text: Lewis Carroll, Alice's Adventures in Wonderland (see NOTICE), as byte-level token ids."""

from pathlib import Path

PATH = Path(__file__).parent / "alice.parquet"
"""Parquet with a row per chapter: `chapter` (its title) and `tokens` (the bytes of its text, list of uint16)."""

VOCAB_SIZE = 256
"""Every token id is a byte."""
