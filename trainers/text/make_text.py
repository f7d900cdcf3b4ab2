"""Writes `alice.parquet` from the text in Brotli's test data:

    pip download --no-deps --no-binary :all: brotli==1.2.1
    python -m trainers.text.make_text brotli-1.2.1.tar.gz

The same input gives the same rows, so it runs again only if the format changes.
"""

import hashlib
import re
import sys
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq

from trainers.text import PATH

MEMBER = "brotli-1.2.1/tests/testdata/alice29.txt"
SHA256 = "7467306ee0feed4971260f3c87421154a05be571d944e9cb021a5713700c38f0"


def chapters(text: str) -> dict[str, str]:
    """Returns the text of each chapter by title, with its heading; text before the first chapter and from "THE END" on
    is left out.

    Raises:
        ValueError: the text has no chapter or no end.
    """
    body, end, _ = text.replace("\r\n", "\n").partition("THE END")
    heads = list(re.finditer(r"^ *(CHAPTER [IVX]+)\n\n *(\S.*)\n", body, flags=re.MULTILINE))
    if not heads or not end:
        raise ValueError("this is not the expected text: no 'CHAPTER I' or no 'THE END'")
    bounds = [head.start() for head in heads] + [len(body)]
    return {
        f"{head[1]}. {head[2]}": f"{head[1]}\n\n{head[2]}\n{body[head.end() : stop].rstrip()}\n\n\n"
        for head, stop in zip(heads, bounds[1:], strict=True)
    }


def table(texts: dict[str, str]) -> pa.Table:
    return pa.table(
        {
            "chapter": pa.array(list(texts), pa.string()),
            "tokens": pa.array([list(text.encode("ascii")) for text in texts.values()], pa.list_(pa.uint16())),
        }
    )


def main(archive: str) -> None:
    """Reads the book from `archive` and writes the Parquet file."""
    with tarfile.open(archive) as tar:
        member = tar.extractfile(MEMBER)
        assert member is not None
        data = member.read()
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise ValueError(f"{MEMBER} of {archive} is not the file this script was written for")
    pq.write_table(table(chapters(data.decode("ascii"))), PATH, compression="zstd")


if __name__ == "__main__":
    main(sys.argv[1])
