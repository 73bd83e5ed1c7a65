"""One attempt at a needle under one policy: an episode of a single turn."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from agentkv.cache.cache import Cache
from agentkv.models.local import ActingModel
from agentkv_env.actions import ActionError, extract, parse
from agentkv_env.serialize import serialize
from agentkv_tasks.bench.needle.page import Needle
from agentkv_tasks.report.statistics import rate, wilson_interval


@dataclass(frozen=True, slots=True)
class Attempt:
    """Outcome and cost of one needle."""

    answer: str | None
    """Answer of the model; None if the reply held none."""
    is_found: bool
    num_read: int
    """Tokens of goal and page."""
    peak_bytes: int
    end_bytes: int
    kept_rows: float
    """Entries at the end, mean over layers and heads."""
    read_seconds: float
    reply_seconds: float


def find_needle(acting: ActingModel, needle: Needle) -> Attempt:
    """Run an episode of one turn on a needle's page."""
    conversation = acting.begin(needle.goal)
    reply = conversation.reply(needle.page)
    assert reply.cache is not None, "a language model reports its cache"
    answer = answer_of(reply.text)
    return Attempt(
        answer=answer,
        is_found=answer == needle.value,
        num_read=reply.num_tokens_in,
        peak_bytes=reply.cache.peak_bytes,
        end_bytes=conversation.cache.nbytes,
        kept_rows=_num_rows(conversation.cache),
        read_seconds=reply.prefill_s,
        reply_seconds=reply.decode_s,
    )


def answer_of(reply: str) -> str | None:
    """Return the answer of a `stop` reply; None for other replies."""
    try:
        action = parse(extract(reply, strict=False), strict=False)
    except ActionError:
        return None
    return action.answer.strip() if action.kind == "stop" else None


def attempt_fields(needles: Sequence[Needle], attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Return the fields of a row that summarize the attempts of one length, depth and policy."""
    found = [each.is_found for each in attempts]
    found_rate = rate(found)
    return {
        "num_found": found_rate.num_successes,
        "share": found_rate.value,
        "interval": wilson_interval(found_rate),
        "found": found,
        "values": [needle.value for needle in needles],
        "answers": [each.answer for each in attempts],
        "mean_tokens": fmean(each.num_read for each in attempts),
        "peak_bytes": max(each.peak_bytes for each in attempts),
        "end_bytes": fmean(each.end_bytes for each in attempts),
        "kept_rows": fmean(each.kept_rows for each in attempts),
        "read_seconds": round(fmean(each.read_seconds for each in attempts), 3),
        "reply_seconds": round(fmean(each.reply_seconds for each in attempts), 3),
    }


def pages_digest(needles: Sequence[Needle]) -> str:
    """Return the SHA-256 of all goals and pages."""
    texts = (f"{needle.goal}\n{serialize(needle.page).text}\n" for needle in needles)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def weights_digest(model: Any) -> str:
    """Return 16 digits of the SHA-256 of the names, shapes and first numbers of all weights.

    Further training changes it, and it takes no longer for large models.
    """
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        first = weight.detach().flatten()[:256].float().cpu().numpy()
        digest.update(f"{name} {tuple(weight.shape)}".encode() + first.tobytes())
    return digest.hexdigest()[:16]


def _num_rows(cache: Cache) -> float:
    storages = [layer.storage for layer in cache.cache_layers]
    return fmean(sum(each.counts) / each.num_segments for each in storages)
