"""Requests in OpenAI's form, validated, and turned into jobs of the engine."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    field_validator,
)
from pydantic_core import PydanticCustomError

from agentkv.dialog.calls import FunctionDeclaration
from agentkv.dialog.messages import Chat, MessageTemplate
from agentkv.dialog.schema.prepared import PreparedSchema
from agentkv.serve.body import Body, RequestError
from agentkv.serve.constraints import (
    Constraint,
    Constraints,
    LateCheck,
    exclusive,
    prepared,
    schema_constraint,
)
from agentkv.serve.job import EngineJob, Event
from agentkv.serve.matching import SessionQuery
from agentkv.serve.protocols.openai_answers import ChatAnswer, CompletionAnswer, OpenAIAnswer
from agentkv.serve.protocols.unsupported import CHAT_ONLY, COMPLETIONS_ONLY, find_unsupported
from agentkv.serve.session import CacheSettings
from agentkv.serve.settings import EditMode
from agentkv.settings import YEAR_S

T = TypeVar("T", bound=BaseModel)
Item = TypeVar("Item")
Send = Callable[[Event], None]

Name = Annotated[str, Field(min_length=1, max_length=256)]
FileName = Annotated[str, Field(min_length=1, max_length=1_100)]
StopText = Annotated[str, Field(max_length=256)]
FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
_FailingFast = Annotated[list[Item], Field(fail_fast=True)]


def text_of(content: Any, *, kinds: Sequence[str] = ("text",)) -> Any:
    """Return the text of a message's parts; anything else as it is.

    Args:
        kinds: types of parts with text.

    Raises:
        PydanticCustomError: a part has no text.
    """
    if not isinstance(content, list):
        return content
    texts = []
    for number, part in enumerate(content[:_MOST_PARTS]):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in kinds:
            raise PydanticCustomError(
                "part",
                "part {number} has the type {kind}; this model reads text only, so every part has "
                "the type {kinds}",
                {
                    "number": number,
                    "kind": repr(kind)[:100],
                    "kinds": " or ".join(map(repr, kinds)),
                },
            )
        if not isinstance(part.get("text"), str):
            raise PydanticCustomError("part", "part {number} has no text", {"number": number})
        texts.append(part["text"])
    if len(content) > _MOST_PARTS:
        raise PydanticCustomError("part", "there are more than {most} parts", {"most": _MOST_PARTS})
    return "\n".join(texts)


_MOST_PARTS = 4096


class _CalledFunction(Body):
    name: Name
    arguments: str = "{}"


class _ToolCall(Body):
    id: str = ""
    type: Literal["function"] = "function"
    function: _CalledFunction


class _Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(text_of)] = None
    name: str | None = None
    tool_calls: Annotated[list[_ToolCall], Field(fail_fast=True, max_length=256)] | None = None
    tool_call_id: str | None = None
    function_call: JsonValue = None
    audio: JsonValue = None

    @field_validator("function_call", "audio")
    @classmethod
    def _refuse(cls, given: Any) -> None:
        raise PydanticCustomError("unsupported", "not supported; send content or tool_calls")

    def plain(self) -> dict[str, Any]:
        """Return the message with its content as one text."""
        made: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.name is not None:
            made["name"] = self.name
        if self.tool_calls and self.role == "assistant":
            made["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.tool_call_id is not None and self.role == "tool":
            made["tool_call_id"] = self.tool_call_id
        return made


class _FunctionDefinition(Body):
    name: FunctionName
    description: str = ""
    parameters: dict[str, JsonValue] = {"type": "object", "properties": {}}
    strict: bool | None = None


class _Tool(Body):
    type: Literal["function"]
    function: _FunctionDefinition

    def plain(self) -> dict[str, Any]:
        return self.model_dump(exclude={"function": {"strict"}})


class _ChosenFunction(Body):
    name: FunctionName


class _ToolChoice(Body):
    type: Literal["function"]
    function: _ChosenFunction


class _JsonSchema(Body):
    name: str = ""
    schema_: dict[str, JsonValue] = Field(alias="schema")


class _ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: _JsonSchema | None = None
    schema_: dict[str, JsonValue] | None = Field(default=None, alias="schema")
    """Where llama.cpp and others have the schema."""

    def constraint(self) -> Constraint | None:
        """Return the constraint to JSON; None for text."""
        if self.type == "text":
            return None
        if self.json_schema is not None and self.type == "json_schema":
            param = "response_format.json_schema.schema"
            return schema_constraint(self.json_schema.schema_, param)
        if self.schema_ is not None:
            return schema_constraint(self.schema_, "response_format.schema")
        if self.type == "json_object":
            return schema_constraint({"type": "object"}, "response_format")
        raise RequestError(
            "response_format of type json_schema needs json_schema with a schema",
            param="response_format.json_schema",
        )


class _StreamOptions(Body):
    include_usage: bool = False


class _TemplateSettings(Body, extra="forbid"):
    enable_thinking: bool | None = None


class _OurSettings(Body, extra="forbid"):
    """Settings of the cache, in the member `agentkv`."""

    policy: str | None = None
    budget: int | str | None = None
    session: Name | None = None
    edits: EditMode | None = None
    fork: bool = False
    ttl: Annotated[float, Field(gt=0, le=YEAR_S)] | None = None
    release: bool = False
    restore: FileName | None = None
    save: FileName | None = None


class _Request(Constraints):
    """Parameters that both endpoints share."""

    model_config = ConfigDict(extra="allow")

    _unsupported: ClassVar[Mapping[str, tuple[Any, ...]]]

    model: str | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: int | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False
    response_format: _ResponseFormat = _ResponseFormat()
    prompt_cache_key: Name | None = None
    id_slot: Annotated[int, Field(ge=-1, lt=1_000_000)] | None = None
    agentkv: _OurSettings = _OurSettings()

    _answer: ClassVar[type[OpenAIAnswer]]

    def answer(self, model: str) -> OpenAIAnswer:
        """Return the answer, which the reply has yet to fill."""
        options = self.stream_options
        return self._answer(model, includes_usage=options is not None and options.include_usage)

    def query(
        self, owner: str, header: str | None, allowed: Sequence[CacheSettings]
    ) -> SessionQuery:
        """Return the session that the request asks for.

        Args:
            header: name of the session in a header of the request.
            allowed: settings of caches that requests may choose among; the first is the default.

        Raises:
            RequestError: the server does not allow these settings, or the name is too long.
        """
        name = self.agentkv.session or header or None
        if name is not None and len(name) > 256:
            raise RequestError("the name of a session has at most 256 characters")
        slot = None if self.id_slot is None or self.id_slot < 0 else self.id_slot
        settings, key = self._settings(allowed), self.prompt_cache_key
        ours = self.agentkv
        if ours.fork and slot is not None:
            raise RequestError(
                "a fork gets a slot of its own; leave out id_slot", param="agentkv.fork"
            )
        if ours.fork and ours.restore is not None:
            raise RequestError("a fork is of a session in use; leave out restore or fork")
        return SessionQuery(
            owner,
            settings,
            key,
            name,
            slot,
            edits=ours.edits,
            fork=ours.fork,
            ttl=ours.ttl,
            release=ours.release,
            restore=ours.restore,
            save=ours.save,
        )

    def _settings(self, allowed: Sequence[CacheSettings]) -> CacheSettings | None:
        ours = self.agentkv
        if ours.policy is None and ours.budget is None:
            return None
        policy = ours.policy or allowed[0].policy
        for each in allowed:
            if each.policy == policy and ours.budget in (None, each.budget, str(each.budget)):
                return each
        known = ", ".join(f"{each.policy} ({each.budget})" for each in allowed)
        raise RequestError(
            f"this server has no policy {policy[:100]} with the budget {str(ours.budget)[:100]}; "
            f"it has: {known}",
            param="agentkv",
        )

    def _require_supported(self) -> None:
        """Refuse parameters that would change the reply and are not supported."""
        if found := find_unsupported(self.model_extra or {}, self._unsupported):
            name, instead = found
            raise RequestError(
                f"{name} is not supported; {instead}", param=name, code="unsupported_value"
            )

    def _text_constraint(self) -> Constraint | None:
        """Return what constrains the text of the reply; None for free text."""
        given, format = self.constraint(), self.response_format.constraint()
        if given is not None and format is not None:
            raise exclusive(given.name, "response_format")
        return given or format

    def _job(
        self,
        session: SessionQuery,
        prompt: Chat | str,
        send: Send,
        deadline: float,
        *,
        max_tokens: int | None,
        **own: Any,
    ) -> EngineJob:
        """Return a job with the parameters that both endpoints share."""
        if max_tokens is not None and self.min_tokens > max_tokens:
            raise RequestError(
                f"min_tokens is {self.min_tokens}, and the reply has at most {max_tokens} tokens",
                param="min_tokens",
            )
        temperature = 1.0 if self.temperature is None else self.temperature
        return EngineJob(
            session,
            prompt,
            send,
            deadline,
            max_tokens=max_tokens,
            temperature=temperature if temperature >= _LEAST_TEMPERATURE else 0.0,
            top_p=self.top_p or 1.0,
            seed=self.seed,
            stops=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            min_tokens=self.min_tokens,
            ignores_end=self.ignore_eos,
            **own,
        )


class ChatRequest(_Request):
    """The body of `/v1/chat/completions`."""

    _unsupported, _answer = CHAT_ONLY, ChatAnswer

    messages: Annotated[list[_Message], Field(fail_fast=True, min_length=1, max_length=20_000)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[_Tool], Field(fail_fast=True, max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | _ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Annotated[str, Field(pattern=r"^[a-z]{1,16}$")] | None = None
    chat_template_kwargs: _TemplateSettings = _TemplateSettings()
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None

    def job(
        self, template: MessageTemplate, session: SessionQuery, send: Send, deadline: float
    ) -> EngineJob:
        """Return the job of the engine; `send` and `deadline` are as there.

        Raises:
            RequestError: parameters that are not supported, or contradict each other.
        """
        self._require_supported()
        if self.parallel_tool_calls is False and self.tools and self.tool_choice in (None, "auto"):
            raise RequestError(
                "parallel_tool_calls is not supported where the model decides; leave it out",
                param="parallel_tool_calls",
                code="unsupported_value",
            )
        messages, prefix = self._messages()
        grammar, check = self._grammar(template)
        if grammar is not None and prefix is not None:
            raise RequestError(
                "a reply that continues a message cannot be constrained; leave "
                "continue_final_message out",
                param="continue_final_message",
            )
        thinks, effort = self.chat_template_kwargs.enable_thinking, self.reasoning_effort
        if grammar is not None:
            thinks = False
        if self.reasoning_effort == "none":
            thinks, effort = False, None
        tools, max_tokens = self.tools or (), self.max_completion_tokens
        functions = [
            FunctionDeclaration(each.function.name, each.function.parameters) for each in tools
        ]
        return self._job(
            session,
            Chat(messages, [tool.plain() for tool in tools], thinks, effort, prefix),
            send,
            deadline,
            max_tokens=self.max_tokens if max_tokens is None else max_tokens,
            grammar=grammar,
            check=check,
            num_logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            functions=() if self.tool_choice == "none" else tuple(functions),
        )

    def _messages(self) -> tuple[list[dict[str, Any]], str | None]:
        """Return the messages, and the beginning of the reply if the last one is that."""
        messages = [message.plain() for message in self.messages]
        if self.add_generation_prompt is self.continue_final_message:
            raise RequestError(
                "a reply either begins, with add_generation_prompt, or continues the last message, "
                "with continue_final_message",
                param="add_generation_prompt",
            )
        if not self.continue_final_message:
            return messages, None
        last = messages.pop()
        if last["role"] != "assistant" or not last["content"] or "tool_calls" in last:
            raise RequestError(
                "continue_final_message needs a last message of the assistant with text and "
                f"without calls; found one of the {last['role']}",
                param="continue_final_message",
            )
        return messages, str(last["content"])

    def _grammar(self, template: MessageTemplate) -> tuple[str | None, LateCheck]:
        """Return the grammar of the reply, None for free text, and the check of its end."""
        choice = self.tool_choice
        text = self._text_constraint()
        if isinstance(choice, _ToolChoice):
            name = choice.function.name
            if all(tool.function.name != name for tool in self.tools or ()):
                raise RequestError(
                    f"tool_choice names {name!r}, which is not among tools", param="tool_choice"
                )
        elif choice == "required" and not self.tools:
            raise RequestError(
                "tool_choice is 'required' and there are no tools", param="tool_choice"
            )
        elif choice != "required" and text is None:
            return None, LateCheck()
        must_call = choice == "required" or isinstance(choice, _ToolChoice)
        if must_call and text is not None and not text.name.startswith("response_format"):
            raise exclusive(text.name, "tool_choice")
        schemas = self._schemas(choice)
        functions = [FunctionDeclaration(name, schema.grammar) for name, schema in schemas.items()]
        rule = None if text is None or must_call else text.rule
        return template.grammar(rule, functions), LateCheck(text, schemas)

    def _schemas(self, choice: Any) -> dict[str, PreparedSchema]:
        """Return the schemas of the functions that a constrained reply may call."""
        chosen = choice.function.name if isinstance(choice, _ToolChoice) else None
        return {
            tool.function.name: prepared(
                tool.function.parameters, f"tools.{number}.function.parameters", is_object=True
            )
            for number, tool in enumerate(self.tools or ())
            if choice != "none" and chosen in (None, tool.function.name)
        }


class CompletionRequest(_Request):
    """The body of `/v1/completions`."""

    _unsupported, _answer = COMPLETIONS_ONLY, CompletionAnswer

    prompt: str | _FailingFast[str] | _FailingFast[int]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    def job(
        self, template: MessageTemplate, session: SessionQuery, send: Send, deadline: float
    ) -> EngineJob:
        """Return the job of the engine; `send` and `deadline` are as there.

        Raises:
            RequestError: a parameter that is not supported.
        """
        self._require_supported()
        prompt = self._prompt(template)
        text = self._text_constraint()
        return self._job(
            session,
            prompt if isinstance(prompt, str) else template.decode(prompt),
            send,
            deadline,
            prompt_ids=None if isinstance(prompt, str) else tuple(prompt),
            max_tokens=16 if self.max_tokens is None else self.max_tokens,
            grammar=None if text is None else f"start: value\nvalue: {text.rule}",
            check=LateCheck(text),
            num_logprobs=self.logprobs,
        )

    def _prompt(self, template: MessageTemplate) -> str | list[int]:
        prompt = self.prompt
        if isinstance(prompt, str):
            return prompt
        if len(prompt) == 1 and isinstance(prompt[0], str):
            return prompt[0]
        ids = [each for each in prompt if isinstance(each, int)]
        if len(ids) < len(prompt) or not ids:
            raise RequestError(
                f"a request has one prompt; found {len(prompt)}; send a request for each",
                param="prompt",
            )
        if not all(0 <= id < template.num_ids for id in ids):
            raise RequestError(
                f"the tokenizer lacks ids of the prompt; its largest is {template.num_ids - 1}",
                param="prompt",
            )
        return ids


def parse(kind: type[T], body: bytes) -> T:
    """Validate the body of a request.

    Raises:
        RequestError: it is not JSON, or a parameter is missing or wrong.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise refusal(error) from None


def refusal(error: ValidationError) -> RequestError:
    """Return what a client is told of a body that is not valid."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = ".".join(re.sub(r"[^\w-]", "", str(part)) for part in first["loc"])
    if first["type"] == "json_invalid":
        return RequestError(f"the body is not JSON: {first['msg']}")
    return RequestError(f"{param}: {first['msg']}", param=param[:100] or None)


_LEAST_TEMPERATURE = 0.001
"""Below it the reply is greedy: divided by it, logits would leave the range of float32."""
