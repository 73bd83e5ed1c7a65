"""The byte-level BPE of nano: ids and words of the observation language in one token each.

Digits stand alone, so that numbers are copied figure by figure. A number in brackets, with the
space before it, is one token up to 199: ` [12]` in a page and in `click [12]` are the same thing.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from agentkv.prompt import PlainTemplate

NUM_IDS = 200
VOCAB_SIZE = 2560
PAD = "<|pad|>"
SPECIALS = (PAD, *PlainTemplate.SPECIALS)

WORDS = tuple(
    "link button textbox checkbox radio combobox heading image cell text textarea searchbox tab "
    "click type hover clear press scroll goto stop done down up go_back go_forward new_tab "
    "tab_focus close_tab url title tabs notice more above below ocr cut lines options checked "
    "required current error at from http localhost shop classifieds forum wiki home".split()
)
"""One token each, at the start of a line and after a space, whatever else is in the corpus."""

_PIECES = Regex(r"\n| ?\p{L}+(?:_\p{L}+)?|\p{N}| ?[^\s\p{L}\p{N}]+|\s")


def train(texts: Iterable[str], *, vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """A tokenizer whose merges come from `texts`; the same texts give the same tokenizer."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = Sequence(
        [Split(_PIECES, behavior="isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size - NUM_IDS,
        special_tokens=list(SPECIALS),
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    # Often enough that every prefix of these words is merged before any pair of the corpus.
    forced = [f"{word} {word}" for word in WORDS] * 100_000
    tokenizer.train_from_iterator([*forced, *texts], trainer)
    numbered = [AddedToken(f" [{number}]", normalized=False) for number in range(NUM_IDS)]
    tokenizer.add_tokens(numbered)
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizer` so that transformers' AutoTokenizer loads it from `folder`."""
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
