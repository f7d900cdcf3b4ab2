"""`platform.prepare`: every kind of input, the same bytes from any number of workers, and refusals in a sentence."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import platform.train.preparing.command as prepare
from platform.train.preparing import inputs
from platform.train.preparing.documents import documents
from platform.train.preparing.tokenizer import BYTES, Tokenizer
from tests.train.preparing.corpus import as_bytes, contents, documents_of, texts, write_megatron
from trainers.data import ParquetTokens, Position
from trainers.data.index import read_index

Run = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Prepares inputs into a new folder and returns it."""

    def run(*arguments: object, out: str = "out") -> Path:
        folder = tmp_path / out
        code = prepare.main([*map(str, arguments), "--out", str(folder), "--workers", "1"])
        assert code == 0, capsys.readouterr().err
        return folder

    return run


def _shards(path: Path, *, text_key: str = "text", separator: bytes | None = None) -> list[list[list[int]]]:
    """Returns the documents of each shard of about 10,000 bytes as token ids: those of the file, or one for each
    byte.
    """
    encode = Tokenizer(name=BYTES, vocab_size=256).encoder()
    files = inputs.find([path], path.parent / "out", text_key).files
    return [
        [
            ids.tolist()
            for piece in shard.pieces
            for tokens, _ in documents(piece, encode=encode, text_key=text_key, separator=separator)
            for ids in np.split(tokens.ids, tokens.document_starts)[1:]
        ]
        for shard in inputs.shards(files, 10_000, separator)
    ]


def _joined(shards: list[list[list[int]]]) -> list[list[int]]:
    return [ids for shard in shards for ids in shard]


def _json_lines(path: Path, corpus: Sequence[str]) -> Path:
    path.write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in corpus))
    return path


def test_a_folder_of_text_files(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "books"
    (source / "b").mkdir(parents=True)
    (source / "b" / "1.txt").write_text("second\n")
    (source / "a.txt").write_bytes(b"\xef\xbb\xbffirst \xce\xb1")
    (source / "c.txt").write_text("")
    (source / ".hidden.txt").write_text("hidden")
    (source / "picture.png").write_text("no text")
    out = run(source)
    assert documents_of(out) == as_bytes(["first \u03b1", "second\n"])
    index = read_index(out)
    assert index is not None
    assert (index.tokenizer, index.vocab_size, index.documents, index.tokens) == ("bytes", 256, 2, 15)


@pytest.mark.parametrize("separator", ["<end>", "\n", "ta be"])
def test_a_text_file_is_cut_at_its_separators(tmp_path: Path, separator: str) -> None:
    corpus_text = "<end>".join(texts(200))
    (tmp_path / "corpus.txt").write_text(corpus_text)
    shards = _shards(tmp_path / "corpus.txt", separator=separator.encode())
    assert len(shards) > 5
    assert _joined(shards) == as_bytes([text for text in corpus_text.split(separator) if text])


def test_json_lines(tmp_path: Path) -> None:
    corpus = [*texts(200), "", "last"]
    source = _json_lines(tmp_path / "a.jsonl", corpus)
    source.write_text(source.read_text().replace("\n", "\n\n", 3).rstrip("\n"))
    shards = _shards(source)
    assert len(shards) > 5
    assert _joined(shards) == as_bytes([text for text in corpus if text])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet_with_text(tmp_path: Path, kind: pa.DataType) -> None:
    corpus = [*texts(100), None, "last"]
    table = pa.table({"id": range(102), "content": pa.array(corpus, pa.string()).cast(kind)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    assert _joined(_shards(tmp_path / "a.parquet", text_key="content")) == as_bytes(
        [document for document in corpus if document]
    )


@pytest.mark.parametrize(("kind", "written"), [("uint8", "uint8"), ("uint16", "uint16"), ("int64", "int32")])
def test_parquet_with_token_ids(tmp_path: Path, kind: str, written: str) -> None:
    corpus = [[1, 2, 3], [], [200], [4] * 1000]
    column = pa.array(corpus, pa.large_list(pa.type_for_alias(kind)))
    pq.write_table(pa.table({"input_ids": column}), tmp_path / "a.parquet", row_group_size=2)
    assert _joined(_shards(tmp_path / "a.parquet")) == [ids for ids in corpus if ids]
    assert inputs.find([tmp_path / "a.parquet"], tmp_path / "out", "text").files[0].id_type == written


@pytest.mark.parametrize("kind", ["uint8", "int16", "uint16", "int32", "int64"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_megatron_pair(tmp_path: Path, kind: str, reverse: bool) -> None:
    corpus = [[[number % 100] * (700 + number), [1, 2]] for number in range(100)]
    write_megatron(tmp_path / "set.bin", [*corpus, [], [[5]]], kind, reverse=reverse)
    shards = _shards(tmp_path / "set.idx")
    assert len(shards) > 5
    assert _joined(shards) == [[*first, *second] for first, second in corpus] + [[5]]


def test_inputs_of_several_kinds_in_one_run(run: Run, tmp_path: Path) -> None:
    pair = write_megatron(tmp_path / "set.bin", [[[1, 2], [3]], [[60_000]]])
    pq.write_table(pa.table({"tokens": [[2**20], [7]]}), tmp_path / "a.parquet")
    out = run(pair, tmp_path / "a.parquet")
    assert documents_of(out) == [[1, 2, 3], [60_000], [2**20], [7]]
    assert str(pq.read_schema(out / "tokens-000000.parquet").field("tokens").type.value_type) == "int32"
    index = read_index(out)
    assert index is not None and (index.vocab_size, index.tokenizer, index.tokens) == (2**20 + 1, "ids", 6)


@pytest.mark.slow
def test_any_number_of_workers_writes_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = _json_lines(tmp_path / "a.jsonl", texts(1500))
    for workers in ("1", "3"):
        arguments = ["--shard-mib", "1", "--workers", workers]
        assert prepare.main([str(source), "--out", str(tmp_path / workers), *arguments]) == 0
    assert contents(tmp_path / "1") == contents(tmp_path / "3")
    assert len(contents(tmp_path / "1")) > 4
    capsys.readouterr()


def test_what_it_writes_is_what_is_trained_on(run: Run, tmp_path: Path) -> None:
    corpus = texts(50)
    out = run(_json_lines(tmp_path / "a.jsonl", corpus))
    source = ParquetTokens(out, vocab_size=256, seq_len=64, global_batch=4)
    start = Position(epoch=0, sample=0)
    corpus_bytes = "".join(corpus).encode()
    tokens = source.tokens(start, range(source.num_sequences))
    assert tokens[:, :-1].ravel().tolist() == list(corpus_bytes[: source.num_sequences * 64])
    lengths = [len(text.encode()) for text in corpus]
    first_segments = source.segment_ids(start, [0])[0]
    assert first_segments.tolist() == [n for n, size in enumerate(lengths) for _ in range(size)][:65]


def test_a_tokenizer_from_a_folder(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import tokenizers
    import transformers

    corpus = texts(60)
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(corpus, vocab_size=400, special_tokens=["<end>"])
    trained.enable_truncation(5)  # a folder may carry it; a document is never cut
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, eos_token="<end>")
    fast.save_pretrained(tmp_path / "tokenizer")
    source = _json_lines(tmp_path / "a.jsonl", corpus)
    out = run(source, "--tokenizer", tmp_path / "tokenizer")
    trained.no_truncation()
    expected = [trained.encode(text).ids for text in corpus]
    assert documents_of(out) == [[*ids, fast.eos_token_id] for ids in expected]
    index = read_index(out)
    assert index is not None
    assert (index.tokenizer, index.vocab_size, index.end_of_document) == ("tokenizer", len(fast), fast.eos_token_id)
    saved = transformers.AutoTokenizer.from_pretrained(out / "tokenizer")  # goes with the model that is trained on it
    assert saved("It is.").input_ids == fast("It is.").input_ids and saved.eos_token_id == fast.eos_token_id
    bare = run(source, "--tokenizer", tmp_path / "tokenizer", "--no-end-token", out="bare")
    assert documents_of(bare) == expected
    assert "has no end-of-sequence token" not in capsys.readouterr().err
    transformers.PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer).save_pretrained(tmp_path / "endless")
    assert documents_of(run(source, "--tokenizer", tmp_path / "endless", out="endless-tokens")) == expected
    assert "endless has no end-of-sequence token: no token ends a document" in capsys.readouterr().err


def test_a_finished_folder_is_left_as_it_is(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("text")
    before = contents(run(tmp_path / "a.txt"))
    capsys.readouterr()
    assert contents(run(tmp_path / "a.txt")) == before
    assert "4 tokens of a vocabulary of 256, documents: 1." in capsys.readouterr().out
