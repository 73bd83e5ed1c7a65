"""The contenders: the server over HTTP, and a loop of transformers that reads the whole prompt."""

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import DynamicCache

from agentkv.cache.hf.compat import CACHE
from agentkv.cache.hf.families import describe
from agentkv.dialog.messages import Chat, MessageTemplate
from agentkv.models.load import end_ids_of
from agentkv.models.local import LocalModel
from agentkv.serve.command import prepare, serving_in_thread
from agentkv.serve.settings import ServeSettings
from agentkv.settings import PoliciesSettings
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.settings import RunSettings


@dataclass(frozen=True, slots=True)
class ServeTurn:
    """One turn as it was measured."""

    num_prompt: int
    num_read: int
    num_written: int
    first_token_s: float
    reply_s: float
    peak_bytes: int
    cold_bytes: int


class ServeContender(Protocol):
    """Holds one conversation after the other."""

    label: str

    def begin(self) -> None:
        """Begin a conversation."""
        ...

    def turn(self, text: str) -> ServeTurn:
        """Say `text` and wait for the reply."""
        ...


class ReRead:
    """Renders the conversation anew in each turn and reads all of it, as a host does that has no
    lasting cache. Its cache is transformers' `DynamicCache`."""

    label = "re-read"

    def __init__(self, local: LocalModel, template: MessageTemplate, num_reply: int) -> None:
        self._local, self._template, self._num_reply = local, template, num_reply
        self._messages: list[dict[str, Any]] = []
        self._per_token = sum(
            4 * layer.num_heads * layer.head_dim for layer in describe(local.model).layers
        )
        """Bytes of a token's keys and values in 16 bits."""

    def begin(self) -> None:
        """Begin a conversation."""
        self._messages = []

    @torch.inference_mode()
    def turn(self, text: str) -> ServeTurn:
        """Read everything, and write the reply greedily."""
        model, began = self._local.model, time.perf_counter()
        self._messages.append({"role": "user", "content": text})
        ids = [id for part in self._template.opening(Chat(self._messages)) for id in part]
        cache = DynamicCache(config=model.config)
        new = torch.tensor([ids], device=model.device)
        written: list[int] = []
        first_token_s = 0.0
        while True:
            logits = model(input_ids=new, use_cache=True, logits_to_keep=1, **{CACHE: cache}).logits
            id = int(logits[0, -1].argmax())
            first_token_s = first_token_s or time.perf_counter() - began
            if id in self._template.end_ids:
                break
            written.append(id)
            if len(written) == self._num_reply:
                break
            new = torch.tensor([[id]], device=model.device)
        reply_s = time.perf_counter() - began
        self._messages.append({"role": "assistant", "content": self._template.decode(written)})
        seen = cache.get_seq_length()
        return ServeTurn(
            num_prompt=len(ids),
            num_read=len(ids),
            num_written=len(written),
            first_token_s=first_token_s,
            reply_s=reply_s,
            peak_bytes=seen * self._per_token,
            cold_bytes=0,
        )


class Served:
    """Talks to the server under one policy, over HTTP and in streams."""

    def __init__(self, policy: str, address: tuple[str, int], num_reply: int) -> None:
        self.label = policy
        self._address, self._num_reply = address, num_reply
        self._messages: list[dict[str, Any]] = []
        self._number = 0

    def begin(self) -> None:
        """Begin a conversation, with a session of its own."""
        self._messages = []
        self._number += 1

    def turn(self, text: str) -> ServeTurn:
        """Send all messages, and read the stream."""
        self._messages.append({"role": "user", "content": text})
        body = json.dumps(
            {
                "messages": self._messages,
                "temperature": 0,
                "max_tokens": self._num_reply,
                "stream": True,
                "stream_options": {"include_usage": True},
                "prompt_cache_key": f"{self.label} {self._number}",
                "agentkv": {"policy": self.label},
            }
        )
        connection = HTTPConnection(*self._address, timeout=3600)
        try:
            began = time.perf_counter()
            headers = {"content-type": "application/json"}
            connection.request("POST", "/v1/chat/completions", body, headers)
            response = connection.getresponse()
            if response.status != 200:
                raise BenchError(f"the server refused a turn: {response.read(500).decode()}")
            first_token_s, said = 0.0, ""
            usage: dict[str, Any] = {}
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line.removeprefix(b"data: "))
                usage = chunk.get("usage") or usage
                delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
                said += delta.get("content") or ""
                if delta.get("content") or delta.get("reasoning_content"):
                    first_token_s = first_token_s or time.perf_counter() - began
            reply_s = time.perf_counter() - began
        finally:
            connection.close()
        self._messages.append({"role": "assistant", "content": said})
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return ServeTurn(
            num_prompt=usage["prompt_tokens"],
            num_read=usage["prompt_tokens"] - cached,
            num_written=usage["completion_tokens"],
            first_token_s=first_token_s or reply_s,
            reply_s=reply_s,
            peak_bytes=usage["agentkv"]["peak_bytes"],
            cold_bytes=usage["agentkv"]["cold_bytes"],
        )


@contextlib.contextmanager
def contenders(
    local: LocalModel, run: RunSettings, num_reply: int, store: Path
) -> Iterator[list[ServeContender]]:
    """Yield `re-read` and one contender for each policy of `run`, whose server runs meanwhile."""
    chosen = run.chosen(PoliciesSettings)
    settings = ServeSettings(**chosen, port=0, store=store, name=Path(run.model).name)
    template = MessageTemplate(
        local.source_tokenizer, end_ids=end_ids_of(local.model), texts=local.template.texts
    )
    with (
        prepare(local, settings) as prepared,
        serving_in_thread(prepared, settings) as port,
    ):
        address = ("127.0.0.1", port)
        served = [Served(each.row_name, address, num_reply) for each in run.policies]
        yield [ReRead(local, template, num_reply), *served]
