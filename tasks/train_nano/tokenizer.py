"""The byte-level BPE of nano: ids and words of the observation language in one token each.

A number is told in tokens of three digits from its beginning: `1241` is `124` and `1`. Who copies
digit by digit has to know which of many ones this is; one of a thousand tokens says it.
A number in brackets, with the space before it, is one token up to 199: ` [12]` in a page and in
`click [12]` are the same thing.
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
"""Of a number, in one token at most."""
VOCAB_SIZE = 3660
PAD = "<|pad|>"
SPECIALS = (PAD, *PlainTemplate.SPECIALS)

WORDS = tuple(
    "link button textbox checkbox radio combobox heading image cell text textarea searchbox tab "
    "click type hover clear press scroll goto stop done down up go_back go_forward new_tab "
    "tab_focus close_tab url title tabs notice more above below ocr cut lines options checked "
    "required current error at from http localhost shop classifieds forum wiki home".split()
)
"""One token each, at the start of a line and after a space, whatever else is in the corpus."""

_PIECES = r"\n| ?\p{L}+(?:_\p{L}+)?|\p{N}| ?[^\s\p{L}\p{N}]+|\s"
_NUMBERS = [str(n).zfill(size) for size in range(2, NUM_DIGITS + 1) for n in range(10**size)]


def train(texts: Iterable[str], *, vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """A tokenizer whose merges come from `texts`; the same texts give the same tokenizer."""
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
    # Often enough that every prefix of these words is merged before any pair of the corpus.
    forced = [f"{word} {word}" for word in WORDS] * 100_000
    tokenizer.train_from_iterator([*forced, *texts], trainer)
    tokenizer = with_numbers(tokenizer)
    numbered = [AddedToken(f" [{number}]", normalized=False) for number in range(NUM_IDS)]
    tokenizer.add_tokens(numbered)
    return tokenizer


def with_numbers(tokenizer: Tokenizer) -> Tokenizer:
    """`tokenizer`, in which digits stand alone, with all numbers of `NUM_DIGITS` digits and fewer.

    Merges by frequency would give those of the corpus alone. Both ways to a number of three digits
    are merges: which one a piece takes depends on which pair of its digits comes first.
    """
    values = json.loads(tokenizer.to_str())
    model = values["model"]
    for number in _NUMBERS:
        model["vocab"][number] = len(model["vocab"])
        ways = range(1, len(number))
        model["merges"] += [[number[:size], number[size:]] for size in ways]
    pieces = _PIECES.replace(r"\p{N}", rf"\p{{N}}{{1,{NUM_DIGITS}}}", 1)
    split = values["pre_tokenizer"]["pretokenizers"][0]
    assert split["pattern"] == {"Regex": _PIECES}
    split["pattern"] = {"Regex": pieces}
    return Tokenizer.from_str(json.dumps(values))


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
