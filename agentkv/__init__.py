"""Web agents on local language models with a small key-value cache.

Importing this package imports neither torch nor transformers; the names below import what they need
on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentkv.cache.cache import Cache as Cache
    from agentkv.cache.checkpoint.file import CacheFileError as CacheFileError
    from agentkv.cache.hf.attach import attach as attach
    from agentkv.policies.entries import PolicyError as PolicyError
    from agentkv.policies.policy import Policy as Policy
    from agentkv.policies.registry import policy as policy
    from agentkv.policies.registry import scored as scored

_MODULES = {
    "Action": "agentkv_env.actions",
    "ActionRefused": "agentkv.episode",
    "Agent": "agentkv.agent",
    "AnswerFormError": "agentkv.answer_form",
    "AnswerInvalid": "agentkv.answer_form",
    "AsyncSession": "agentkv.async_session",
    "Cache": "agentkv.cache.cache",
    "CacheFileError": "agentkv.cache.checkpoint.file",
    "Cancelled": "agentkv.models.model",
    "ConversationFileError": "agentkv.models.saved",
    "Policy": "agentkv.policies.policy",
    "PolicyError": "agentkv.policies.entries",
    "Progress": "agentkv.progress",
    "Secret": "agentkv_env.named_secrets",
    "Session": "agentkv.agent",
    "SessionError": "agentkv.agent",
    "UnknownSecret": "agentkv_env.named_secrets",
    "async_browser": "agentkv.async_session",
    "browser": "agentkv.browsing",
    "attach": "agentkv.cache.hf.attach",
    "load_model": "agentkv.models.load",
    "report": "agentkv_tasks.from_python",
    "run": "agentkv_tasks.from_python",
    "policy": "agentkv.policies.registry",
    "scored": "agentkv.policies.registry",
    "sites": "agentkv.browsing",
}

__all__ = sorted(_MODULES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'agentkv' has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return __all__
