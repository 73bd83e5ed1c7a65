"""Byte-level BPE tokenizer of nano, with single tokens for element ids and words of the format.

A number is split into groups of three digits from the left: `1241` is `124` and `1`. Copying digit
by digit is ambiguous because a single digit occurs in many places; one of a thousand tokens seldom
does. A number up to 199 in brackets is one token with the space before it, so ` [12]` in a page and
in `click [12]` is the same token.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from agentkv.dialog.prompt import PlainTemplate

NUM_IDS = 200
NUM_DIGITS = 3
"""Maximum number of digits in one token."""
VOCAB_SIZE = 3660
PAD = "<|pad|>"
SPECIALS = (PAD, *PlainTemplate.SPECIALS)

WORDS = tuple(
    "link button textbox checkbox radio combobox heading image cell text textarea searchbox tab "
    "click type hover clear press scroll goto stop done down up go_back go_forward new_tab "
    "tab_focus close_tab url title tabs notice more above below ocr cut lines options checked "
    "required current error at from http localhost shop classifieds forum wiki home".split()
)
"""Words that are one token at the start of a line and after a space, for any corpus."""

_PIECES = r"\n| ?\p{L}+(?:_\p{L}+)?|\p{N}| ?[^\s\p{L}\p{N}]+|\s"
_NUMBERS = [str(n).zfill(size) for size in range(2, NUM_DIGITS + 1) for n in range(10**size)]


def train(texts: Iterable[str], *, vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Train a tokenizer on `texts`. Equal texts give equal tokenizers."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = Sequence(
        [
            Split(Regex(_PIECES), behavior="isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size - NUM_IDS - len(_NUMBERS),
        special_tokens=list(SPECIALS),
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    # The words are repeated until each of their prefixes is merged before any pair of the corpus.
    forced = [f"{word} {word}" for word in WORDS] * 100_000
    tokenizer.train_from_iterator([*forced, *texts], trainer)
    tokenizer = with_numbers(tokenizer)
    numbered = [AddedToken(f" [{number}]", normalized=False) for number in range(NUM_IDS)]
    tokenizer.add_tokens(numbered)
    return tokenizer


def with_numbers(tokenizer: Tokenizer) -> Tokenizer:
    """Add a token for every number of up to `NUM_DIGITS` digits to a tokenizer of single digits.

    Frequency-based merges would cover only the numbers of the corpus. A number of three digits has
    two merges, because the order of the merge list decides which pair of its digits merges first.
    """
    values = json.loads(tokenizer.to_str())
    model = values["model"]
    for number in _NUMBERS:
        model["vocab"][number] = len(model["vocab"])
        sizes = range(1, len(number))
        model["merges"] += [[number[:size], number[size:]] for size in sizes]
    pieces = _PIECES.replace(r"\p{N}", rf"\p{{N}}{{1,{NUM_DIGITS}}}", 1)
    split = values["pre_tokenizer"]["pretokenizers"][0]
    assert split["pattern"] == {"Regex": _PIECES}
    split["pattern"] = {"Regex": pieces}
    return Tokenizer.from_str(json.dumps(values))


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizer` to `folder` in the layout that transformers' AutoTokenizer loads."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": "<|end|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
