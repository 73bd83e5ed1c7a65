"""Answers in the form of OpenAI's Responses: items, whole or in events."""

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from agentkv.dialog.calls import Call
from agentkv.dialog.reply_parts import TextPart
from agentkv.serve.job import ReplyDelta, ReplyEnd
from agentkv.serve.protocols.answer import Answer, Failure, Json, as_event, cache_use_of
from agentkv.serve.protocols.openai_answers import new_call_id, openai_error
from agentkv.serve.protocols.responses_items import CALL_PREFIX, new_id

Status = Literal["in_progress", "completed", "incomplete", "failed"]


@dataclass(slots=True)
class ResponsesAnswer(Answer):
    """The answer of `/v1/responses`.

    A reply is one item per thought, text and call, in the order in which they were written. A reply
    without text and calls is an empty message, so that the conversation has a reply to go on from.

    Args:
        told: what the answer repeats of its request.
        keep: takes the whole answer, before the client is told that it is complete.
    """

    told: Json
    keep: Callable[[Json], None]
    id: str = field(init=False)
    """Identifies the response."""
    _created: int = field(init=False)
    _output: list[Json] = field(default_factory=list, init=False)
    _open: Json | None = field(default=None, init=False)
    """The last item of the output, if it still grows."""
    _pieces: list[str] = field(default_factory=list, init=False)
    """Text of the open item."""
    _num_events: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.id = new_id("resp")
        self._created = int(time.time())

    error = staticmethod(openai_error)

    def error_event(self, failure: Failure) -> bytes:
        known = {400: "invalid_prompt", 429: "rate_limit_exceeded"}  # the protocol has few codes
        error: Json = {
            "code": known.get(failure.status, "server_error"),
            "message": failure.message,
            "param": failure.param,
            "type": failure.code or openai_error(failure)["error"]["type"],
        }
        closing = b"".join(self._close("incomplete"))
        return closing + self._event(
            "response.failed", response=self._response("failed", error=error)
        )

    def first_events(self) -> Iterator[bytes]:
        for name in ("created", "in_progress"):
            yield self._event(f"response.{name}", response=self._response("in_progress"))

    def events(self, delta: ReplyDelta) -> Iterator[bytes]:
        for part in delta.parts:
            if isinstance(part, Call):
                yield from self._close()
                yield from self._call(part)
            else:
                yield from self._grow(part)

    def last_events(self, end: ReplyEnd) -> Iterator[bytes]:
        yield from self._finish(end)
        body = self._ended(end)
        yield self._event(f"response.{body['status']}", response=body)

    def whole(self, end: ReplyEnd) -> Json:
        for _ in self._finish(end):
            pass
        return self._ended(end)

    # ---- items

    def _call(self, call: Call) -> Iterator[bytes]:
        """Add a call, which comes in one piece."""
        self.calls.append(call)
        item: Json = {"type": "function_call", "id": new_id("fc"), "arguments": ""}
        item |= {"call_id": f"{CALL_PREFIX}{new_call_id()}", "name": call.name}
        yield from self._add(item)
        place = self._place(item)
        item["arguments"] = call.arguments
        yield self._event("response.function_call_arguments.delta", **place, delta=call.arguments)
        yield self._event(
            "response.function_call_arguments.done", **place, arguments=call.arguments
        )
        yield self._done(item, "completed")

    def _grow(self, part: TextPart) -> Iterator[bytes]:
        """Add text to the open item, or to a new one."""
        kind = "reasoning"
        if part.kind == "content":
            kind = "message"
            self.content.append(part.text)
        item = self._open
        if item is None or item["type"] != kind:
            yield from self._close()
            item = yield from self._begin(kind)
        self._pieces.append(part.text)
        yield self._text_event(item, "delta", delta=part.text)

    def _begin(self, kind: str) -> Generator[bytes, None, Json]:
        """Add a message or a thought without text; return it."""
        item: Json = {"type": kind, "content": []}
        if kind == "message":
            item |= {"id": new_id("msg"), "role": "assistant"}
        else:
            item |= {"id": new_id("rs"), "summary": []}
        yield from self._add(item)
        yield self._part_event("added", item, "")
        self._open = item
        return item

    def _close(self, status: Status = "completed") -> Iterator[bytes]:
        """End the open item, if there is one."""
        item, text = self._open, "".join(self._pieces)
        if item is None:
            return
        self._open, self._pieces = None, []
        yield self._text_event(item, "done", text=text)
        yield self._part_event("done", item, text)
        item["content"] = [_part(item, text)]
        yield self._done(item, status)

    def _finish(self, end: ReplyEnd) -> Iterator[bytes]:
        """End the last item of a reply."""
        status: Status = "incomplete" if end.reason == "length" else "completed"
        has_text = any(item["type"] == "message" for item in self._output)
        if not self.calls and not has_text:
            yield from self._close(status)
            yield from self._begin("message")
        yield from self._close(status)

    def _add(self, item: Json) -> Iterator[bytes]:
        item["status"] = "in_progress"
        self._output.append(item)
        index = len(self._output) - 1
        yield self._event("response.output_item.added", output_index=index, item=item)

    def _done(self, item: Json, status: Status) -> bytes:
        item["status"] = status
        index = len(self._output) - 1
        return self._event("response.output_item.done", output_index=index, item=item)

    def _part_event(self, name: str, item: Json, text: str) -> bytes:
        place, part = self._place(item), _part(item, text)
        return self._event(f"response.content_part.{name}", **place, content_index=0, part=part)

    def _text_event(self, item: Json, name: str, **own: Any) -> bytes:
        own |= {**self._place(item), "content_index": 0}
        if item["type"] == "reasoning":
            return self._event(f"response.reasoning_text.{name}", **own)
        return self._event(f"response.output_text.{name}", **own, logprobs=[])

    def _place(self, item: Json) -> Json:
        """Return where the last item is."""
        return {"item_id": item["id"], "output_index": len(self._output) - 1}

    # ---- bodies

    def _ended(self, end: ReplyEnd) -> Json:
        """Return the complete response, and let it be kept."""
        body = self._response("incomplete" if end.reason == "length" else "completed", end)
        self.keep(body)
        return body

    def _response(
        self, status: Status, end: ReplyEnd | None = None, error: Json | None = None
    ) -> Json:
        is_cut = status == "incomplete"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": self.model,
            "output": self._output,
            "usage": end and _usage_of(end),
            **self.told,
        }

    def _event(self, name: str, **members: Any) -> bytes:
        number, self._num_events = self._num_events, self._num_events + 1
        return as_event({"type": name, "sequence_number": number, **members}, name)


def _part(item: Json, text: str) -> Json:
    """Return the one part of an item with text."""
    if item["type"] == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage_of(end: ReplyEnd) -> Json:
    """Return the usage of a request, with what the cache holds in `agentkv`."""
    return {
        "input_tokens": end.num_prompt,
        "input_tokens_details": {
            "cached_tokens": end.num_cached,
            "cache_write_tokens": end.num_prompt - end.num_cached,
        },
        "output_tokens": end.num_written,
        "output_tokens_details": {"reasoning_tokens": end.num_thought},
        "total_tokens": end.num_prompt + end.num_written,
        "agentkv": cache_use_of(end),
    }
