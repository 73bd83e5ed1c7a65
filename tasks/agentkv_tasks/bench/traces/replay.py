"""Replays a trace against a server, and counts what a prefix cache would read."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentkv.dialog.messages import Chat, MessageTemplate
from agentkv.dialog.rendering import Message
from agentkv.models.stream import common_start
from agentkv_tasks.bench.serve.client import ask
from agentkv_tasks.bench.traces.contenders import TraceContender, TraceServer
from agentkv_tasks.bench.traces.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class Replayed:
    """One request as it was answered."""

    num_prompt: int
    num_read: int
    num_prefix_read: int
    how: str
    first_token_s: float


class PrefixCache:
    """Counts the tokens that a server reads that keeps every prompt with its reply, without any
    limit, and goes on from the longest one that a new prompt begins with."""

    def __init__(self, template: MessageTemplate) -> None:
        self._template = template
        self._streams: dict[str, list[int]] = {}

    def num_read(self, messages: Sequence[Message]) -> int:
        """Return the tokens of a prompt that are read."""
        ids = self._ids(messages)
        shared = max((common_start(ids, each) for each in self._streams.values()), default=0)
        # the last token is always read, for its logits
        return len(ids) - min(shared, len(ids) - 1)

    def keep(self, session: str, messages: Sequence[Message], reply: str) -> None:
        """Keep a prompt with its reply."""
        said: list[Message] = [*messages, {"role": "assistant", "content": reply}]
        self._streams[session] = self._ids([*said, {"role": "user", "content": ""}])

    def _ids(self, messages: Sequence[Message]) -> list[int]:
        return [id for part in self._template.opening(Chat(messages)) for id in part]


class Replay:
    """Sends the requests of a trace to a contender, one after the other.

    Args:
        num_reply: maximum tokens of a reply.
    """

    def __init__(
        self,
        contender: TraceContender,
        server: TraceServer,
        template: MessageTemplate,
        *,
        num_reply: int,
    ) -> None:
        self.contender, self.server, self._num_reply = contender, server, num_reply
        self._said: dict[str, str] = {}
        """The server's replies by the recorded ones."""
        self._prefixes = PrefixCache(template)

    def send(self, request: TraceRequest) -> Replayed:
        """Send a request with the server's own earlier replies, and wait for the reply.

        Raises:
            BenchError: the server refused the request, or the reply failed.
        """
        messages = [
            {**each, "content": self._said.get(each["content"], each["content"])}
            for each in request.messages
        ]
        num_prefix_read = self._prefixes.num_read(messages)
        reply = ask(
            self.server.address,
            {
                "messages": messages,
                "max_tokens": self._num_reply,
                **self.contender.request(request.session),
            },
        )
        self._said[request.reply] = reply.text
        self._prefixes.keep(request.session, messages, reply.text)
        num_prompt = reply.usage["prompt_tokens"]
        if "agentkv" in reply.usage:
            how = reply.usage["agentkv"]["reuse"]["how"]
        else:
            how = "new" if reply.num_read == num_prompt else "prefix"
        return Replayed(
            num_prompt=num_prompt,
            num_read=reply.num_read,
            num_prefix_read=num_prefix_read,
            how=how,
            first_token_s=reply.first_token_s,
        )
