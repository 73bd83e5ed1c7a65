"""An agent for BrowserGym's experiments: its observations become our pages, our actions its calls.

BrowserGym observes, acts and scores in its own browser; our model reads and decides, on one cache
for all steps. Nothing of BrowserGym is imported before its action set is asked for, so that its
pins (Playwright 1.44) bind only those who run it.
"""

from collections.abc import Mapping
from typing import Any

from agentkv.adapters.browsergym_calls import to_calls
from agentkv.adapters.browsergym_page import Bids, page_of, viewport_of
from agentkv.adapters.packages import PackageMissing
from agentkv.agent import Agent
from agentkv.episode import error_note
from agentkv.models.model import CacheUse, Conversation, LastingConversation, Reply
from agentkv_env.actions import ActionError, extract, parse
from agentkv_env.serialize import neutralize

PAGE = "agentkv_page"
"""Key of our `Page` in a preprocessed observation."""
SUBSETS = ("visualwebarena", "bid", "coord")
"""BrowserGym's subsets of actions that `to_calls` calls. The first one suffices for
VisualWebArena's actions."""


class BrowserGymAgent:
    """An agent with the interface of `browsergym.experiments.Agent`, for one experiment.

    Args:
        agent: the model, its cache policy and how strictly replies are parsed.
        action_set: the action set of the environment, which must have a function for each of
            `to_calls`; None makes BrowserGym's `HighLevelActionSet` of `SUBSETS`.
        seed: equal seeds give equal replies to equal observations.
    """

    def __init__(self, agent: Agent, *, action_set: Any = None, seed: int = 0) -> None:
        self._agent, self._seed = agent, seed
        self._action_set = action_set
        self._bids = Bids()
        self._conversation: Conversation | None = None
        self._goal = ""
        self._note = ""
        """The errors since the last reply."""

    @property
    def action_set(self) -> Any:
        """The action set whose `to_python_code` runs the calls.

        Raises:
            PackageMissing: none was given, and browsergym-core is not installed.
        """
        if self._action_set is None:
            try:
                from browsergym.core.action.highlevel import HighLevelActionSet
            except ModuleNotFoundError as error:
                raise PackageMissing("browsergym-core", "pip install browsergym-core") from error
            # To type and press Enter takes two calls.
            self._action_set = HighLevelActionSet(subsets=[*SUBSETS], multiaction=True)
        return self._action_set

    def obs_preprocessor(self, obs: Mapping[str, Any]) -> dict[str, Any]:
        """Return an observation with our page in place of the DOM and the accessibility tree."""
        kept = {
            key: value for key, value in obs.items() if key not in ("dom_object", "axtree_object")
        }
        return {**kept, PAGE: page_of(obs, self._bids)}

    def get_action(self, obs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the next calls, one per line, and what is worth recording about the reply.

        A reply that cannot be carried out becomes `noop(0)`, and the next one is told why.

        Args:
            obs: an observation, as it is or preprocessed.

        Raises:
            ContextLimit: the model has no positions left.
        """
        page = obs[PAGE] if PAGE in obs else page_of(obs, self._bids)
        error = str(obs.get("last_action_error") or "").strip()
        note = error_note(neutralize(error.splitlines()[0])) if error else self._note
        reply = self._conversation_for(_goal_of(obs)).reply(page, note)
        self._note = ""
        try:
            strict = self._agent.settings.strict
            action = parse(extract(reply.text, strict=strict), strict=strict)
            calls = to_calls(action, page, self._bids, scroll_by=viewport_of(obs)[1])
        except ActionError as refused:
            self._note = error_note(neutralize(str(refused)))
            calls = "noop(0)"
        return calls, _info(reply)

    def _conversation_for(self, goal: str) -> Conversation:
        """Return the conversation of this experiment, which goes on if the goal changes."""
        if self._conversation is None or goal != self._goal:
            if isinstance(self._conversation, LastingConversation):
                self._conversation.pursue(goal)
            else:
                self._conversation = self._agent.model.begin(goal, seed=self._seed)
            self._goal = goal
        return self._conversation


def _info(reply: Reply) -> dict[str, Any]:
    thought = reply.text.partition("```")[0].strip()
    cache = reply.cache or CacheUse()
    stats = {
        "tokens_in": reply.num_tokens_in,
        "tokens_out": reply.num_tokens_out,
        "prefill_s": reply.prefill_s,
        "decode_s": reply.decode_s,
        "seen_tokens": cache.seen_tokens,
        "cache_bytes": cache.live_bytes,
        "cache_peak_bytes": cache.peak_bytes,
    }
    think = "\n".join(each for each in (reply.thinking, thought) if each)
    return {"think": think, "stats": stats, "extra_info": {"observation": reply.observation}}


def _goal_of(obs: Mapping[str, Any]) -> str:
    """Return the texts of the goal; its images are not read."""
    parts = [part["text"] for part in obs.get("goal_object") or () if part.get("type") == "text"]
    return "\n".join(parts) or str(obs.get("goal") or "")
