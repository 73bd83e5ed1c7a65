"""A model provider for inspect_ai: `agentkv/nano`, `agentkv//path/to/model` or a hub id.

inspect_ai finds it by the entry point of the installed package. The samples of an evaluation keep
their caches, so each turn reads only what is new.
"""

import json
import secrets
from concurrent.futures import Future
from contextlib import ExitStack
from time import monotonic
from typing import Any

from agentkv.adapters.packages import PackageMissing

try:
    import anyio
    from inspect_ai.model import (
        ChatCompletionChoice,
        ChatMessage,
        ChatMessageAssistant,
        ChatMessageTool,
        ContentReasoning,
        ContentText,
        GenerateConfig,
        ModelAPI,
        ModelOutput,
        ModelUsage,
        modelapi,
    )
    from inspect_ai.tool import ToolCall, ToolChoice, ToolFunction, ToolInfo
except ModuleNotFoundError as error:
    raise PackageMissing("inspect_ai", "pip install 'agentkv-web[inspect]'") from error

_UNKNOWN_SETTINGS = ("logprobs", "best_of", "extra_body", "modalities", "reasoning_tokens")
"""Settings of inspect_ai that change replies and are not known here; the server's requests refuse
others."""
_SAME = (
    *("top_p", "top_k", "seed", "frequency_penalty", "presence_penalty", "logit_bias"),
    *("parallel_tool_calls", "reasoning_effort"),
)
"""Settings that have the same name and meaning in OpenAI's protocol."""
_LONGEST_S = 24 * 3600.0
"""Time limit of a reply in seconds. inspect_ai sets stricter limits."""


@modelapi(name="agentkv")
def agentkv() -> type[ModelAPI]:
    """Return the provider of `agentkv/...` models."""
    return AgentkvAPI


class AgentkvAPI(ModelAPI):
    """A local model with a lasting cache for each sample of an evaluation.

    Args:
        model_name: a name for `agentkv.load_model`.
        base_url, api_key: without effect.
        config: settings of inspect_ai; `temperature`, `top_p`, `max_tokens`, `seed`, `stop_seqs`,
            `reasoning_effort` and `response_schema` count.
        policy, budget: as in `agentkv.Cache.for_model`.
        max_chats: samples that run at the same time, in one batch.
        memory: bytes of all caches, such as `4GiB`; others go to a temporary folder. None: a
            quarter of the device's.
        model_args: further options of `agentkv.load_model`, such as `device`.

    Raises:
        ModelError: no such model can be loaded.
        ValueError: unknown policy, or a budget that it cannot keep.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008  # as in inspect_ai's own
        *,
        policy: str | None = None,
        budget: int | str | None = None,
        max_chats: int = 8,
        memory: str | None = None,
        **model_args: Any,
    ) -> None:
        super().__init__(model_name=model_name, base_url=base_url, api_key=api_key, config=config)
        from agentkv.defaults import POLICY  # imports take seconds
        from agentkv.models.load import load_model
        from agentkv.serve.command import running_engine
        from agentkv.serve.settings import ServeSettings
        from agentkv.settings import LARGEST

        settings = ServeSettings.read(
            model=model_name,
            policies=(policy or POLICY,),
            budget=budget,
            memory=memory,
            parallel=max_chats,
            max_tokens=2**31,
            queue=LARGEST,
        )
        self._stack = ExitStack()
        self._engine = self._stack.enter_context(
            running_engine(load_model(model_name, **model_args), settings)
        )
        self._max_chats = max_chats

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """Return the reply to a list of messages; see `ModelAPI.generate`.

        Raises:
            ValueError: a setting that changes replies and is not known here, a message that is not
                text, messages that the model's chat template refuses, or a schema that is no
                grammar.
        """
        from agentkv.models.model import ContextLimit

        _require_known(config)
        reply = _Reply()
        job = self._job(reply, input, tools, tool_choice, config)
        self._engine.submit(job)
        try:
            end = await anyio.to_thread.run_sync(reply.end.result, abandon_on_cancel=True)
        except ContextLimit as error:
            return ModelOutput.from_content(
                self.model_name, str(error), stop_reason="model_length", error=str(error)
            )
        finally:
            job.is_cancelled = True
        reasons = {"stop": "stop", "length": "max_tokens", "tool_calls": "tool_calls"}
        choice = ChatCompletionChoice(
            message=reply.message(self.model_name), stop_reason=reasons[end.reason]
        )
        return ModelOutput(
            model=self.model_name,
            choices=[choice],
            usage=ModelUsage(
                input_tokens=end.num_prompt - end.num_cached,
                input_tokens_cache_read=end.num_cached,
                output_tokens=end.num_written,
                reasoning_tokens=end.num_thought,
                total_tokens=end.num_prompt + end.num_written,
            ),
            time=monotonic() - job.asked_at,
        )

    def _job(
        self,
        reply: "_Reply",
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> Any:
        from agentkv.serve.matching import SessionQuery
        from agentkv.serve.protocols.openai_requests import ChatRequest

        schema = config.response_schema
        choice: Any = {"any": "required"}.get(str(tool_choice), tool_choice)
        if isinstance(tool_choice, ToolFunction):
            choice = {"type": "function", "function": {"name": tool_choice.name}}
        asked = {
            "messages": [_plain(message) for message in input],
            "tools": [
                {"type": "function", "function": tool.model_dump(mode="json", exclude_none=True)}
                for tool in tools
            ],
            "tool_choice": choice,
            "response_format": schema
            and {
                "type": "json_schema",
                "json_schema": {
                    "name": schema.name,
                    "schema": schema.json_schema.model_dump(mode="json", exclude_none=True),
                },
            },
            "max_tokens": config.max_tokens or self.max_tokens(),
            "temperature": config.temperature or 0.0,
            "stop": config.stop_seqs,
            "n": config.num_choices,
            **{name: getattr(config, name) for name in _SAME},
        }
        given = {name: value for name, value in asked.items() if value is not None}
        request = ChatRequest.model_validate(given)
        deadline = monotonic() + _LONGEST_S
        return request.job(self._engine.template, SessionQuery("inspect"), reply, deadline)

    def max_tokens(self) -> int | None:
        """Return the tokens of a reply unless an evaluation sets them."""
        return 2048

    def max_connections(self) -> int:
        """Return the number of samples that run at the same time."""
        return self._max_chats

    def collapse_user_messages(self) -> bool:
        """Return True: chat templates want roles to alternate."""
        return True

    def close(self) -> None:
        """End all replies and free the caches."""
        self._stack.close()


class _Reply:
    """Collects the events of a reply."""

    def __init__(self) -> None:
        self.end: Future[Any] = Future()
        """Receives the last event, or the error that ended the reply."""
        self._texts = {"content": "", "reasoning": ""}
        self._calls: list[ToolCall] = []

    def __call__(self, event: Any) -> None:
        """Take an event; called from the engine's thread."""
        from agentkv.dialog.calls import Call
        from agentkv.serve.job import ReplyDelta, ReplyFailure

        if isinstance(event, ReplyFailure):
            self.end.set_exception(event.error)
        elif not isinstance(event, ReplyDelta):
            self.end.set_result(event)
        else:
            for part in event.parts:
                if isinstance(part, Call):
                    arguments = json.loads(part.arguments)
                    id = f"call_{secrets.token_hex(4)}"
                    self._calls.append(ToolCall(id=id, function=part.name, arguments=arguments))
                else:
                    self._texts[part.kind] += part.text

    def message(self, model: str) -> ChatMessageAssistant:
        """Return the reply as a message."""
        text, thought = self._texts["content"], self._texts["reasoning"]
        content: Any = text
        if thought:
            content = [ContentReasoning(reasoning=thought), ContentText(text=text)]
        return ChatMessageAssistant(
            content=content, tool_calls=self._calls or None, model=model, source="generate"
        )


def _plain(message: ChatMessage) -> dict[str, Any]:
    """Return a message in OpenAI's form. Raises ValueError if it holds more than text."""
    if not isinstance(message.content, str) and any(
        part.type not in ("text", "reasoning") for part in message.content
    ):
        raise ValueError(f"a {message.role} message holds more than text, which is not read")
    plain: dict[str, Any] = {"role": message.role, "content": message.text}
    if isinstance(message, ChatMessageAssistant) and message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function, "arguments": json.dumps(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if isinstance(message, ChatMessageTool):
        plain["tool_call_id"] = message.tool_call_id or ""
    return plain


def _require_known(config: GenerateConfig) -> None:
    for name in _UNKNOWN_SETTINGS:
        if value := getattr(config, name, None):
            raise ValueError(f"found {name}={value!r}, which agentkv does not have; leave it out")
