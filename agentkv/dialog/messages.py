"""Chat messages as token ids: rendered by the model's own template, and only where they are new.

A stream begins with `opening` and goes on, after each reply, with `following`. The ids of a reply
stay as the model wrote them, even where the template would drop its thoughts or write its calls in
another way. Text of messages never encodes to control tokens.
"""

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentkv.dialog.call_forms import harmony
from agentkv.dialog.calls import (
    CallFormat,
    FunctionDeclaration,
    describe_tools,
    find_format,
    lark_literal,
)
from agentkv.dialog.chat import find_thoughts
from agentkv.dialog.prompt import UntrustedTextTokenizer
from agentkv.dialog.rendering import (
    PROBE_TOOL,
    Message,
    Renderer,
    TemplateError,
    chat_templates,
)
from agentkv.dialog.reply_parts import ReplyParts


@dataclass(frozen=True, slots=True)
class Chat:
    """The messages before a reply, and the settings of their template."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    """Functions that the model may call, in OpenAI's form."""
    thinks: bool | None = None
    """Whether the model shall think before it replies; None: the template decides."""
    effort: str | None = None
    """Effort of its thoughts, for templates that know it."""
    prefix: str | None = None
    """Text with which the reply has begun, and which it continues; None if it has not."""

    @property
    def num_leading(self) -> int:
        """Number of system messages at the beginning."""
        roles = [message["role"] for message in self.messages]
        return next((i for i, role in enumerate(roles) if role not in _SYSTEM), len(roles))


_SYSTEM = ("system", "developer")
_PLAIN_TEMPLATE = (
    "{{ bos_token or '' }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
_CHATML_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_PROBE_TEXT = "probe of text"
_MOST_RENDERED = 100_000
"""Most messages that are rendered to find where each one ends, those rendered again included (our
choice: two seconds; a conversation of 446 messages)."""


class MessageTemplate:
    """The chat template of a model, for lists of messages.

    Where a model has a template `tool_use`, that renders messages with functions. A model without a
    chat template, or with one that drops what users say, gets a built-in one: ChatML if the
    tokenizer has its tokens, otherwise plain text. System messages of a model whose template has no
    place for them begin the first user message. Functions for a model whose template ignores them
    are described in a system message.

    Args:
        tokenizer: a fast tokenizer of transformers.
        end_ids: ids that end a reply, such as those of a generation config.
        name: the template in use, for messages without functions.
        texts: made from the same tokenizer; None: one is made.

    Raises:
        TemplateError: the tokenizer has templates, but no default.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        end_ids: Sequence[int] = (),
        name: str = "default",
        texts: UntrustedTextTokenizer | None = None,
    ) -> None:
        self._tokenizer = texts or UntrustedTextTokenizer(tokenizer.backend_tokenizer)
        self._vocabulary: dict[str, int] = tokenizer.get_vocab()
        built_in = (
            _CHATML_TEMPLATE
            if {"<|im_start|>", "<|im_end|>"} <= self._vocabulary.keys()
            else _PLAIN_TEMPLATE
        )
        templates = chat_templates(tokenizer)
        self._template = templates.get(name, built_in)
        self._renderer = Renderer(tokenizer, self._template)
        if self._renderer.drops_text:
            self._template, self._renderer = built_in, Renderer(tokenizer, built_in)
        nonce = secrets.token_hex(4)
        self._mark = f"\ue002{nonce}\ue003"
        self._cut = f"\ue002{nonce}:\ue003"
        self._guarded = re.compile(f"\ue000{nonce}:(\\d+)\ue001")
        self._guard = f"\ue000{nonce}:{{}}\ue001"
        user = {"role": "user", "content": _PROBE_TEXT}
        reply = {"role": "assistant", "content": self._mark}
        system = {"role": "system", "content": "probe of system"}
        # some templates have no system message, and some move it to the latest user message
        talk = self._try([system, user, reply, user]) or ""
        self._merges_system = "probe of system" not in talk.partition(self._mark)[0]
        self._has_developer = self._shows([{"role": "developer", "content": self._mark}, user])
        self._knows_tools = "probe_of_tools" in (self._try([user], [PROBE_TOOL]) or "")
        shown = self._shown_call(user, {"key": "value"})
        as_text = "" if shown else self._shown_call(user, json.dumps({"key": "value"}))
        self._knows_calls = bool(shown or as_text)
        self._arguments_are_text = bool(as_text)
        """True if the template takes a call's arguments as JSON in a string."""
        self.calls: CallFormat = find_format(shown or as_text or self._template)
        """The form in which the model calls functions."""
        self._is_harmony = {"<|channel|>", "<|message|>"} <= self._vocabulary.keys() and (
            "<|channel|>" in self._template
        )
        pairs = [("<think>", "</think>"), ("<seed:think>", "</seed:think>")]
        named = [pair for pair in pairs if pair[0] in self._vocabulary or pair[0] in self._template]
        self._thoughts = named
        after = (self._try([user, reply, user]) or "").rpartition(self._mark)[2]
        control = self._tokenizer.control_ids
        delimiters = {*harmony.TOKENS, *self.calls.tokens}
        delimiters |= {text for pair in self._thoughts for text in pair}
        spoken = {self._vocabulary[text] for text in delimiters if text in self._vocabulary}
        self._silent = self._tokenizer.special_ids - spoken
        closing = [id for id in self._tokenizer.encode_trusted(after)[:1] if id in control]
        self._end_texts = self._texts_of({*end_ids, *closing}) + ["<|call|>"]
        ends = {*end_ids, *([] if self._is_harmony else closing)} & control
        if tokenizer.eos_token_id is not None:
            ends.add(tokenizer.eos_token_id)
        self.end_ids = frozenset(ends)
        """Ids that end a reply when sampled. They are not fed; what follows a reply begins with
        what the template puts there."""
        self._with_functions = self
        if name == "default" and "tool_use" in templates:
            other = MessageTemplate(
                tokenizer, end_ids=end_ids, name="tool_use", texts=self._tokenizer
            )
            self._with_functions = other
            self.end_ids |= other.end_ids
            self._silent &= other._silent

    @property
    def num_ids(self) -> int:
        """Largest id of the tokenizer, plus one."""
        return max(self._vocabulary.values()) + 1

    @property
    def control(self) -> dict[str, int]:
        """Ids of the tokenizer's control tokens by their text."""
        control = self._tokenizer.control_ids
        return {text: id for text, id in self._vocabulary.items() if id in control}

    def opening(self, chat: Chat, *, at_once: bool = False) -> tuple[list[int], list[int]]:
        """Return the ids of all messages, up to where a reply begins.

        Args:
            at_once: the reply begins without a thought.

        Returns:
            The ids of the functions and the leading system messages, then the others. The first
            list is empty if the template does not render them before all else.

        Raises:
            TemplateError: the template refuses the messages, or drops the text of one.
        """
        if chat.tools and self._with_functions is not self:
            return self._with_functions.opening(chat, at_once=at_once)
        text = self._text(chat.messages, chat, prompts=True)
        self._require_shown(text, chat)
        start = ""
        if 0 < chat.num_leading < len(chat.messages) and not self._merges_system:
            try:
                start = self._text(chat.messages[: chat.num_leading], chat)
            except TemplateError:
                start = ""
        if not text.startswith(start):
            start = ""
        rest = self._skip_thought(text[len(start) :]) if at_once else text[len(start) :]
        return self._encode(start), self._encode(rest)

    def following(self, chat: Chat, num_read: int, *, at_once: bool = False) -> list[int]:
        """Return the ids of the messages after a reply, up to where the next one begins.

        Args:
            num_read: number of messages that the stream has. The last of them is the reply.
            at_once: the next reply begins without a thought.

        Raises:
            TemplateError: the template refuses the messages, or drops the reply or what follows.
        """
        if chat.tools and self._with_functions is not self:
            return self._with_functions.following(chat, num_read, at_once=at_once)
        text = None
        if chat.messages[num_read - 1].get("tool_calls") and self._knows_calls:
            text = self._after_calls(chat, num_read)
        if text is None:
            marked = {"role": "assistant", "content": self._mark}
            text = self._after_mark(_replaced(chat.messages, num_read, marked), chat)
        if text is None:
            raise TemplateError("the model's chat template drops an earlier reply")
        self._require_shown(text, chat, num_read)
        return self._encode(self._skip_thought(text) if at_once else text)

    def by_message(
        self, ids: Sequence[int], chat: Chat, num_read: int = 0
    ) -> list[list[int]] | None:
        """Cut ids after each message.

        Args:
            ids: those that `opening` returned, joined; or `following`, if messages were read.
            num_read: as for `following`.

        Returns:
            The end of the reply, if there is one; each message that was not read, of which the
            first one begins with the functions; and what the next reply begins with. None if the
            template does not render one message after the other, or ids reach across a cut; or
            there are too many messages, as each one is rendered with all those before it.
        """
        if chat.tools and self._with_functions is not self:
            return self._with_functions.by_message(ids, chat, num_read)
        messages, mark, start = chat.messages, "", 0
        counts = range(max(1, num_read), len(messages) + 1)
        if sum(counts) > _MOST_RENDERED:
            return None
        if num_read:
            mark, reply = self._mark, {"role": "assistant", "content": self._mark}
            following = None
            if messages[num_read - 1].get("tool_calls") and self._knows_calls:
                following = self._after_calls(chat, num_read)
            if following is not None:
                reply = self._with_marked_call(messages[num_read - 1])
                after = self._after_mark(_replaced(messages, num_read, reply), chat) or ""
                start = len(after) - len(following)
            messages = _replaced(messages, num_read, reply)
        if not messages:  # the reply goes on from a text
            return [list(ids)]
        try:
            texts = [
                (text.rpartition(mark)[2] if mark else text)[start:]
                for text in self._texts(messages, chat, counts)
            ]
        except TemplateError:
            return None
        whole, last, pieces = texts[-1], 0, []
        for number, text in zip(counts, texts, strict=True):
            end: int | None = len(text)
            if not whole.startswith(text):  # some templates render the last reply differently
                end = self._end_of_reply(messages, chat, number, whole)
            if end is None or end < last:
                return None
            pieces.append(self._encode(whole[last:end]))
            last = end
        num_ids = sum(map(len, pieces))
        pieces.append(list(ids[num_ids:]))
        return pieces if [id for piece in pieces for id in piece] == list(ids) else None

    def _end_of_reply(
        self, messages: Sequence[Message], chat: Chat, number: int, whole: str
    ) -> int | None:
        """Return where the `number`th message, a reply, ends in the text `whole` that ends with all
        messages; None if that cannot be found."""
        if messages[number - 1]["role"] != "assistant":
            return None
        messages = _replaced(messages, number, {"role": "assistant", "content": self._mark})
        try:
            after = self._after_mark(messages, chat, prompts=False)
            own = self._after_mark(messages[:number], chat, prompts=False)
        except TemplateError:
            return None
        if not own or not after or not after.startswith(own) or not whole.endswith(after):
            return None
        return len(whole) - len(after) + len(own)

    def _texts(
        self, messages: Sequence[Message], chat: Chat, counts: Iterable[int]
    ) -> Iterator[str]:
        """Render the first messages, of each of some numbers of them."""
        prepared = [self._prepare(message) for message in messages]
        for count in counts:
            yield self._render(prepared[:count], chat, prompts=False)

    def _after_calls(self, chat: Chat, num_read: int) -> str | None:
        """Return the text after a reply that calls functions; None if it cannot be found."""
        marked = self._with_marked_call(chat.messages[num_read - 1])
        messages = _replaced(chat.messages, num_read, marked)
        text = self._after_mark(messages, chat)
        if text is None:
            return None
        if at := [text.find(end) for end in self._end_texts if end in text]:
            return text[min(at) :]
        own = self._after_mark(messages[:num_read], chat, prompts=False)
        return text[len(own) :] if own and text.startswith(own) else None

    def _with_marked_call(self, reply: Message) -> dict[str, Any]:
        """Return a reply whose last call has the mark in its arguments."""
        *calls, last = reply["tool_calls"]
        function = {**last["function"], "arguments": self._written({self._mark: self._mark})}
        return {**reply, "content": "", "tool_calls": [*calls, {**last, "function": function}]}

    def _after_mark(
        self, messages: Sequence[Message], chat: Chat, *, prompts: bool = True
    ) -> str | None:
        """Return the rendered text after the mark; None if the template drops the mark."""
        _, mark, text = self._text(messages, chat, prompts=prompts).rpartition(self._mark)
        return text if mark else None

    def parts(
        self, ids: Sequence[int], *, functions: Sequence[FunctionDeclaration] = ()
    ) -> ReplyParts:
        """Return what takes the next reply apart.

        Args:
            ids: the latest ids before the reply, as `opening` or `following` returned them.
            functions: those whose calls are taken out of the text.
        """
        if functions and self._with_functions is not self:
            return self._with_functions.parts(ids, functions=functions)
        end = self._tokenizer.decode_all(ids[-16:])
        opened = [begin for begin, _ in self._thoughts if end.rstrip().endswith(begin)]
        return ReplyParts(
            self.calls if functions else None,
            functions=functions,
            thoughts=self._thoughts,
            is_harmony=self._is_harmony,
            in_thought=bool(opened),
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids with their control tokens."""
        return self._tokenizer.decode_all(ids)

    def bytes_of(self, id: int) -> bytes | None:
        """Return the bytes of a token of a reply, which may be a part of a character; None for a
        control token that replies are decoded without."""
        return None if id in self._silent else self._tokenizer.bytes_of(id)

    def decode_reply(self, ids: Sequence[int]) -> str:
        """Decode the ids of a reply with those control tokens that take it apart."""
        return self._tokenizer.decode_all([id for id in ids if id not in self._silent])

    def encode_prompt(self, text: str, *, begins: bool) -> list[int]:
        """Encode a raw prompt, whose control tokens count as such.

        Args:
            begins: True for the beginning of a stream, where the tokenizer may add tokens.
        """
        text = text.encode("utf-8", "replace").decode()
        return self._tokenizer.encode_trusted(text, begins=begins)

    def grammar(
        self, value: str | None = None, functions: Sequence[FunctionDeclaration] = ()
    ) -> str:
        """Return a Lark grammar (llguidance's dialect) of replies without a thought.

        Args:
            value: right side of a Lark rule for what the reply may be.
            functions: functions of which the reply may call one instead.
        """
        if functions and self._with_functions is not self:
            return self._with_functions.grammar(value, functions)
        control = self.control
        rules = []
        if value is not None:
            header = lark_literal(_FINAL, control) if self._is_harmony else ""
            rules.append(f"start: {header} value\nvalue: {value}")
        if functions:
            rules.append(self.calls.grammar(functions, control))
        if len(rules) == 1:
            return rules[0]
        one, other = (
            rule.replace("start:", f"{name}:", 1) for name, rule in zip("ab", rules, strict=True)
        )
        return f"start: a | b\n{one}\n{other}"

    def _skip_thought(self, text: str) -> str:
        # The grammar of a reply in gpt-oss' format names its channel.
        return text if self._is_harmony else find_thoughts(text, self._vocabulary).skipped

    def _shown_call(self, user: Message, arguments: Any) -> str:
        """Return what the template shows of a call and its result; empty if not all of it."""
        function = {"name": "probe_of_tools", "arguments": arguments}
        call = {"id": "probe0000", "type": "function", "function": function}
        called = {"role": "assistant", "content": "", "tool_calls": [call]}
        result = {"role": "tool", "content": self._mark, "tool_call_id": "probe0000"}
        shown = self._try([user, called, result], [PROBE_TOOL]) or ""
        # the functions themselves are listed before the user's message
        after_user = shown.rpartition(_PROBE_TEXT)[2]
        return after_user if self._mark in after_user and "probe_of_tools" in after_user else ""

    def _shows(self, messages: list[Message]) -> bool:
        return self._mark in (self._try(messages) or "")

    def _try(self, messages: list[Message], tools: Sequence[Any] = ()) -> str | None:
        try:
            return self._renderer.render(messages, tools)
        except TemplateError:
            return None

    def _text(self, messages: Sequence[Message], chat: Chat, *, prompts: bool = False) -> str:
        """Render messages, with a guard in place of each control token in their text."""
        continues = prompts and chat.prefix is not None
        if continues:
            messages = [*messages, {"role": "assistant", "content": self._cut}]
        prepared = [self._prepare(message) for message in messages]
        text = self._render(prepared, chat, prompts=prompts and not continues)
        return self._continued(text, chat.prefix or "") if continues else text

    def _render(self, prepared: list[dict[str, Any]], chat: Chat, *, prompts: bool) -> str:
        tools = chat.tools
        if tools and not self._knows_tools:
            functions = [tool["function"] for tool in tools]
            described = self._guard_text(describe_tools(functions, self.calls))
            prepared = _with_system(prepared, described)
            tools = ()
        if self._merges_system:
            prepared = _merge_system(prepared)
        options: dict[str, Any] = {} if chat.thinks is None else {"enable_thinking": chat.thinks}
        if chat.effort is not None:
            options["reasoning_effort"] = chat.effort
        return self._renderer.render(prepared, self._guard_all(tools), prompts=prompts, **options)

    def _continued(self, text: str, prefix: str) -> str:
        """Return rendered text up to the beginning of a reply, which has the text `prefix`."""
        text, mark, _ = text.rpartition(self._cut)
        if not mark or self._is_harmony:
            raise TemplateError(
                "the model's chat template cannot continue a message; leave "
                "continue_final_message out"
            )
        return text + self._guard_text(prefix)

    def _require_shown(self, text: str, chat: Chat, num_read: int = 0) -> None:
        """Raise TemplateError if the text that was rendered for the messages after the first
        `num_read` lacks one of them."""
        at, missing = 0, {}
        for i, message in enumerate(chat.messages[num_read:], num_read):
            said = self._guard_text((message.get("content") or "").strip())
            place = max(text.find(said, at), text.find(said) if at else -1)
            at = max(at, place)
            # what a model says beside a call may be left out
            if place < 0 and not message.get("tool_calls"):
                missing[i] = f"{self._mark[:-1]}:{i}{self._mark[-1]}"
        if not missing:
            return
        # the template may write the text in another way
        marked = [
            {**message, "content": missing[i]} if i in missing else message
            for i, message in enumerate(chat.messages)
        ]
        text = self._text(marked, chat)
        for i, mark in missing.items():
            if mark not in text:
                raise TemplateError(
                    f"the model's chat template drops messages[{i}], from "
                    f"{chat.messages[i]['role']!r}; leave it out, or mend the template"
                )

    def _prepare(self, message: Message) -> dict[str, Any]:
        role = message["role"]
        if role == "developer" and not self._has_developer:
            role = "system"
        made: dict[str, Any] = {**message, "role": role}
        made["content"] = message.get("content") or ""
        if role == "assistant" and not message.get("tool_calls"):
            made.pop("tool_calls", None)
        if message.get("tool_calls"):
            if self._knows_calls:
                made["tool_calls"] = [self._call_of(call) for call in message["tool_calls"]]
            else:
                made["content"] += "".join(map(self._as_text, made.pop("tool_calls")))
        if role == "tool" and not self._knows_calls:
            made = {"role": "user", "content": f"Result of the function:\n{made['content']}"}
        return {key: self._guard_all(value) for key, value in made.items()}

    def _call_of(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call with its arguments as the template takes them."""
        function = _with_arguments(call)["function"]
        return {**call, "function": {**function, "arguments": self._written(function["arguments"])}}

    def _as_text(self, call: Mapping[str, Any]) -> str:
        function = _with_arguments(call)["function"]
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
        return f"\n{self.calls.write(function['name'], arguments)}"

    def _written(self, arguments: Any) -> Any:
        return json.dumps(arguments, ensure_ascii=False) if self._arguments_are_text else arguments

    def _guard_all(self, value: Any) -> Any:
        """Guard the control tokens in all text of a JSON value."""
        match value:
            case str():
                return self._guard_text(value)
            case Mapping():
                return {self._guard_text(k): self._guard_all(v) for k, v in value.items()}
            case list() | tuple():
                return [self._guard_all(each) for each in value]
            case _:
                return value

    def _guard_text(self, text: str) -> str:
        """Put a guard in place of each control token, so that a template cannot mistake it."""
        text = text.encode("utf-8", "replace").decode()
        if text in (self._mark, self._cut):
            return text
        return self._tokenizer.replace_control(text, self._guard)

    def _encode(self, text: str) -> list[int]:
        """Encode rendered text: guards as text, all else as the template's own."""
        parts = self._guarded.split(text)
        texts = self._tokenizer.control_texts
        guarded = {part: self._tokenizer.encode(texts[int(part)]) for part in set(parts[1::2])}
        own = self._tokenizer.encode_each_trusted(parts[::2])
        ids = list(own[0])
        for guard, after in zip(parts[1::2], own[1:], strict=True):
            ids += guarded[guard]
            ids += after
        return ids

    def _texts_of(self, ids: set[int]) -> list[str]:
        return [text for text, id in self._vocabulary.items() if id in ids]


_FINAL = "<|channel|>final<|message|>"


def _replaced(messages: Sequence[Message], number: int, other: Message) -> list[Message]:
    """Return messages with another one in place of the `number`th, counted from 1."""
    return [*messages[: number - 1], other, *messages[number:]]


def _with_system(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Return messages whose system message ends with `text`."""
    if messages and messages[0]["role"] in _SYSTEM:
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _with_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call with its arguments as a value, as templates expect them."""
    function = dict(call["function"])
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            function["arguments"] = {"text": arguments}
    return {**call, "function": function}


def _merge_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages whose leading system messages begin the first other one."""
    texts = []
    rest = list(messages)
    while rest and rest[0]["role"] in _SYSTEM:
        texts.append(rest.pop(0)["content"])
    if not texts:
        return rest
    if not rest or rest[0]["role"] != "user":
        return [{"role": "user", "content": "\n\n".join(texts)}, *rest]
    first = {**rest[0], "content": "\n\n".join([*texts, rest[0]["content"]])}
    return [first, *rest[1:]]
