"""The tokenizer of a GGUF file, as one of the package tokenizers.

transformers converts it too, but splits every text as GPT-2 does, whatever `tokenizer.ggml.pre`
says. The table of splits holds the facts of llama.cpp (src/llama-vocab.cpp), which the files are
made for; ids are to be llama.cpp's.
"""

from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from agentkv.models.gguf.header import Header
from agentkv.models.refused import ModelError

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Kinds of tokens, as `tokenizer.ggml.token_type` numbers them."""

_CASES = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = rf"{_CASES}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}|{_ENDS}"
_QWEN2 = rf"{_CASES}|{_WORD}|\p{{N}}|{_MARKS}|{_ENDS}"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CAMEL = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_CAPITALS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_CAMEL}|{_CAPITALS}|\p{{N}}|{_SLASHED}|{_ENDS}"
_GPT4O = rf"{_CAMEL}{_CASES}?|{_CAPITALS}{_CASES}?|\p{{N}}{{1,3}}|{_SLASHED}|{_ENDS}"
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _ENDS
)
_SPLITS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4", "mpt", "olmo", "jais",
     "trillion", "granite-docling"): (_GPT2,),
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"):
        (r"\p{N}", _GPT2),
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
     "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"): (_LLAMA3,),
    ("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan", "solar-open",
     "grok-2"): (_QWEN2,),
    ("qwen35",): (
        rf"{_CASES}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
        rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_ENDS}",
    ),
    ("tekken",): (_TEKKEN,),
    ("gpt-4o", "llama4", "kanana2", "minimax-m2"): (_GPT4O,),
    ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"):
        (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3),
    ("minicpm5",): (
        r"\p{N}{1,3}",
        rf"{_CASES}|{_WORD}|\p{{N}}+|{_MARKS}|{_ENDS}",
    ),
    ("seed-coder",): (
        rf"{_CASES}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_ENDS}",
    ),
    ("bailingmoe", "bailingmoe2", "llada-moe"): (
        rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}|{_MARKS}|"
        r"\s*[\r\n]|\s+(?!\S)|\s+",
    ),
    ("exaone-moe",): (
        rf"{_CASES}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
    ("falcon",): (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"),
    ("default", ""): (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
}  # fmt: skip
"""Patterns that split a text before merges, each within the pieces of those before it, by the
values of `tokenizer.ggml.pre` that have them."""
_WHOLE_WORDS = {
    *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    *("tekken", "minicpm5"),
}
"""Values of `tokenizer.ggml.pre` with which a piece that is a token is never merged from parts."""
_BEGINS = {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
           "tekken"}  # fmt: skip
"""Values with which a text begins with the BOS token, unless the file says otherwise."""
_ENDS_OF_TURNS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|endoftext|>"),
    *("<|end_of_text|>", "<EOT>", "_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>"),
    *("<|eom_id|>", "<|call|>", "<|return|>"),
)
"""Texts of tokens that end a reply for llama.cpp, whatever the metadata says."""


@dataclass(frozen=True, slots=True)
class FoundTokenizer:
    """A tokenizer, and its tokens with a meaning of their own."""

    tokenizer: Tokenizer
    specials: dict[str, str]
    """Texts of `bos_token`, `eos_token`, `unk_token` and `pad_token`, where the file has them."""
    end_ids: list[int]
    """Ids that end a reply, in order."""


def read_tokenizer(header: Header) -> FoundTokenizer:
    """Build the tokenizer of a GGUF file.

    Raises:
        ModelError: the file has none, or one of a kind that is not read.
    """
    data = header.metadata
    tokens, model = data.get("tokenizer.ggml.tokens"), data.get("tokenizer.ggml.model")
    if not isinstance(tokens, list) or not tokens:
        raise ModelError(f"{header.name} holds no tokenizer (tokenizer.ggml.tokens)")
    if len(set(tokens)) != len(tokens):
        twice = next(token for token in tokens if tokens.count(token) > 1)
        raise ModelError(f"{header.name}: the tokenizer has the token {twice!r} twice")
    kinds = data.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(kinds) != len(tokens):
        raise ModelError(
            f"{header.name}: the tokenizer has {len(tokens)} tokens and {len(kinds)} kinds of them"
        )
    if model == "gpt2":
        tokenizer = _byte_level(header, tokens)
    elif model == "gemma4":
        tokenizer = _merged_words(header, tokens)
    elif model == "llama":
        tokenizer = _by_scores(header, tokens)
    else:
        raise ModelError(
            f"{header.name} has a tokenizer of the kind {model!r}; agentkv reads gpt2, llama and "
            "gemma4"
        )
    added = [
        AddedToken(token, special=kind != _USER_DEFINED, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (_CONTROL, _USER_DEFINED) or (kind == _UNKNOWN and model != "gpt2")
    ]
    tokenizer.add_tokens(added)
    specials = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        number = data.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(number, int) and number < len(tokens):
            specials[f"{name}_token"] = tokens[number]
    if data.get("tokenizer.ggml.add_bos_token", _begins(data, model)) and "bos_token" in specials:
        bos = specials["bos_token"]
        tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A",
            pair=f"{bos} $A {bos} $B",
            special_tokens=[(bos, tokens.index(bos))],
        )
    return FoundTokenizer(tokenizer, specials, _end_ids(data, tokens))


def _begins(data: dict[str, Any], model: object) -> bool:
    return model in ("llama", "gemma4") or data.get("tokenizer.ggml.pre") in _BEGINS


def _end_ids(data: dict[str, Any], tokens: list[str]) -> list[int]:
    keys = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    named = [data[key] for key in keys if isinstance(data.get(key), int)]
    places = {token: number for number, token in enumerate(tokens)}
    known = [places[text] for text in _ENDS_OF_TURNS if text in places]
    return [each for each in dict.fromkeys([*named, *known]) if each < len(tokens)]


def _byte_level(header: Header, tokens: list[str]) -> Tokenizer:
    pre = str(header.metadata.get("tokenizer.ggml.pre", ""))
    splits = next((split for names, split in _SPLITS.items() if pre in names), None)
    if splits is None:
        raise ModelError(
            f"{header.name} splits text by the rule {pre!r} (tokenizer.ggml.pre), which agentkv "
            "does not know; use the model's folder in Hugging Face format"
        )
    tokenizer = Tokenizer(
        BPE(_numbered(tokens), _merges(header), ignore_merges=pre in _WHOLE_WORDS)
    )
    patterns = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splits]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*patterns, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _merged_words(header: Header, tokens: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(
        BPE(_numbered(tokens), _merges(header), byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|\n+"), "isolated")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def _by_scores(header: Header, tokens: list[str]) -> Tokenizer:
    """Return a tokenizer of SentencePiece: of two neighbours, those merge whose token has the best
    score, which is a merge's rank."""
    scores = header.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ModelError(f"{header.name}: the tokenizer has no score for each token")
    numbers, ranked = _numbered(tokens), []
    for number, token in enumerate(tokens):
        for middle in range(1, len(token)):
            left, right = token[:middle], token[middle:]
            if left in numbers and right in numbers:
                ranked.append((-scores[number], numbers[left], numbers[right], left, right))
    ranked.sort()
    merges = [(left, right) for *_, left, right in ranked]
    tokenizer = Tokenizer(BPE(numbers, merges, byte_fallback=True, fuse_unk=True))
    has_prefix = header.metadata.get("tokenizer.ggml.add_space_prefix", True)
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if has_prefix else spaces
    )
    parts: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, *([decoders.Strip(" ", 1, 0)] * has_prefix)])
    return tokenizer


def _numbered(tokens: list[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def _merges(header: Header) -> list[tuple[str, str]]:
    merges = header.metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise ModelError(f"{header.name}: the tokenizer has no merges (tokenizer.ggml.merges)")
    found = []
    for merge in merges:
        left, _, right = merge[1:].partition(" ")  # a token may begin with a blank
        found.append((merge[:1] + left, right))
    return found
