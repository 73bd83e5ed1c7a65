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
from agentkv_tasks.bench.needle.kinds import is_right, share_right
from agentkv_tasks.bench.needle.page import Needle
from agentkv_tasks.bench.needle.words import WordsTemplate, codes_in
from agentkv_tasks.report.statistics import rate, wilson_interval


@dataclass(frozen=True, slots=True)
class NeedleAttempt:
    """Outcome and cost of one needle."""

    answer: str | None
    """Answer of the model; None if the reply held none. In words: the codes in it."""
    is_found: bool
    """True if the answer is exactly right; see `is_right`."""
    share_found: float
    """Share of the values in the answer; see `share_right`."""
    num_read: int
    """Tokens of goal and page."""
    peak_bytes: int
    end_bytes: int
    cold_bytes: int
    kept_rows: float
    """Entries at the end, mean over layers and heads."""
    read_seconds: float
    reply_seconds: float


def find_needle(acting: ActingModel, needle: Needle) -> NeedleAttempt:
    """Run an episode of one turn on a needle's page; a chat model answers in words."""
    conversation, in_words = acting.begin(needle.goal), isinstance(acting.template, WordsTemplate)
    if in_words:
        reply = conversation.answer(needle.goal, needle.page)
    else:
        reply = conversation.reply(needle.page)
    assert reply.cache is not None, "a language model reports its cache"
    answer = codes_in(reply.text) if in_words else answer_of(reply.text)
    return NeedleAttempt(
        answer=answer,
        is_found=is_right(answer, needle.values),
        share_found=share_right(answer, needle.values),
        num_read=reply.num_tokens_in,
        peak_bytes=reply.cache.peak_bytes,
        end_bytes=reply.cache.live_bytes,
        cold_bytes=reply.cache.cold_bytes,
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


def attempt_fields(needles: Sequence[Needle], attempts: Sequence[NeedleAttempt]) -> dict[str, Any]:
    """Return the fields of a row that summarize the attempts of one length, depth and policy."""
    found = [each.is_found for each in attempts]
    found_rate = rate(found)
    return {
        "num_found": found_rate.num_successes,
        "share": found_rate.value,
        "interval": wilson_interval(found_rate),
        "found": found,
        "values_share": fmean(each.share_found for each in attempts),
        "values": [list(needle.values) for needle in needles],
        "answers": [each.answer for each in attempts],
        "mean_tokens": fmean(each.num_read for each in attempts),
        "peak_bytes": max(each.peak_bytes for each in attempts),
        "end_bytes": fmean(each.end_bytes for each in attempts),
        "cold_bytes": fmean(each.cold_bytes for each in attempts),
        "kept_rows": fmean(each.kept_rows for each in attempts),
        "read_seconds": round(fmean(each.read_seconds for each in attempts), 3),
        "reply_seconds": round(fmean(each.reply_seconds for each in attempts), 3),
    }


def pages_digest(needles: Sequence[Needle]) -> str:
    """Return the SHA-256 of all goals and pages."""
    texts = (f"{needle.goal}\n{serialize(needle.page).text}\n" for needle in needles)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _num_rows(cache: Cache) -> float:
    storages = [layer.storage for layer in cache.cache_layers]
    return fmean(sum(each.counts) / each.num_segments for each in storages)
