"""The included text: whole, byte-level, without a distributor's words."""

import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainers.text import PATH, VOCAB_SIZE
from trainers.text.make_text import chapters, table


def test_twelve_chapters_of_bytes() -> None:
    text = pq.read_table(PATH)
    assert text.schema.field("tokens").type == pa.list_(pa.uint16())
    rows = text.to_pylist()
    assert len(rows) == 12
    tokens = [token for row in rows for token in row["tokens"]]
    assert len(tokens) == 147_699
    assert max(tokens) < VOCAB_SIZE
    book = bytes(tokens).decode("ascii")
    assert book.startswith("CHAPTER I\n\nDown the Rabbit-Hole\n\n\n  Alice was beginning to get very tired")
    assert book.rstrip().endswith("and the happy summer days.")
    assert not re.search(r"gutenberg|trademark|copyright|\be-?text|fulcrum|\r", book, flags=re.IGNORECASE)


def test_the_notice_names_work_author_and_year() -> None:
    notice = (PATH.parent / "NOTICE").read_text()
    for fact in ("Alice's Adventures in Wonderland", "Lewis Carroll", "1865", "public domain"):
        assert fact in notice


def test_chapters_are_cut_at_their_headings() -> None:
    text = "Title\n\n   CHAPTER I\n\n  One\n\nfirst\n\n  CHAPTER II\n\n Two\nsecond\n\n THE END\n\x1a"
    cut = chapters(text.replace("\n", "\r\n"))
    assert cut == {
        "CHAPTER I. One": "CHAPTER I\n\nOne\n\nfirst\n\n\n",
        "CHAPTER II. Two": "CHAPTER II\n\nTwo\nsecond\n\n\n",
    }
    assert bytes(table(cut).column("tokens")[1].as_py()).decode() == cut["CHAPTER II. Two"]


@pytest.mark.parametrize("text", ["", "CHAPTER I\n\n One\n\ncut off", "no chapter\n THE END"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not the expected text"):
        chapters(text)
