"""Parameters of OpenAI's and of other servers that would change the reply and are not supported."""

from collections.abc import Mapping
from typing import Any

_OFF: tuple[Any, ...] = (False, 0, "", [], {})
"""Values that ask for nothing."""

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    # OpenAI
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "logit_bias"), _OFF),
    **dict.fromkeys(("functions", "audio", "web_search_options"), _OFF),
    **dict.fromkeys(("n", "best_of"), (1,)),
    "function_call": (*_OFF, "none", "auto"),
    "modalities": (["text"], []),
    "verbosity": ("medium",),
    # vLLM and SGLang
    **dict.fromkeys(("min_p", "length_penalty", "early_stopping", "use_beam_search"), _OFF),
    **dict.fromkeys(("bad_words", "stop_token_ids", "allowed_token_ids"), _OFF),
    **dict.fromkeys(("logits_processors", "structural_tag"), _OFF),
    **dict.fromkeys(("guided_json", "json_schema"), ()),
    **dict.fromkeys(("include_stop_str_in_output", "no_stop_trim", "stop_regex"), _OFF),
    **dict.fromkeys(("chat_template", "documents", "mm_processor_kwargs"), _OFF),
    "guided_whitespace_pattern": _OFF,
    **dict.fromkeys(("return_tokens_as_token_ids", "return_token_ids"), _OFF),
    **dict.fromkeys(("thinking_token_budget", "custom_logit_processor", "lora_path"), _OFF),
    **dict.fromkeys(("return_hidden_states", "min_new_tokens", "max_new_tokens"), _OFF),
    "top_k": (*_OFF, -1),
    "repetition_penalty": (1,),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (False,),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), (True,)),
    **dict.fromkeys(("include_reasoning", "separate_reasoning", "stream_reasoning"), (True,)),
    # llama.cpp
    **dict.fromkeys(("mirostat", "dynatemp_range", "dry_multiplier", "xtc_probability"), _OFF),
    **dict.fromkeys(("min_keep", "n_probs", "n_indent", "samplers", "lora"), _OFF),
    **dict.fromkeys(("grammar_lazy", "grammar_triggers", "t_max_predict_ms"), _OFF),
    **dict.fromkeys(("post_sampling_probs", "return_tokens", "response_fields"), _OFF),
    **dict.fromkeys(("repeat_penalty", "typical_p", "typ_p", "tfs_z"), (1,)),
    **dict.fromkeys(("n_predict", "reasoning_budget", "thinking_budget_tokens"), (-1,)),
    "top_n_sigma": (0, -1),
    "reasoning_format": ("auto", "deepseek"),
    "parse_tool_calls": (True,),
    # Ollama and others
    **dict.fromkeys(("format", "options", "system", "template", "raw", "images"), _OFF),
    **dict.fromkeys(("think", "thinking", "reasoning", "enable_thinking"), ()),
    **dict.fromkeys(("num_predict", "thinking_budget", "top_a"), _OFF),
}
"""Parameters of both endpoints, and the values that change nothing."""
CHAT_ONLY: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("echo", "suffix", "add_special_tokens"), _OFF),
}
"""Further ones of chats."""
COMPLETIONS_ONLY: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("echo", "suffix", "tools", "tool_choice", "top_logprobs"), _OFF),
    **dict.fromkeys(("continue_final_message", "max_completion_tokens"), _OFF),
    **dict.fromkeys(("reasoning_effort", "chat_template_kwargs"), _OFF),
    "add_special_tokens": (True,),
}
"""Further ones of raw prompts."""
MESSAGES_ONLY: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("mcp_servers", "container"), _OFF),
    **dict.fromkeys(("stop", "max_completion_tokens", "min_tokens", "ignore_eos"), _OFF),
    **dict.fromkeys(("response_format", "reasoning_effort", "chat_template_kwargs"), _OFF),
    "parallel_tool_calls": (True,),
    **dict.fromkeys(("continue_final_message", "logprobs", "top_logprobs"), _OFF),
    **dict.fromkeys(("structured_outputs", "guided_choice", "guided_regex", "regex"), _OFF),
    **dict.fromkeys(("guided_grammar", "grammar", "ebnf", "echo", "suffix"), _OFF),
}
"""Further ones of Anthropic's messages, most of which OpenAI's protocol has."""
_INSTEAD = {
    **dict.fromkeys(("n_predict", "num_predict", "max_new_tokens"), "write max_tokens"),
    "max_completion_tokens": "write max_tokens",
    "min_new_tokens": "write min_tokens",
    "functions": "write tools",
    "function_call": "write tool_choice",
    **dict.fromkeys(("think", "thinking", "enable_thinking"), "write chat_template_kwargs"),
    "reasoning": "write reasoning_effort",
    **dict.fromkeys(("guided_json", "json_schema", "format"), "write response_format"),
    **dict.fromkeys(("stop_token_ids", "stop_regex"), "write stop"),
}


def find_unsupported(
    given: Mapping[str, Any], further: Mapping[str, tuple[Any, ...]]
) -> tuple[str, str] | None:
    """Return the first parameter that is not supported, and what to do about it; None if there is
    none.

    Args:
        given: parameters that the endpoint does not know.
        further: those that are not supported by the endpoint alone.
    """
    for name, value in given.items():
        neutral = further.get(name, UNSUPPORTED.get(name))
        if neutral is not None and not any(_is_same(value, each) for each in neutral):
            return name, _INSTEAD.get(name, "leave it out")
    return None


def _is_same(value: Any, other: Any) -> bool:
    # True is 1 in Python, and not in JSON.
    return value == other and isinstance(value, bool) == isinstance(other, bool)
