"""The page of one recorded episode: after each step, what the cache held of every page and reply.

It is one file that loads nothing. The texts are drawn by the script that draws them on the page of
`agentkv serve`. Data stands in a JSON block, and each text in it becomes a text node.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

from agentkv.terminal import human_bytes
from agentkv.trace import Step, Trace
from agentkv_tasks.report.episode import looks_by_step
from agentkv_tasks.report.forgotten import Memory, reply_tokens, span_name
from agentkv_tasks.report.html import template_environment

_TEMPLATES = Path(__file__).parent / "templates"


def recorded_page(name: str, trace: Trace, ending: str) -> str:
    """Return the page of an episode.

    Args:
        name: of the episode, such as its trace's.
        ending: how the episode ended, in words.
    """
    shared = resources.files("agentkv.serve").joinpath("static")
    style = "".join(shared.joinpath(each).read_text("utf-8") for each in ("page.css", "held.css"))
    style += (_TEMPLATES / "recorded.css").read_text(encoding="utf-8")
    script = shared.joinpath("held.js").read_text("utf-8")
    script += (_TEMPLATES / "recorded.js").read_text(encoding="utf-8")
    return (
        template_environment()
        .get_template("recorded.html")
        .render(
            own_style=Markup(style),
            own_script=Markup(script),
            style_digest=_digest(style),
            own_script_digest=_digest(script),
            data=Markup(_in_script(_data(name, trace, ending))),
            title=name,
        )
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _in_script(data: Any) -> str:
    """Return JSON that no text in it can end a script element with."""
    text = json.dumps(data, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(name: str, trace: Trace, ending: str) -> dict[str, Any]:
    memory, head = Memory(trace.steps), trace.head
    known = ("policy", "model", "seed", "suite")
    looks = looks_by_step(trace.steps)
    return {
        "goal": str(head.get("goal", "")),
        "about": ", ".join([name, *(f"{each} {head[each]}" for each in known if each in head)]),
        "ending": ending,
        "is_known": memory.is_known,
        "steps": [
            _step(memory, number, step, looks[number]) for number, step in enumerate(trace.steps)
        ],
    }


def _step(memory: Memory, number: int, step: Step, looks: str) -> dict[str, Any]:
    page = memory.page(number, after=number)
    return {
        "action": step.action or "(no readable action)",
        "url": step.url,
        "page": f"page {step.turn}",
        "reply": f"reply {step.turn}",
        "pieces": [piece.text for piece in page],
        "gone_in": [piece.gone_in for piece in page],
        "tokens": list(_tokens(step)) or [{"text": step.reply}],
        "levels": {
            label: {"name": span_name(label), "levels": levels}
            for label, levels in memory.changes(number).items()
        },
        "has_cold": step.cold_bytes > 0,
        "facts": list(_facts(memory, number, step, looks)),
    }


def _tokens(step: Step) -> Iterator[dict[str, Any]]:
    """Yield the tokens of a reply for the script. A foreign trace may hold any numbers."""
    tokens = reply_tokens(step)
    looks = step.token_looks if len(step.token_looks) == len(tokens) else (0,) * len(tokens)
    for (text, confidence), fetched in zip(tokens, looks, strict=True):
        token: dict[str, Any] = {"text": text}
        if confidence is None:
            token["forced"] = True
        elif 0 <= confidence <= 1:
            token["confidence"] = confidence
        if fetched > 0:
            token["look"] = {"fetched": fetched}
        yield token


def _facts(memory: Memory, number: int, step: Step, looks: str) -> Iterator[str]:
    """Say what is known of a step, a sentence each."""
    if step.note:
        yield f"note: {step.note}"
    if step.error:
        yield f"error: {step.error}"
    if not step.seen_tokens:
        return
    cold = f", cold {human_bytes(step.cold_bytes)}" if step.cold_bytes else ""
    evicted = f"; {memory.num_evicted(number):,} entries evicted" if memory.is_known else ""
    yield (
        f"{step.num_tokens_in:,} tokens in, {step.num_tokens_out:,} out; "
        f"cache {human_bytes(step.cache_bytes)}{cold}{evicted}"
    )
    if looks:
        yield looks
