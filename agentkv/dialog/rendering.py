"""The chat templates of a tokenizer: which there are, and in what form each takes messages."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
"""A message in OpenAI's form: role, content as text, tool_calls and so on."""


class TemplateError(ValueError):
    """Chat templates that cannot be used, or messages that one of them cannot render."""


def chat_templates(tokenizer: Any) -> dict[str, str]:
    """Return the chat templates of a tokenizer of transformers by name; empty if it has none.

    `default` is one of them, and a further one may be `tool_use`, for messages with functions.

    Raises:
        TemplateError: there are templates, but none is the default.
    """
    found = getattr(tokenizer, "chat_template", None) or {}
    named = {"default": found} if isinstance(found, str) else dict(found)
    if named and "default" not in named:
        raise TemplateError(
            f"the chat templates are named {', '.join(sorted(named))}, and none is named default; "
            "name the one for conversations default"
        )
    return named


class Renderer:
    """Renders messages by one chat template.

    Templates take the content of a message as text, or as a list of parts; some take it as text
    from one role and as parts from another. Which, is found by rendering a text in both forms.

    Args:
        tokenizer: a tokenizer of transformers, which runs the template.
        template: the template's source.
    """

    def __init__(self, tokenizer: Any, template: str) -> None:
        self._tokenizer, self._template = tokenizer, template
        self._takes_parts: dict[str, bool] = {}
        """By role, whether content is a list of parts; text for roles that are not here."""
        self.drops_text = False
        """True if the template renders messages of users without what they say."""
        for role, talks in _PROBES.items():
            self._find_form(role, talks)

    def render(
        self,
        messages: Iterable[Message],
        tools: Sequence[Any] = (),
        *,
        prompts: bool = False,
        **options: Any,
    ) -> str:
        """Render messages whose content is text.

        Args:
            tools: functions, in OpenAI's form.
            prompts: end with what a reply begins with.
            options: further variables of the template.

        Raises:
            TemplateError: the template refuses the messages.
        """
        formed = [self._formed(message) for message in messages]
        try:
            text: str = self._tokenizer.apply_chat_template(
                formed,
                tools=list(tools) or None,
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=prompts,
                **options,
            )
        except Exception as error:  # a template is a program and may raise anything
            reason = " ".join(str(error).split())[:300]
            raise TemplateError(
                f"the model's chat template refuses these messages: {reason}"
            ) from None
        return text

    def _formed(self, message: Message) -> Message:
        if not self._takes_parts.get(message["role"]):
            return message
        return {**message, "content": [{"type": "text", "text": message["content"]}]}

    def _find_form(self, role: str, talks: Sequence[Sequence[Message]]) -> None:
        found = dict(self._takes_parts)
        is_dropped = False
        for takes_parts in (False, True):
            # roles whose form is not known yet are tried in the same one
            self._takes_parts = dict.fromkeys(_PROBES, takes_parts) | found | {role: takes_parts}
            for talk in talks:
                try:
                    text = self.render(talk, [PROBE_TOOL] if role == "tool" else ())
                except TemplateError:
                    continue
                if _PROBE in text:
                    self._takes_parts = found | {role: takes_parts}
                    return
                is_dropped = True
        self._takes_parts = found
        self.drops_text |= is_dropped and role == "user"


PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_of_tools",
        "description": "probe",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}},
    },
}
"""A function for finding out what a template does with functions."""
_PROBE = "27182818284590"
"""Nothing that a template would write in another way."""


def _message(role: str, content: str, **more: Any) -> Message:
    return {"role": role, "content": content, **more}


def _called(arguments: Any) -> Message:
    function = {"name": "probe_of_tools", "arguments": arguments}
    call = {"id": "probe0000", "type": "function", "function": function}
    return _message("assistant", "", tool_calls=[call])


_SYSTEM, _USER = _message("system", "system"), _message("user", "user")
_RESULT = _message("tool", _PROBE, tool_call_id="probe0000", name="probe_of_tools")
_PROBES: dict[str, list[list[Message]]] = {
    "user": [[_message("user", _PROBE)], [_SYSTEM, _message("user", _PROBE)]],
    "system": [[_message("system", _PROBE), _USER]],
    "developer": [[_message("developer", _PROBE), _USER]],
    "assistant": [
        [_USER, _message("assistant", _PROBE), _USER],
        [_SYSTEM, _USER, _message("assistant", _PROBE), _USER],
    ],
    "tool": [[_USER, _called({"key": "value"}), _RESULT], [_USER, _called('{"key": 1}'), _RESULT]],
}
"""By role, conversations that a template shows `_PROBE` of; a template may refuse some."""
