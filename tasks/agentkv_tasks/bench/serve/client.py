"""A client of the server that reads a streamed reply and times its first token."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from agentkv_tasks.bench.errors import BenchError


@dataclass(frozen=True, slots=True)
class StreamedReply:
    """A reply as it came."""

    text: str
    """Text without thoughts."""
    usage: Mapping[str, Any]
    first_token_s: float
    """Seconds from the request to the first text or thought; to the end if there was none."""
    reply_s: float
    """Seconds from the request to the end."""

    @property
    def num_read(self) -> int:
        """Number of prompt tokens that the server read for this reply."""
        cached: int = self.usage["prompt_tokens_details"]["cached_tokens"]
        return int(self.usage["prompt_tokens"]) - cached


def ask(address: tuple[str, int], request: Mapping[str, Any]) -> StreamedReply:
    """Send a greedy chat request and wait for the reply.

    Raises:
        BenchError: the server refused the request, or the reply failed.
    """
    options = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    body = json.dumps({**options, **request})
    connection = HTTPConnection(*address, timeout=3600)
    text, first_token_s = "", 0.0
    usage: dict[str, Any] = {}
    try:
        began = time.perf_counter()
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", body, headers)
        response = connection.getresponse()
        if response.status != 200:
            raise BenchError(f"the server refused a request: {response.read(500).decode()}")
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line.removeprefix(b"data: "))
            if "error" in chunk:
                raise BenchError(f"a reply failed: {chunk['error'].get('message')}")
            usage = chunk.get("usage") or usage
            delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
            text += delta.get("content") or ""
            if delta.get("content") or delta.get("reasoning_content"):
                first_token_s = first_token_s or time.perf_counter() - began
        reply_s = time.perf_counter() - began
    finally:
        connection.close()
    return StreamedReply(text, usage, first_token_s or reply_s, reply_s)
