"""Word tokenizer that splits text as NLTK's `word_tokenize` does.

VisualWebArena compares one-word references with whole tokens, so the tokenizer decides scores:
`$25.00` contains the word `25.00`, `cannot` contains `can` and `not`, and `12:30` is one word.
NLTK's sentence splitter needs downloaded data; a short list of abbreviations replaces it. The
list matters only for a period inside a text, because a final period is always a separate word.

Source: the Penn Treebank conventions in NLTK's documentation. The rules are our own; they were
compared with NLTK 3.9.1 on every reference of the 910 official tasks.
"""

import re

_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st ave blvd rd no vs etc inc ltd co corp jr sr dept est fig vol pp ed "
    "jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun "
    "a.m p.m e.g i.e u.s u.k u.n ph.d".split()
)  # NLTK's English model also treats `no` as an abbreviation
_SENTENCE_END = re.compile(r"(\S*?)([.?!]+)([\"')\]}>»”’]*)\s+(?=\S)")

# Each rule puts spaces around separate words; the order matters.
_RULES = [
    # opening quotes
    (re.compile(r"([«“‘„]|`+)"), r" \1 "),
    (re.compile(r'^"'), "``"),
    (re.compile(r"(``)"), r" \1 "),
    (re.compile(r"([ (\[{<])(\"|'{2})"), r"\1 `` "),
    (re.compile(r"(?i)(')(?!re|ve|ll|m|t|s|d|n)(\w)\b"), r"\1 \2"),
    # punctuation; commas and colons stay inside numbers
    (re.compile(r"([^.])(\.)([\])}>\"'»”’ ]*)\s*$"), r"\1 \2 \3 "),
    (re.compile(r"([:,])(\D)"), r" \1 \2"),
    (re.compile(r"([:,])$"), r" \1 "),
    (re.compile(r"(\.{2,})"), r" \1 "),
    (re.compile(r"([;@#$%&])"), r" \1 "),
    (re.compile(r"([^.])(\.)([\])}>\"']*)\s*$"), r"\1 \2\3 "),
    (re.compile(r"([?!])"), r" \1 "),
    (re.compile(r"([^'])' "), r"\1 ' "),
    (re.compile(r"([*])"), r" \1 "),
    # brackets and dashes
    (re.compile(r"([\]\[(){}<>])"), r" \1 "),
    (re.compile(r"--"), r" -- "),
]
_ENDINGS = [
    # closing quotes, possessives, contractions; the sentence has a space at both ends
    (re.compile(r"([»”’])"), r" \1 "),
    (re.compile(r"''"), " '' "),
    (re.compile(r'"'), " '' "),
    (re.compile(r"\s+"), " "),
    (re.compile(r"([^' ])('s|'m|'d|') ", re.IGNORECASE), r"\1 \2 "),
    (re.compile(r"([^' ])('ll|'re|'ve|n't) ", re.IGNORECASE), r"\1 \2 "),
    (re.compile(r"(?i)\b(can)(not)\b"), r" \1 \2 "),
    (re.compile(r"(?i)\b(d)('ye)\b"), r" \1 \2 "),
    (re.compile(r"(?i)\b(gim|lem)(me)\b"), r" \1 \2 "),
    (re.compile(r"(?i)\b(gon)(na)\b"), r" \1 \2 "),
    (re.compile(r"(?i)\b(got)(ta)\b"), r" \1 \2 "),
    (re.compile(r"(?i)\b(more)('n)\b"), r" \1 \2 "),
    (re.compile(r"(?i)\b(wan)(na)(?=\s)"), r" \1 \2 "),
    (re.compile(r"(?i) ('t)(is|was)\b"), r" \1 \2 "),
]


def words(text: str) -> list[str]:
    """Split `text` into words; a double quote becomes two backticks or two apostrophes."""
    return [word for sentence in _sentences(text) for word in _sentence_words(sentence)]


def _sentence_words(sentence: str) -> list[str]:
    for pattern, spaced in _RULES:
        sentence = pattern.sub(spaced, sentence)
    sentence = f" {sentence} "
    for pattern, spaced in _ENDINGS:
        sentence = pattern.sub(spaced, sentence)
    return sentence.split()


def _sentences(text: str) -> list[str]:
    found: list[str] = []
    begin = 0
    for match in _SENTENCE_END.finditer(text):
        word, mark = match[1].lower().lstrip("\"'([{"), match[2]
        if mark == ".":
            is_initial = len(word) == 1 and word.isalpha()
            if is_initial or word in _ABBREVIATIONS or _is_number(word):
                continue
        elif set(mark) == {"."}:  # an ellipsis does not end a sentence
            continue
        found.append(text[begin : match.end()].strip())
        begin = match.end()
    rest = text[begin:].strip()
    return [*found, rest] if rest else found


def _is_number(word: str) -> bool:
    return bool(re.fullmatch(r"-?[\d.,]*\d", word))
