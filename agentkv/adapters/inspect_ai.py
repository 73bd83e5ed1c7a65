"""A model provider for inspect_ai: `agentkv/nano`, `agentkv//path/to/model` or a hub id.

inspect_ai finds it by the entry point of the installed package. The samples of an evaluation keep
their caches, so each turn reads only what is new.
"""

import json
import re
import secrets
from collections.abc import Sequence
from typing import Any

from agentkv.adapters.packages import PackageMissing

try:
    import anyio
    from inspect_ai.model import (
        ChatCompletionChoice,
        ChatMessage,
        ChatMessageAssistant,
        ChatMessageTool,
        GenerateConfig,
        ModelAPI,
        ModelOutput,
        ModelUsage,
        modelapi,
    )
    from inspect_ai.tool import ToolCall, ToolChoice, ToolInfo
except ModuleNotFoundError as error:
    raise PackageMissing("inspect_ai", "pip install 'agentkv-web[inspect]'") from error

_UNKNOWN_SETTINGS = (
    *("top_p", "top_k", "frequency_penalty", "presence_penalty", "logit_bias", "logprobs"),
    *("response_schema", "num_choices"),
)
"""Settings of inspect_ai that change replies, and that our sampler does not have."""
_MAX_WRITTEN = 10_000
"""Replies whose ids are kept; older ones are encoded anew, and their chats read again."""


@modelapi(name="agentkv")
def agentkv() -> type[ModelAPI]:
    """Return the provider of `agentkv/...` models."""
    return AgentkvAPI


class AgentkvAPI(ModelAPI):
    """A local model with a lasting cache for each sample of an evaluation.

    Args:
        model_name: a name for `agentkv.load_model`.
        base_url, api_key: without effect.
        config: settings of inspect_ai; `temperature`, `max_tokens`, `seed` and `stop_seqs` count.
        policy, budget: as in `agentkv.Cache.for_model`.
        max_chats: samples that run at the same time, each with a cache.
        model_args: further options of `agentkv.load_model`, such as `device`.

    Raises:
        ModelError: no such model can be loaded, or it has no chat template.
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
        **model_args: Any,
    ) -> None:
        super().__init__(model_name=model_name, base_url=base_url, api_key=api_key, config=config)
        from transformers import AutoTokenizer  # imports take seconds

        from agentkv.adapters.chats import Chats
        from agentkv.defaults import POLICY
        from agentkv.models.find import find_model
        from agentkv.models.load import load_model

        local = load_model(model_name, **model_args)
        tokenizer = AutoTokenizer.from_pretrained(
            find_model(model_name), local_files_only=True, trust_remote_code=False
        )
        new_cache = local.with_cache(policy or POLICY, budget=budget).new_cache
        self._chats = Chats(local, tokenizer, new_cache, max_chats=max_chats)
        self._max_chats = max_chats
        self._written: dict[str, tuple[str, tuple[int, ...]]] = {}
        """Content and ids of the replies, by the ids of their messages."""

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
                text, or messages that the model's chat template refuses.
        """
        from agentkv.adapters.chats import Sampling
        from agentkv.models.model import ContextLimit

        _require_known(config)
        names = [] if tool_choice == "none" else tools
        sampling = Sampling(
            max_tokens=config.max_tokens or self.max_tokens() or 1,
            temperature=config.temperature or 0.0,
            seed=config.seed or 0,
            stops=tuple(config.stop_seqs or ()),
        )
        future = self._chats.reply(
            [self._message(each) for each in input],
            sampling,
            tools=[
                {"type": "function", "function": tool.model_dump(mode="json", exclude_none=True)}
                for tool in names
            ],
        )
        try:
            written = await anyio.to_thread.run_sync(future.result, abandon_on_cancel=True)
        except ContextLimit as error:
            return ModelOutput.from_content(
                self.model_name, str(error), stop_reason="model_length", error=str(error)
            )
        finally:
            future.cancel()
        content, calls = read_tool_calls(written.text, names)
        message = ChatMessageAssistant(
            content=content, tool_calls=calls or None, model=self.model_name, source="generate"
        )
        assert message.id is not None, "inspect_ai gives each message an id"
        self._written[message.id] = (content, written.ids)
        while len(self._written) > _MAX_WRITTEN:
            del self._written[next(iter(self._written))]
        reason = "tool_calls" if calls else "stop" if written.is_complete else "max_tokens"
        return ModelOutput(
            model=self.model_name,
            choices=[ChatCompletionChoice(message=message, stop_reason=reason)],
            usage=ModelUsage(
                input_tokens=written.num_prompt_tokens - written.num_cached_tokens,
                input_tokens_cache_read=written.num_cached_tokens,
                output_tokens=len(written.ids),
                total_tokens=written.num_prompt_tokens + len(written.ids),
            ),
            time=written.seconds,
        )

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
        self._chats.close()

    def _message(self, message: ChatMessage) -> Any:
        from agentkv.adapters.chats import Message

        if not isinstance(message.content, str) and any(
            part.type not in ("text", "reasoning") for part in message.content
        ):
            raise ValueError(f"a {message.role} message holds more than text, which is not read")
        content, ids = self._written.get(message.id or "", ("", None))
        text = message.text
        name = (message.function or "") if isinstance(message, ChatMessageTool) else ""
        if isinstance(message, ChatMessageAssistant):
            if ids is not None and content != text:
                ids = None  # the evaluation rewrote the reply
            text += "".join(map(_write_tool_call, message.tool_calls or ()))
        return Message(message.role, text, ids, name)


_CALL = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)


def read_tool_calls(text: str, tools: Sequence[ToolInfo]) -> tuple[str, list[ToolCall]]:
    """Return a reply without its tool calls, and the calls.

    Reads the format of Hermes and Qwen: JSON with `name` and `arguments` between `<tool_call>` and
    `</tool_call>`. A call that is not such JSON keeps a `parse_error` for the model.

    Args:
        tools: without tools the whole reply is text.
    """
    if not tools:
        return text, []
    calls = []
    for found in _CALL.finditer(text):
        name, problem = "unknown", None
        arguments: dict[str, Any] = {}
        try:
            call = json.loads(found[1])
            name, given = str(call["name"]), call.get("arguments") or {}
            if not isinstance(given, dict):
                raise TypeError("arguments are no object")
            arguments = given
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            problem = f"expected JSON with name and arguments: {type(error).__name__}: {error}"
        calls.append(
            ToolCall(
                id=f"call_{secrets.token_hex(4)}",
                function=name,
                arguments=arguments,
                parse_error=problem,
            )
        )
    return _CALL.sub("", text).strip() if calls else text, calls


def _write_tool_call(call: ToolCall) -> str:
    written = json.dumps({"name": call.function, "arguments": call.arguments})
    return f"\n<tool_call>\n{written}\n</tool_call>"


def _require_known(config: GenerateConfig) -> None:
    for name in _UNKNOWN_SETTINGS:
        value = getattr(config, name, None)
        if value and not (name == "num_choices" and value == 1):
            raise ValueError(
                f"found {name}={value!r}, which agentkv does not have; it samples by temperature, "
                "seed, max_tokens and stop_seqs"
            )
