"""How llama.cpp splits texts before it merges bytes, by `tokenizer.ggml.pre` of a file.

The expressions are those of `src/llama-vocab.cpp` of llama.cpp. They apply in turn: each splits the
pieces that the one before it left.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_SUFFIX = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_QWEN2 = (
    rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}| ?", r"|\p{N}{1,3}| ?")
_QWEN35 = _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(
    r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"
)
_UPPER = r"((?=[\p{L}])([^a-z]))"
_LOWER = r"((?=[\p{L}])([^A-Z]))"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}?|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_SEED = (
    rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How texts are split, and what the tokenizer does by default."""

    expressions: tuple[str, ...]
    ignores_merges: bool = False
    """True if a piece that is a token stays whole, whatever the merges say."""
    adds_bos: bool = False
    """True if texts begin with the token of beginnings unless the file says otherwise."""


_DIGITS = PreTokenizer((r"\p{N}", _GPT2))
_WORDS = PreTokenizer((_GPT2,))
_BY_NAMES = {
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2": PreTokenizer(
        (_LLAMA3,), ignores_merges=True, adds_bos=True
    ),
    "dbrx smaug-bpe glm4 chatglm-bpe": PreTokenizer((_LLAMA3,)),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": _DIGITS,
    "gpt-2 phi-2 mpt olmo jais trillion granite-docling jina-es jina-de gigachat exaone4": _WORDS,
    "qwen2 stablelm2 deepseek-r1-qwen kormo hunyuan megrez solar-open grok-2": PreTokenizer(
        (_QWEN2,)
    ),
    "qwen35": PreTokenizer((_QWEN35,)),
    "tekken": PreTokenizer((_TEKKEN,), ignores_merges=True, adds_bos=True),
    "gpt-4o llama4 kanana2 minimax-m2": PreTokenizer((_GPT4O,)),
    "deepseek-v3 hunyuan-dense joyai-llm": PreTokenizer(
        (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)
    ),
    "afmoe": PreTokenizer(
        (
            # triples of digits from the right; text before a number joins its first digits
            r"\P{N}*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
            "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+",
            _DEEPSEEK3,
        )
    ),
    "deepseek-coder": PreTokenizer(
        ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")
    ),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "seed-coder": PreTokenizer((_SEED,)),
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
}
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {name: found for names, found in _BY_NAMES.items() for name in names.split()}
)
"""What is known, by the name in the file."""
