"""Chats as documents: an assistant's tokens alone are marked, packing cuts none, and what is no chat is told."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

import platform.train.preparing.command as prepare
from platform.common.errors import InputError
from platform.train.preparing import inputs
from platform.train.preparing.chats import ChatEncoder, ChatSettings
from platform.train.preparing.documents import Chats, documents
from platform.train.preparing.mixing import parts_of
from platform.train.preparing.packing import Packer
from platform.train.preparing.skipping import Skipped
from platform.train.preparing.tokenizer import Tokenizer, load, with_template
from scripts.tiny_chat import CHATML, save_tokenizer
from tests.train.preparing.chat_templates import MARKED, PLAIN, THINKING, THINKING_TOOLS, TOOLS
from trainers import data
from trainers.data.flags import FLAG, UNTRAINED
from trainers.data.footer import Tokens
from trainers.data.index import read_index
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

LENGTH = 72
CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "the question"},
    {"role": "assistant", "content": "the answer ☃"},
    {"role": "user", "content": "\n\nmore?"},
    {"role": "assistant", "content": "\n yes, one\n"},
]


def _tokenizer(folder: Path, template: str = CHATML) -> Tokenizer:
    return with_template(load(str(save_tokenizer(folder, template)), with_end=True), None)


def _marked_text(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the text of each run of marked tokens."""
    chat = ChatEncoder(tokenizer).encode(messages)
    assert chat.marks is not None
    fast = transformers.AutoTokenizer.from_pretrained(tokenizer.source)
    borders = np.flatnonzero(np.diff(chat.marks.astype(int), prepend=0, append=0)).reshape(-1, 2)
    return [fast.decode(chat.ids[begin:end]) for begin, end in borders]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return _tokenizer(tmp_path_factory.mktemp("tokenizer") / "chat")


def test_an_assistants_tokens_alone_are_marked_with_the_end_of_its_turn(tokenizer: Tokenizer) -> None:
    assert _marked_text(tokenizer, CHAT) == ["the answer ☃<|im_end|>", "\n yes, one\n<|im_end|>"]


def test_marks_are_those_that_transformers_finds_in_a_template_that_has_them(tmp_path: Path) -> None:
    tokenizer = _tokenizer(tmp_path / "marked", MARKED)
    fast = transformers.AutoTokenizer.from_pretrained(tokenizer.source)
    options: dict[str, Any] = {"return_dict": True, "return_assistant_tokens_mask": True}
    plain = [{**message, "content": message["content"].strip()} for message in CHAT]
    expected = fast.apply_chat_template(plain, **options)
    for template in (MARKED, CHATML):
        chat = ChatEncoder(_tokenizer(tmp_path / str(len(template)), template)).encode(plain)
        assert chat.marks is not None
        assert chat.ids.tolist() == expected["input_ids"]
        assert chat.marks.astype(int).tolist() == expected["assistant_masks"]


def test_turns_are_found_where_a_template_writes_the_last_one_otherwise(tmp_path: Path) -> None:
    texts = _marked_text(_tokenizer(tmp_path / "thinking", THINKING), CHAT)
    assert texts == ["the answer ☃<|im_end|>", "<think>\n\n</think>\n\nyes, one<|im_end|>"]


CALLING: dict[str, Any] = {
    "tools": [{"name": "clock"}],
    "messages": [CHAT[1], {"role": "assistant", "content": None, "tool_calls": [{"name": "clock"}]}],
}


def test_tools_and_their_calls_are_written_by_the_template(tmp_path: Path) -> None:
    tokenizer = _tokenizer(tmp_path / "tools", TOOLS)
    (tmp_path / "chats.jsonl").write_text(json.dumps(CALLING) + "\n")
    (chat,) = _read(tmp_path / "chats.jsonl", tokenizer, Skipped(lambda: False), ChatSettings())
    assert chat.marks is not None
    text = transformers.AutoTokenizer.from_pretrained(tokenizer.source).decode(chat.ids)
    assert text.startswith("<|im_start|>tool clock<|im_end|>")
    assert chat.marks.sum() < len(chat.ids) / 2
    assert transformers.AutoTokenizer.from_pretrained(tokenizer.source).decode(chat.ids[chat.marks]) == (
        "CALL clock<|im_end|>"
    )


def test_a_call_without_text_is_found_where_a_template_writes_the_last_turn_otherwise(tmp_path: Path) -> None:
    """Checks a chat as tools have it: a call alone, the tool's answer, and words; arguments are JSON in text."""
    call = {"type": "function", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}
    turns = [
        CHAT[1],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "noon"},
        {"role": "assistant", "content": "it is noon"},
    ]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": turns, "tools": [{"name": "clock"}]}) + "\n")
    tokenizer = _tokenizer(tmp_path / "thinking", THINKING_TOOLS)
    (chat,) = _read(tmp_path / "chats.jsonl", tokenizer, Skipped(lambda: False), ChatSettings())
    assert chat.marks is not None
    marked = transformers.AutoTokenizer.from_pretrained(tokenizer.source).decode(chat.ids[chat.marks])
    assert marked == 'CALL clock {"zone": "UTC"}<|im_end|><think>\n\n</think>\n\nit is noon<|im_end|>'


def test_a_chat_whose_calls_the_template_reads_is_taken_though_it_refuses_the_turns_without_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "chats.jsonl").write_text(json.dumps(CALLING) + "\n")
    loop = "{%- for m in messages %}"
    empty = "{%- if not m.content and not m.tool_calls %}{{ raise_exception('empty') }}{%- endif %}"
    tokenizer = _tokenizer(tmp_path / "strict", TOOLS.replace(loop, loop + empty))
    assert _read(tmp_path / "chats.jsonl", tokenizer, Skipped(lambda: False), ChatSettings())


def test_a_token_that_an_answer_shares_with_the_words_before_it_is_marked(tmp_path: Path) -> None:
    tokenizer = _tokenizer(tmp_path / "plain", PLAIN)
    assert ChatEncoder(tokenizer).turn_end == ""
    answer = {"role": "assistant", "content": "plus one"}
    assert _marked_text(tokenizer, [CHAT[1], answer]) == [" plus one\n"]


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{{ raise_exception('no system role') }}", "refuses a question with its answer: no system role"),
        ("{{ messages | length }}", "what stands before turn 2 of a question with its answer otherwise"),
    ],
)
def test_a_template_of_no_use_is_told_before_anything_is_read(tmp_path: Path, template: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        ChatEncoder(_tokenizer(tmp_path / "broken", template))


def test_a_missing_template_is_told_and_can_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, chats = save_tokenizer(tmp_path / "base", ""), tmp_path / "chats.jsonl"
    chats.write_text(json.dumps({"messages": CHAT}) + "\n")
    argv = [str(chats), "--out", str(tmp_path / "out"), "--workers", "1", "--chat"]
    assert prepare.main([*argv, "--tokenizer", str(folder)]) == 2
    assert "has no chat template, as tokenizers of base models: give --chat-template FILE" in capsys.readouterr().err
    assert prepare.main(argv) == 2
    assert "--chat needs --tokenizer FOLDER" in capsys.readouterr().err
    (tmp_path / "chat.jinja").write_text(CHATML)
    tokenizer = with_template(load(str(folder), with_end=True), tmp_path / "chat.jinja")
    tokenizer.save(tmp_path / "saved")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "saved").chat_template == CHATML


_BAD = {
    '{"messages": [{"role": "user", "content": "x"}]}': "line 2 of F has no assistant's turn",
    '{"messages": [{"role": "human", "content": "x"}]}': 'turn 1 of line 2 of F has the unknown role "human"',
    '{"messages": [{"role": "user", "content": 3}]}': "the content of turn 1 in line 2 of F must be text, got 3",
    '{"messages": [1]}': 'turn 1 of line 2 of F must have a "role" and a "content"',
    '{"messages": "x"}': '"messages" in line 2 of F must be a list of turns',
    json.dumps({**CALLING, "tools": "clock"}): '"tools" in line 2 of F must be a list of JSON schemas, got "clock"',
    json.dumps(CALLING): 'the template writes nothing of "tools" in line 2 of F: give one that does by --chat-template',
    json.dumps({"messages": CALLING["messages"]}): 'the template writes nothing of "tool_calls" in line 2 of F',
    '{"messages": [], "prompt": "x"}': "line 2 of F mixes forms of a chat",
    '{"prompt": "x"}': '"completion" in line 2 of F must be text, got null',
    '{"text": "x"}': "line 2 of F is no chat",
    "[]": "line 2 of F is not a JSON object",
    "{": "line 2 of F is not JSON",
}


def _read(path: Path, tokenizer: Tokenizer, skipped: Skipped, settings: ChatSettings) -> list[Tokens]:
    files = inputs.find([path], path.parent / "out", "text").files
    chats = Chats(encoder=ChatEncoder(tokenizer), settings=settings)
    return [
        tokens
        for shard in inputs.shards(files, 2**20, None)
        for piece in shard.pieces
        for tokens, _ in documents(
            piece, encode=tokenizer.encoder(), text_key="text", separator=None, skipped=skipped, chats=chats
        )
        if len(tokens.ids)
    ]


@pytest.mark.parametrize("line", _BAD)
def test_what_is_no_chat_is_told_with_its_line_and_may_be_passed_over(
    tmp_path: Path, tokenizer: Tokenizer, line: str
) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(f'{{"prompt": "a", "completion": "b"}}\n{line}\n{{"instruction": "a", "output": "b"}}\n')
    with pytest.raises(InputError) as caught:
        _read(path, tokenizer, Skipped(lambda: False), ChatSettings())
    assert _BAD[line].replace("F", str(path)) in str(caught.value)
    skipped = Skipped(lambda: True)
    first, second = _read(path, tokenizer, skipped, ChatSettings())
    assert first.ids.tolist() == second.ids.tolist(), "both forms are a question and its answer"
    assert skipped.counts.total() == 1


def test_over_long_chats_are_left_out_or_cut_and_counted(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "chats.jsonl"
    lines = [{"messages": CHAT}, {"prompt": "a", "completion": "b"}, {"prompt": "what is " * 99, "completion": "b"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    dropped, cut = Skipped(lambda: False), Skipped(lambda: False)
    (short,) = _read(path, tokenizer, dropped, ChatSettings(pack=LENGTH))
    assert dict(dropped.counts) == {f"longer than the {LENGTH} tokens of --pack": 2}
    first, second = _read(path, tokenizer, cut, ChatSettings(pack=LENGTH, over_long="cut"))
    assert len(first.ids) == LENGTH and second.ids.tolist() == short.ids.tolist()
    assert sorted(cut.counts.values()) == [1, 1], "one is cut, one has no answer in what is left"


def test_packing_keeps_every_document_whole_and_fills_sequences(tokenizer: Tokenizer) -> None:
    lengths = np.random.default_rng(0).integers(3, 65, 3000)
    packer, packed = Packer(64, pad_id=2), list[Tokens]()
    for number, length in enumerate(lengths):
        ids = np.full(length, number + 3)
        document = Tokens(ids=ids, document_starts=np.zeros(1, np.int64), marks=np.ones(length, np.bool_))
        packed += packer.add(document)
    packed += packer.close(is_last=True)
    ids, marks = (np.concatenate([getattr(document, name) for document in packed]) for name in ("ids", "marks"))
    assert len(packed) == len(lengths) and len(ids) % 64 == 1
    assert np.array_equal(marks, ids > 2), "padding has no mark"
    assert packer.padding == (ids == 2).sum() < 0.03 * len(ids)
    assert np.bincount(ids)[3:].tolist() == lengths.tolist()
    for sequence in ids[:-1].reshape(-1, 64):
        numbers = [number for number in np.unique(sequence) if number > 2]
        assert all((sequence == number).sum() == lengths[number - 3] for number in numbers)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    """Returns a folder of packed chats."""
    root = tmp_path_factory.mktemp("packed")
    lines = [{"prompt": "the question", "completion": "the answer " * (1 + i % 5)} for i in range(60)]
    (root / "chats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    argv = [str(root / "chats.jsonl"), "--out", str(root / "out"), "--tokenizer", tokenizer.source, "--workers", "1"]
    assert prepare.main([*argv, "--chat", "--pack", str(LENGTH)]) == 0
    return root / "out"


def _recipe(folder: Path, **changes: Any) -> Recipe:
    model = ModelSpec(name="m", architecture="llama", num_layers=1, hidden_size=8, num_heads=1, vocab_size=512)
    return Recipe(model=model, seq_len=LENGTH, global_batch=2, data=str(folder), **changes)


def test_the_marks_of_packed_chats_are_read_with_their_tokens(folder: Path, tokenizer: Tokenizer) -> None:
    index = read_index(folder)
    assert index is not None and index.sequence_tokens == LENGTH and index.documents == 60
    marked = data.source(_recipe(folder, trained_tokens="marked", attention_mask="document"))
    source = data.plain_source(_recipe(folder))
    assert isinstance(source, data.ParquetTokens) and source.num_trained == index.trained
    everything = range(source.num_sequences)
    assert source.num_sequences * LENGTH == index.tokens - 1
    tokens, ids = (
        marked.tokens(marked.position_after(0), everything),
        source.tokens(source.position_after(0), everything),
    )
    assert np.array_equal(tokens % FLAG, ids)
    fast = transformers.AutoTokenizer.from_pretrained(folder / "tokenizer")
    trained = fast.decode(ids[:, :-1][tokens[:, :-1] < UNTRAINED])
    assert set(trained.replace("<|im_end|>", "").split()) == {"the", "answer"} and trained.count("<|im_end|>") == 60
    starts = ids[tokens & FLAG > 0]
    assert fast.decode(np.unique(starts)) == "<|im_start|>", "a document begins a sequence or is flagged"
    assert index.trained == (tokens[:, :-1] < UNTRAINED).sum()


def test_data_with_marks_set_the_loss_of_their_recipe(folder: Path) -> None:
    stream = dataclasses.replace(_recipe(folder), data="stream")
    assert data.with_data(stream, str(folder)).trained_tokens == "marked"
    assert data.with_data(stream, "included").trained_tokens == "all"


def test_marks_and_lengths_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="packed for sequences of 72 tokens, got seq_len 16: give --set seq_len=72"):
        data.source(dataclasses.replace(_recipe(folder), seq_len=16))
    with pytest.raises(ValueError, match="marks no tokens to train on"):
        data.source(_recipe(Path("included"), trained_tokens="marked"))
    with pytest.raises(InputError, match="marks tokens to train on, which would be lost"):
        inputs.find([next(folder.glob("*.parquet"))], tmp_path / "out", "text")
    with pytest.raises(InputError, match="was packed for sequences of one length"):
        parts_of([Path(f"{folder}:0.5"), Path(f"{folder}:0.5")])
