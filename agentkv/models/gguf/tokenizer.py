"""The tokenizer of a GGUF file as a fast tokenizer that gives llama.cpp's ids."""

from collections.abc import Iterator
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from agentkv.models.gguf.header import GgufError, GgufHeader
from agentkv.models.gguf.pre_tokenizers import PRE_TOKENIZERS

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
"""Kinds of tokens in `tokenizer.ggml.token_type`."""
_ENDS = (
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <end_of_turn> <|endoftext|> </s> "
    "<|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> [e~[ "
    "<|flush|> <|calls|> <|tool_response> <｜end▁of▁sentence｜>"
).split()
"""Tokens that end a reply for llama.cpp whatever the metadata says."""
_SPACE = "▁"


def end_ids(header: GgufHeader) -> list[int]:
    """Return the ids that end a reply: those of the metadata, and control tokens known as ends."""
    keys = (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
    named = {header.metadata[key] for key in keys if key in header.metadata}
    tokens, kinds = _tokens(header)
    known = {tokens[i] for i, kind in enumerate(kinds) if kind == _CONTROL and tokens[i] in _ENDS}
    if {"<|return|>", "<|call|>"} <= known or {"<|flush|>", "<|calls|>"} <= known:
        known.discard("<|end|>")  # ends a part of a reply of gpt-oss and Solar
    return sorted(named | {tokens.index(token) for token in known})


def convert_tokenizer(header: GgufHeader) -> tuple[Tokenizer, dict[str, Any]]:
    """Return the tokenizer, and what stands in its `tokenizer_config.json`.

    Raises:
        GgufError: the file has no tokenizer, or one whose kind is not known.
    """
    tokens, kinds = _tokens(header)
    model = header.metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        tokenizer, adds_bos = _byte_level(header, tokens)
    elif model == "llama":
        tokenizer, adds_bos = _sentence_piece(header, tokens), True
    else:
        raise GgufError(
            f"{header.path}: the tokenizer {model!r} is not known; known: gpt2 and llama"
        )
    for i, kind in enumerate(kinds):
        if kind in (_CONTROL, _USER_DEFINED, _UNKNOWN):
            token = AddedToken(tokens[i], special=kind != _USER_DEFINED, normalized=False)
            (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": header.number("context_length"),
    }
    for key, theirs in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items():
        id = header.metadata.get(f"tokenizer.ggml.{theirs}_token_id")
        if isinstance(id, int):
            if not 0 <= id < len(tokens):
                raise GgufError(
                    f"{header.path}: {theirs}_token_id is {id}, but there are {len(tokens)} tokens"
                )
            config[f"{key}_token"] = tokens[id]
    bos = config.get("bos_token")
    if bos and header.metadata.get("tokenizer.ggml.add_bos_token", adds_bos):
        tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokens.index(bos))]
        )
    key = "tokenizer.chat_template"
    keys = {"default": key, "tool_use": f"{key}.tool_use"}
    templates = {name: header.metadata[key] for name, key in keys.items() if key in header.metadata}
    if templates:
        config["chat_template"] = templates if "tool_use" in templates else templates["default"]
    return tokenizer, config


def _tokens(header: GgufHeader) -> tuple[list[str], list[int]]:
    """Return the tokens, and the kind of each."""
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(t, str) for t in tokens):
        raise GgufError(f"{header.path} has no tokenizer (tokenizer.ggml.tokens)")
    kinds = header.metadata.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise GgufError(f"{header.path}: tokenizer.ggml.token_type does not fit the tokens")
    return tokens, kinds


def _byte_level(header: GgufHeader, tokens: list[str]) -> tuple[Tokenizer, bool]:
    name = header.metadata.get("tokenizer.ggml.pre", "default")
    if name not in PRE_TOKENIZERS:
        raise GgufError(
            f"{header.path}: the pre-tokenizer {name!r} (tokenizer.ggml.pre) is not known; "
            f"known: {', '.join(PRE_TOKENIZERS)}"
        )
    found = PRE_TOKENIZERS[name]
    merges = [tuple(merge.split(" ")) for merge in header.metadata.get("tokenizer.ggml.merges", ())]
    if not merges or any(len(merge) != 2 for merge in merges):
        raise GgufError(f"{header.path} has no merges of two tokens (tokenizer.ggml.merges)")
    try:
        model = BPE(_vocabulary(tokens), merges, ignore_merges=found.ignores_merges)
    except Exception as error:  # raised by Rust, with no class of its own
        raise GgufError(f"{header.path}: its tokenizer cannot be built: {error}") from None
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(each), "isolated") for each in found.expressions),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, found.adds_bos


def _sentence_piece(header: GgufHeader, tokens: list[str]) -> Tokenizer:
    """Return a tokenizer that joins the pair with the highest score, as sentencepiece does."""
    scores = header.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise GgufError(f"{header.path}: tokenizer.ggml.scores does not fit the tokens")
    vocabulary = _vocabulary(tokens)
    order = sorted(range(len(tokens)), key=lambda i: -scores[i])
    merges = [pair for i in order for pair in _splits(tokens[i], vocabulary)]
    unknown = header.metadata.get("tokenizer.ggml.unknown_token_id", 0)
    tokenizer = Tokenizer(
        BPE(vocabulary, merges, unk_token=tokens[unknown], fuse_unk=True, byte_fallback=True)
    )
    is_prefixed = header.metadata.get("tokenizer.ggml.add_space_prefix", True)
    prefix = [normalizers.Prepend(_SPACE)] if is_prefixed else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    parts = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(
        [*parts, *([decoders.Strip(" ", 1, 0)] if is_prefixed else [])]
    )
    return tokenizer


def _splits(token: str, vocabulary: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of tokens that make a token."""
    for i in range(1, len(token)):
        if token[:i] in vocabulary and token[i:] in vocabulary:
            yield token[:i], token[i:]


def _vocabulary(tokens: list[str]) -> dict[str, int]:
    return {token: i for i, token in enumerate(tokens)}
