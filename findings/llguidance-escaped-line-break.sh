#!/usr/bin/env bash
# llguidance 1.9.1: a regex literal of its Lark dialect may not hold what Python's `re.escape` makes of a line break.
#
# `re.escape("\n")` is a backslash followed by the line break itself. In `A: /.../` this ends in "lexer error", although the
# same literal takes `\n` (backslash, n), and all other characters of ASCII that `re.escape` escapes, white space included.
# Whoever builds a grammar from texts of several lines has to replace the pair by `\n` after escaping.
#
# Seen with llguidance 1.9.1, Python 3.11, on 30 November 2026:
#   refused after re.escape: '\n'
#   accepted after re.escape: 127 of 128 characters
#   accepted as backslash and n: True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check 'llguidance==1.9.1' 'tokenizers==0.23.3'
cat > "$folder/try.py" <<'PY'
import re

from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

alphabet = pre_tokenizers.ByteLevel.alphabet()
vocabulary = {character: number for number, character in enumerate(sorted(alphabet))}
vocabulary["<end>"] = len(vocabulary)
made = Tokenizer(models.BPE(vocabulary, []))
made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
made.decoder = decoders.ByteLevel()
made.add_special_tokens(["<end>"])
tokenizer = LLTokenizer(made.to_str(), eos_token=vocabulary["<end>"])


def problem(pattern: str, text: str) -> str:
    """Return the error of a grammar that consists of one regex literal; empty if it accepts the text."""
    grammar = "start: A\nA: /" + pattern.replace("/", "\\/") + "/"
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar))
    if matcher.is_error():
        return matcher.get_error()
    ids = made.encode(text).ids
    is_whole = matcher.consume_tokens(ids) and matcher.is_accepting()
    return "" if is_whole else "not accepted"


texts = [f"a{chr(code)}b" for code in range(128)]
problems = {text[1]: found for text in texts if (found := problem(re.escape(text), text))}
assert list(problems) == ["\n"], problems
assert "lexer error" in problems["\n"], problems
print("refused after re.escape: '\\n'")
print(f"accepted after re.escape: {len(texts) - len(problems)} of {len(texts)} characters")
assert problem("a\\nb", "a\nb") == ""
print("accepted as backslash and n: True")
PY
"$folder/env/bin/python" "$folder/try.py"
