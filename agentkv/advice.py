"""Advice for episodes that ended before the agent stopped."""

from collections.abc import Mapping, Sequence

from agentkv_env.hosts import host_of, is_web_address

ADVICE: Mapping[str, str] = {
    "repetition": "the model repeats itself; name the steps in the goal, sample with a temperature "
    "such as 0.7, or take a model that was trained to act on pages",
    "context_limit": "the model ran out of positions; show it fewer tokens of each page "
    "(observation_tokens), only what changes (observations = changes) or only the latest pages "
    "(last_pages), or let a policy evict, such as lookback-int8",
    "parse_limit": "the replies held no action; let a grammar admit nothing else "
    "(decoding = constrained), or take a model that was trained to act on pages",
    "step_limit": "the actions were used up; allow more (max_steps)",
    "timeout": "the time was used up; allow more (timeout), or let the model read and write fewer "
    "tokens (observation_tokens, max_new_tokens)",
    "out_of_memory": "the memory was used up; give the cache less (budget, chunk), or store its "
    "entries in 8 bits (lookback-int8, int8)",
}
"""Per status of an episode (`agentkv.trace.Status`), what happened and what to try, in the names of
settings. The other statuses need no advice, or only the error has it."""


def advice_on_model(model: str, url: str) -> str:
    """Return what to expect of the model `model` on the page `url`; empty where it may be right.

    Args:
        model: name of a model, as in `agentkv.load_model`.
        url: address of a web page.
    """
    if model != "nano" or (is_web_address(url) and host_of(url).endswith(".localhost")):
        return ""
    return (
        "nano knows the embedded sites alone (http://wiki.localhost/ and others); on this page its "
        "actions and answers are chance; give a chat model: --model FOLDER or --model OWNER/NAME"
    )


def advice_lines(statuses: Sequence[str]) -> list[str]:
    """Return a line for each status with advice that some of the episodes have.

    Args:
        statuses: of all episodes.
    """
    num = len(statuses)
    return [
        f"{count} of {num} episode{'s' * (num != 1)} ended with {status}: {advice}"
        for status, advice in ADVICE.items()
        if (count := statuses.count(status))
    ]
