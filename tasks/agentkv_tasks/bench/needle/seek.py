"""One needle under one policy, as an episode of a single turn."""

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
class Sought:
    """What became of one needle."""

    answer: str | None
    """None where the reply was no answer."""
    is_found: bool
    num_read: int
    """Tokens of goal and page."""
    peak_bytes: int
    end_bytes: int
    kept_rows: float
    """At the end, mean over layers and heads."""
    read_seconds: float
    reply_seconds: float


def seek(acting: ActingModel, needle: Needle) -> Sought:
    """Begin an episode, read the page in the policy's chunks, and see what is answered."""
    talk = acting.begin(needle.goal)
    reply = talk.reply(needle.page)
    assert reply.cache is not None, "a language model has one"
    answer = answer_of(reply.text)
    return Sought(
        answer=answer,
        is_found=answer == needle.value,
        num_read=reply.num_tokens_in,
        peak_bytes=reply.cache.peak_bytes,
        end_bytes=talk.cache.nbytes,
        kept_rows=_num_rows(talk.cache),
        read_seconds=reply.prefill_s,
        reply_seconds=reply.decode_s,
    )


def answer_of(reply: str) -> str | None:
    """What a reply stops with; None if it does something else."""
    try:
        action = parse(extract(reply, strict=False), strict=False)
    except ActionError:
        return None
    return action.answer.strip() if action.kind == "stop" else None


def cell(needles: Sequence[Needle], sought: Sequence[Sought]) -> dict[str, Any]:
    """The fields of a row that the needles of one place fill under one policy."""
    found = [each.is_found for each in sought]
    found_rate = rate(found)
    return {
        "num_found": found_rate.num_successes,
        "share": found_rate.value,
        "interval": wilson_interval(found_rate),
        "found": found,
        "values": [needle.value for needle in needles],
        "answers": [each.answer for each in sought],
        "mean_tokens": fmean(each.num_read for each in sought),
        "peak_bytes": max(each.peak_bytes for each in sought),
        "end_bytes": fmean(each.end_bytes for each in sought),
        "kept_rows": fmean(each.kept_rows for each in sought),
        "read_seconds": round(fmean(each.read_seconds for each in sought), 3),
        "reply_seconds": round(fmean(each.reply_seconds for each in sought), 3),
    }


def pages_digest(needles: Sequence[Needle]) -> str:
    """SHA-256 of goals and pages."""
    texts = (f"{needle.goal}\n{serialize(needle.page).text}\n" for needle in needles)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def weights_digest(model: Any) -> str:
    """SHA-256 of names, shapes and the first numbers of all weights, shortened to 16 digits: models
    trained further differ, and large ones take no longer."""
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        first = weight.detach().flatten()[:256].float().cpu().numpy()
        digest.update(f"{name} {tuple(weight.shape)}".encode() + first.tobytes())
    return digest.hexdigest()[:16]


def _num_rows(cache: Cache) -> float:
    storages = [layer.storage for layer in cache.cache_layers]
    return fmean(sum(each.counts) / each.num_segments for each in storages)
