"""Requests in OpenAI's form, validated, and turned into what the engine is asked."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from agentkv.dialog.calls import Function
from agentkv.dialog.messages import Chat, MessageTemplate
from agentkv.serve.job import Ask
from agentkv.serve.session import CacheSettings
from agentkv.serve.sessions import Wanted

T = TypeVar("T", bound=BaseModel)
Item = TypeVar("Item")

Name = Annotated[str, Field(min_length=1, max_length=256)]
StopText = Annotated[str, Field(max_length=256)]
FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class RequestError(ValueError):
    """A request that cannot be answered as it is.

    Args:
        param: the parameter that is wrong.
        code: OpenAI's code for the error.
        status: HTTP status.
    """

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


_FailingFast = Annotated[list[Item], Field(fail_fast=True)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class _TextPart(_Body):
    type: Literal["text"]
    text: str


class _CalledFunction(_Body):
    name: Name
    arguments: str = "{}"


class _ToolCall(_Body):
    id: str = ""
    type: Literal["function"] = "function"
    function: _CalledFunction


class _Message(_Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[_TextPart], Field(fail_fast=True, max_length=4096)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[_ToolCall], Field(fail_fast=True, max_length=256)] | None = None
    tool_call_id: str | None = None

    def plain(self) -> dict[str, Any]:
        """Return the message with its content as one text."""
        content = self.content
        if isinstance(content, list):
            content = "\n".join(part.text for part in content)
        made: dict[str, Any] = {"role": self.role, "content": content}
        if self.name is not None:
            made["name"] = self.name
        if self.tool_calls and self.role == "assistant":
            made["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.tool_call_id is not None and self.role == "tool":
            made["tool_call_id"] = self.tool_call_id
        return made


class _FunctionDefinition(_Body):
    name: FunctionName
    description: str = ""
    parameters: dict[str, JsonValue] = {"type": "object", "properties": {}}
    strict: bool | None = None


class _Tool(_Body):
    type: Literal["function"]
    function: _FunctionDefinition

    def plain(self) -> dict[str, Any]:
        return self.model_dump(exclude={"function": {"strict"}})


class _ChosenFunction(_Body):
    name: FunctionName


class _ToolChoice(_Body):
    type: Literal["function"]
    function: _ChosenFunction


class _JsonSchema(_Body):
    name: str = ""
    schema_: dict[str, JsonValue] = Field(alias="schema")


class _ResponseFormat(_Body):
    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: _JsonSchema | None = None


class _StreamOptions(_Body):
    include_usage: bool = False


class _TemplateSettings(_Body):
    enable_thinking: bool | None = None


class _OurSettings(_Body):
    """Settings of the cache, in the member `agentkv`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: str | None = None
    budget: int | str | None = None
    session: Name | None = None


class _Request(_Body):
    """Parameters that both endpoints share."""

    model: str | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: int | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    prompt_cache_key: Name | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    id_slot: Annotated[int, Field(ge=-1, lt=1_000_000)] | None = None
    agentkv: _OurSettings = _OurSettings()

    @property
    def includes_usage(self) -> bool:
        """True if a stream ends with a chunk that has the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end the reply."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def require_supported(self) -> None:
        """Refuse parameters that would change the reply and are not supported."""
        unsupported = {
            "n": self.n not in (None, 1),
            "presence_penalty": bool(self.presence_penalty),
            "frequency_penalty": bool(self.frequency_penalty),
            "logit_bias": bool(self.logit_bias),
            "top_k": (self.top_k or 0) > 0,
            "min_p": bool(self.min_p),
            "repetition_penalty": self.repetition_penalty not in (None, 1),
            "repeat_penalty": self.repeat_penalty not in (None, 1),
            "min_tokens": bool(self.min_tokens),
            "ignore_eos": bool(self.ignore_eos),
            **self._further_unsupported,
        }
        for name, is_given in unsupported.items():
            if is_given:
                raise RequestError(
                    f"{name} is not supported; leave it out", param=name, code="unsupported_value"
                )

    @property
    def _further_unsupported(self) -> dict[str, bool]:
        """Parameters of one endpoint alone, and whether they would change the reply."""
        return {}

    @property
    def _sampling_temperature(self) -> float:
        """The temperature; greedy where logits divided by it would leave the range of float32."""
        given = 1.0 if self.temperature is None else self.temperature
        return given if given >= _LEAST_TEMPERATURE else 0.0


class ChatRequest(_Request):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[_Message], Field(fail_fast=True, min_length=1, max_length=20_000)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: _ResponseFormat = _ResponseFormat()
    tools: Annotated[list[_Tool], Field(fail_fast=True, max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | _ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: JsonValue = None
    function_call: JsonValue = None
    reasoning_effort: Annotated[str, Field(pattern=r"^[a-z]{1,16}$")] | None = None
    chat_template_kwargs: _TemplateSettings = _TemplateSettings()

    @property
    def _further_unsupported(self) -> dict[str, bool]:
        has_tools = bool(self.tools) and self.tool_choice in (None, "auto")
        return {
            "functions": bool(self.functions),
            "function_call": self.function_call not in (None, "none", "auto"),
            "parallel_tool_calls": self.parallel_tool_calls is False and has_tools,
        }

    def ask(self, template: MessageTemplate, wanted: Wanted) -> Ask:
        """Return what the engine is asked.

        Raises:
            RequestError: parameters that contradict each other.
        """
        self.require_supported()
        grammar = self._grammar(template)
        thinks = self.chat_template_kwargs.enable_thinking
        if grammar is not None or self.reasoning_effort == "none":
            thinks = False
        return Ask(
            wanted,
            Chat(
                [message.plain() for message in self.messages],
                [tool.plain() for tool in self.tools or ()],
                thinks,
                None if self.reasoning_effort == "none" else self.reasoning_effort,
            ),
            max_tokens=_first(self.max_completion_tokens, self.max_tokens),
            temperature=self._sampling_temperature,
            top_p=self.top_p or 1.0,
            seed=self.seed,
            stops=self.stops,
            grammar=grammar,
            num_logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            functions=() if self.tool_choice == "none" else self._functions,
        )

    @property
    def _functions(self) -> tuple[Function, ...]:
        """The functions that the model is given."""
        return tuple(
            Function(tool.function.name, tool.function.parameters) for tool in self.tools or ()
        )

    def _grammar(self, template: MessageTemplate) -> str | None:
        """Return the grammar of the reply; None for free text."""
        functions: Sequence[Function] = self._functions
        schema = self._schema()
        choice = self.tool_choice
        if isinstance(choice, _ToolChoice):
            functions = [each for each in functions if each.name == choice.function.name]
            if not functions:
                raise RequestError(
                    f"tool_choice names {choice.function.name!r}, which is not among tools",
                    param="tool_choice",
                )
            return template.grammar(functions=functions)
        if choice == "required":
            if not functions:
                raise RequestError(
                    "tool_choice is 'required' and there are no tools", param="tool_choice"
                )
            return template.grammar(functions=functions)
        if schema is None:
            return None
        return template.grammar(schema, [] if choice == "none" else functions)

    def _schema(self) -> dict[str, JsonValue] | None:
        """Return the JSON schema of the reply; None for text."""
        match self.response_format.type:
            case "text":
                return None
            case "json_object":
                return {"type": "object"}
        given = self.response_format.json_schema
        if given is None:
            raise RequestError(
                "response_format of type json_schema needs json_schema with a schema",
                param="response_format.json_schema",
            )
        return given.schema_


class CompletionRequest(_Request):
    """The body of `/v1/completions`."""

    prompt: str | _FailingFast[str] | _FailingFast[int]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    def ask(self, template: MessageTemplate, wanted: Wanted) -> Ask:
        """Return what the engine is asked.

        Raises:
            RequestError: a parameter that is not supported.
        """
        self.require_supported()
        prompt = self._prompt(template)
        return Ask(
            wanted,
            prompt if isinstance(prompt, str) else template.decode(prompt),
            None if isinstance(prompt, str) else tuple(prompt),
            max_tokens=16 if self.max_tokens is None else self.max_tokens,
            temperature=self._sampling_temperature,
            top_p=self.top_p or 1.0,
            seed=self.seed,
            stops=self.stops,
            num_logprobs=self.logprobs,
        )

    @property
    def _further_unsupported(self) -> dict[str, bool]:
        return {
            "echo": bool(self.echo),
            "suffix": bool(self.suffix),
            "best_of": self.best_of not in (None, 1),
        }

    def _prompt(self, template: MessageTemplate) -> str | list[int]:
        prompt = self.prompt
        if isinstance(prompt, str):
            return prompt
        if len(prompt) == 1 and isinstance(prompt[0], str):
            return prompt[0]
        ids = [each for each in prompt if isinstance(each, int)]
        if len(ids) < len(prompt) or not ids:
            raise RequestError(
                f"a request has one prompt; found {len(prompt)}; send one request each",
                param="prompt",
            )
        if not all(0 <= id < template.num_ids for id in ids):
            raise RequestError(
                f"the prompt has ids that the tokenizer does not know; they end at "
                f"{template.num_ids - 1}",
                param="prompt",
            )
        return ids


def parse(kind: type[T], body: bytes) -> T:
    """Return the request in a body.

    Raises:
        RequestError: it is not JSON, or a parameter is missing or wrong.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = ".".join(re.sub(r"[^\w-]", "", str(part)) for part in first["loc"])
        if first["type"] == "json_invalid":
            raise RequestError(f"the body is not JSON: {first['msg']}") from None
        raise RequestError(f"{param}: {first['msg']}", param=param[:100] or None) from None


def settings_of(request: _Request, allowed: Sequence[CacheSettings]) -> CacheSettings | None:
    """Return the settings of the cache that a request asks for; None if it asks for none.

    Raises:
        RequestError: the server does not allow them.
    """
    ours = request.agentkv
    if ours.policy is None and ours.budget is None:
        return None
    policy = ours.policy or allowed[0].policy
    fitting = [
        each
        for each in allowed
        if each.policy == policy and ours.budget in (None, each.budget, str(each.budget))
    ]
    if not fitting:
        known = ", ".join(f"{each.policy} ({each.budget})" for each in allowed)
        raise RequestError(
            f"this server has no policy {policy} with the budget {ours.budget}; it has: {known}",
            param="agentkv",
        )
    return fitting[0]


_LEAST_TEMPERATURE = 0.001


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
