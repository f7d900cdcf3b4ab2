"""Encodes chats by a tokenizer's template, and marks the tokens that the assistant writes.

A template is a program and may write a turn differently if others follow. So each turn is located in the text of the
whole chat: it begins where the preceding chat with the generation prompt ends, and ends with the text that the template
writes after an answer. A template with `{% generation %}` marks the assistant's text itself.
"""

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from platform.common.errors import InputError, one_line
from platform.train.preparing.tokenizer import Tokenizer, loaded_tokenizer
from trainers.data.footer import Tokens
from trainers.spec.codec import json_object

OverLong = Literal["drop", "cut"]
ROLES = ("system", "developer", "user", "assistant", "tool")
_PAIRS = (("prompt", "completion"), ("instruction", "output"))
"""Keys of a question and its answer."""
_FORMS = "messages, prompt and completion, or instruction and output"
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_PROBE = ({"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."})

_CALLS = "tool_calls"

Message = Mapping[str, Any]


class ChatError(ValueError):
    """A problem of a chat: a sentence with LINE for its position, and the reason shared by problems of its kind."""

    def __init__(self, words: str, reason: str) -> None:
        super().__init__(words)
        self.words, self.reason = words, reason


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ChatSettings:
    """Settings that convert chats to documents."""

    pack: int = 0
    """Length in tokens of the sequences into which chats are packed; 0 for no packing."""
    over_long: OverLong = "drop"
    """Whether chats longer than `pack` are left out or cut."""


def messages_of(line: Mapping[str, Any]) -> list[Message]:
    """Returns the messages of a JSON line.

    Raises:
        ChatError: the line has no messages or several forms of them, or a turn has no text or an unknown role.
    """
    pairs = [pair for pair in _PAIRS if pair[0] in line or pair[1] in line]
    if len(pairs) + ("messages" in line) != 1:
        keys = ", ".join(map(str, line)) or "none"
        if pairs or "messages" in line:
            raise ChatError(f"LINE mixes forms of a chat ({_FORMS}), its keys: {keys}", "mixed forms of a chat")
        raise ChatError(f"LINE is no chat: it needs {_FORMS}, its keys: {keys}", "no chat")
    if pairs:
        ((question, answer),) = pairs
        for key in (question, answer):
            if not isinstance(line.get(key), str):
                shown = json.dumps(line.get(key))[:60]
                raise ChatError(f'"{key}" in LINE must be text, got {shown}', f'no text at "{key}"')
        full_question = "\n\n".join(filter(None, (line[question], line.get("input") if answer == "output" else None)))
        return [{"role": "user", "content": full_question}, {"role": "assistant", "content": line[answer]}]
    messages = line["messages"]
    if not isinstance(messages, list):
        raise ChatError('"messages" in LINE must be a list of turns', 'no list at "messages"')
    for number, message in enumerate(messages, start=1):
        _check(message, number)
    if not any(message["role"] == "assistant" for message in messages):
        raise ChatError("LINE has no assistant's turn: there is nothing to train on", "no assistant's turn")
    return [_as_templates_read(message) for message in messages]


def _as_templates_read(message: Message) -> Message:
    """Returns the message in the form that templates expect: null content as "", JSON arguments of calls as objects.

    Templates would encode arguments that are JSON text a second time.
    """
    read = {**message, "content": message.get("content") or ""}
    if calls := message.get(_CALLS):
        read[_CALLS] = [_with_parsed_arguments(call) for call in calls]
    return read


def _with_parsed_arguments(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    call = {key: _with_parsed_arguments(value) if key == "function" else value for key, value in call.items()}  # type: ignore[reportUnknownVariableType]
    if isinstance(text := call.get("arguments"), str):
        with contextlib.suppress(ValueError):
            return {**call, "arguments": json_object(text)}
    return call  # type: ignore[reportUnknownVariableType]


def _check(message: Any, number: int) -> None:
    if not isinstance(message, dict) or "role" not in message:
        raise ChatError(f'turn {number} of LINE must have a "role" and a "content"', "a turn without a role")
    role, content = message["role"], message.get("content")  # type: ignore[reportUnknownVariableType]
    if role not in ROLES:
        raise ChatError(
            f"turn {number} of LINE has the unknown role {json.dumps(role)[:40]}: known are {', '.join(ROLES)}",
            "an unknown role",
        )
    if not isinstance(content, str) and (content is not None or not message.get(_CALLS)):  # type: ignore[reportUnknownMemberType]
        shown = json.dumps(content)[:60]
        raise ChatError(f"the content of turn {number} in LINE must be text, got {shown}", "a turn without text")


def tools_of(line: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the JSON schemas of the tools that a JSON line offers to the assistant.

    Raises:
        ChatError: they are not a list of objects.
    """
    tools = line.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):  # type: ignore[reportUnknownVariableType]
        shown = json.dumps(tools)[:60]
        raise ChatError(f'"tools" in LINE must be a list of JSON schemas, got {shown}', 'no list at "tools"')
    return tools  # type: ignore[reportUnknownVariableType]


class ChatEncoder:
    """Encodes chats by a tokenizer and its template, in the calling process.

    Raises:
        InputError: the template fails on a question with its answer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        import tokenizers

        self._template, self._id_type = tokenizer.chat_template, tokenizer.id_type
        self._renderer: Any = loaded_tokenizer(tokenizer.source)
        self._tokenizer = tokenizers.Tokenizer.from_str(tokenizer.definition)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._special = {token.content for token in self._tokenizer.get_added_tokens_decoder().values()}
        try:
            text, ((_, end),) = self._spans(_PROBE)
        except ChatError as error:
            words = error.words.replace("LINE", "a question with its answer", 1)
            raise InputError(f"the chat template of {tokenizer.name} is of no use here: {words}") from error
        self.turn_end = next((token for token in self._special if text[:end].endswith(token)), "")
        """The special token that ends an assistant's turn; "" if there is none."""

    def encode(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Tokens:
        """Returns a chat as one document with marks; the template also writes `tools`.

        Raises:
            ChatError: the template refuses the chat, omits tools or calls, or does not show the position of an
                assistant's turn.
        """
        text, spans = self._spans(messages, tools)
        without = [{key: value for key, value in message.items() if key != _CALLS} for message in messages]
        calls = any(message.get(_CALLS) for message in messages)
        for key, is_there, plain in (("tools", tools, (messages,)), (_CALLS, calls, (without, tools))):
            if is_there and text == self._text_or_none(*plain):
                raise ChatError(
                    f'the template writes nothing of "{key}" in LINE: give one that does by --chat-template, or leave'
                    " that key out",
                    f'"{key}" that the template leaves out',
                )
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        begins, ends = np.array(encoding.offsets, np.int64).reshape(-1, 2).T
        marks = np.zeros(len(begins), np.bool_)
        for begin, end in spans:
            marks |= (ends > begin) & (begins < end)
        marks[:1] = False  # a document's first token is never predicted
        if not marks.any():
            raise ChatError("LINE has no token of an assistant", "no assistant's token")
        return Tokens(ids=np.array(encoding.ids, self._id_type), document_starts=np.zeros(1, np.int64), marks=marks)

    def _text_or_none(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str | None:
        """Returns the chat's text; None if the template refuses it, which shows that it reads the removed part."""
        try:
            return self._spans(messages, tools)[0]
        except ChatError:
            return None

    def _spans(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[str, list[tuple[int, int]]]:
        """Returns the chat's text, and the begin and end of each assistant's turn in it."""
        if _GENERATION.search(self._template):
            from transformers.utils.chat_template_utils import render_jinja_template

            (text,), (spans,) = self._render(
                lambda: render_jinja_template(
                    [[dict(message) for message in messages]],
                    tools=[dict(tool) for tool in tools] or None,
                    chat_template=self._template,
                    return_assistant_tokens_mask=True,
                    **self._renderer.special_tokens_map,
                )
            )
            return text, [(begin, end) for begin, end in spans]
        text = self._rendered(messages, tools=list(tools) or None)
        return text, list(self._turns(text, messages, tools=list(tools) or None))

    def _turns(self, text: str, messages: Sequence[Message], **options: Any) -> Iterator[tuple[int, int]]:
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._rendered(messages[:number], add_generation_prompt=True, **options)
            if not text.startswith(before):
                raise ChatError(
                    f"the template writes what stands before turn {number + 1} of LINE otherwise where that turn"
                    " follows, so that its beginning is not known: mark it by {% generation %} in the template",
                    "a template that hides where a turn begins",
                )
            through = self._rendered(messages[: number + 1], **options)
            if text.startswith(through):
                end = len(through)
            else:  # the template shortens earlier turns, for example their reasoning
                words = message["content"].strip()  # empty if the turn only calls a tool
                closing = through[through.rfind(words) + len(words) :].strip() if words else self.turn_end
                end = text.find(closing, len(before)) + len(closing) if closing else 0
            if end <= len(before):
                raise ChatError(
                    f"the template does not show where turn {number + 1} of LINE ends: mark it by"
                    " {% generation %} in the template",
                    "a template that hides where a turn ends",
                )
            # A blank after the token that ends a turn belongs to the template: the model stops before it.
            stripped = text[:end].rstrip()
            yield len(before), len(stripped) if stripped.endswith(tuple(self._special)) else end

    def _rendered(self, messages: Sequence[Message], **options: Any) -> str:
        return self._render(
            lambda: self._renderer.apply_chat_template(
                list(messages), chat_template=self._template, tokenize=False, **options
            )
        )

    def _render(self, render: Any) -> Any:
        try:
            return render()
        except Exception as error:  # templates may raise any error
            raise ChatError(f"the template refuses LINE: {one_line(error)}", "refused by the template") from error
