"""The contenders: the server over HTTP, and a loop of transformers that reads the whole prompt."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
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
from agentkv_tasks.bench.serve.client import ask
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
        reply = ask(
            self._address,
            {
                "messages": self._messages,
                "max_tokens": self._num_reply,
                "prompt_cache_key": f"{self.label} {self._number}",
                "agentkv": {"policy": self.label},
            },
        )
        self._messages.append({"role": "assistant", "content": reply.text})
        return ServeTurn(
            num_prompt=reply.usage["prompt_tokens"],
            num_read=reply.num_read,
            num_written=reply.usage["completion_tokens"],
            first_token_s=reply.first_token_s,
            reply_s=reply.reply_s,
            peak_bytes=reply.usage["agentkv"]["peak_bytes"],
            cold_bytes=reply.usage["agentkv"]["cold_bytes"],
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
