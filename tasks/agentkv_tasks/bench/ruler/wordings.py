"""What the model is shown: the wordings of all tasks.

Their shapes are those of RULER (arXiv 2404.06654) and SCBench (arXiv 2412.10319): a line about the
context, the context, a question, and the words with which the reply begins. The words are our own.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wording:
    """The texts around one context, with braces for what is drawn."""

    intro: str
    """Stands before the context and says what it holds, not what will be asked."""
    asks: str
    """The question after the context."""
    starts: str
    """Beginning of the reply, which the model continues; it is no part of the reply."""


SECRET = "The secret number of {key} is {value}."
"""A needle."""
SET, COPIED = "VAR {name} = {value}.", "VAR {name} = VAR {value}."
"""A variable with a value, and one with the value of another."""

NOISE = (
    "The lake is calm.",
    "The road is long.",
    "The bread is warm.",
    "We walk on.",
    "Home again at night.",
)
"""Sentences that are repeated in this order."""

_HIDDEN = "Secret numbers are hidden in the following text. Remember them."
_VARIABLES = "Remember which variables have which value in the following text."

ONE_SECRET = Wording(
    _HIDDEN,
    "What is the secret number of {key} in the text above?",
    "The secret number of {key} is",
)
SECRETS_OF_ONE = Wording(
    _HIDDEN,
    "What are all {count} secret numbers of {key} in the text above?",
    "The {count} secret numbers of {key} are",
)
SECRETS_OF_SEVERAL = Wording(
    _HIDDEN,
    "What are the secret numbers of {keys} in the text above?",
    "The secret numbers of {keys} are",
)
VARIABLES = Wording(
    _VARIABLES,
    "Which {count} variables have the value {value} in the text above?",
    "The {count} variables with the value {value} are VAR",
)
COMMON_WORDS = Wording(
    "In the following numbered list some words occur more often than others. Remember these.",
    "Which {count} words occur most often in the list above?",
    "The {count} words that occur most often are",
)
FREQUENT_WORDS = Wording(
    "Remember the coded words that occur most often in the following text.",
    "Which {count} coded words occur most often in the text above, dots apart?",
    "The {count} coded words that occur most often are",
)
KEY_VALUE = Wording(
    "Remember the values of the keys in the following JSON object.",
    'What is the value of the key "{key}" in the JSON object above?',
    '"{key}": "',
)
PREFIX_SUFFIX = Wording(
    "Remember the strings in the following list.",
    'Which string in the list above begins with "{prefix}" and ends with "{suffix}"?',
    "The string is",
)
FIND = Wording(
    "Remember the numbers in the following list.",
    "What is the {which} number in the list above?",
    "Of all numbers in the list above, the {which} one is",
)

ADJECTIVES = tuple(
    "amber brave bright calm clever cold curious dusty eager early fair fancy gentle golden grand "
    "green happy heavy hidden honest humble jolly keen late lively lucky merry mild noble odd "
    "patient plain polite proud quick quiet rapid royal rusty sharp shy silent silver simple "
    "smooth solid steady stormy sunny tiny warm wild wise witty young".split()
)
NOUNS = tuple(
    "anchor apple arrow badge basket beach bell boat bottle bridge brush bucket button candle "
    "canyon carpet castle chair cherry cloud coat coin desert dragon drum eagle engine falcon "
    "feather fence forest fountain garden glove hammer harbor hill island jacket kettle ladder "
    "lamp lemon meadow mirror mountain needle ocean orchard paper pencil pepper piano pillow "
    "planet pocket rabbit ribbon river rocket saddle shadow shell spoon statue stone table "
    "thunder ticket tiger tower tunnel valley violin wagon window winter yard".split()
)
