#!/usr/bin/env bash
# llguidance 1.9.1: two things that its JSON schemas accept and that the standard does not.
#
# 1. The format `date` admits days that do not exist, such as 2023-02-29, and the year 0000, which RFC 3339 (section 5.7)
#    and Python's `date.fromisoformat` refuse.
# 2. With `"$schema": "http://json-schema.org/draft-07/schema#"` the keywords `prefixItems` and `dependentRequired` are ignored
#    without a warning, as draft 7 does not know them. The same schema without `$schema` enforces `prefixItems`.
#
# Seen with llguidance 1.9.1, Python 3.11, on 27 November 2026:
#   2023-02-29 as a date: accepted
#   0000-01-01 as a date: accepted
#   ["a"] where the first item is an integer: accepted under draft 7, refused without $schema
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check 'llguidance==1.9.1' 'tokenizers==0.23.3'
cat > "$folder/try.py" <<'PY'
import json
from typing import Any

from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer, models, decoders, pre_tokenizers

alphabet = pre_tokenizers.ByteLevel.alphabet()
vocabulary = {character: number for number, character in enumerate(sorted(alphabet))}
vocabulary["<end>"] = len(vocabulary)
made = Tokenizer(models.BPE(vocabulary, []))
made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
made.decoder = decoders.ByteLevel()
made.add_special_tokens(["<end>"])
tokenizer = LLTokenizer(made.to_str(), eos_token=vocabulary["<end>"])


def accepts(schema: dict[str, Any], text: str) -> bool:
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema))
    assert not matcher.is_error(), matcher.get_error()
    ids = made.encode(text).ids
    return matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting()


date = {"type": "string", "format": "date"}
assert accepts(date, '"2024-02-29"') and not accepts(date, '"2024-13-01"')
for day in ("2023-02-29", "0000-01-01"):
    assert accepts(date, json.dumps(day)), day
    print(f"{day} as a date: accepted")
pair = {"type": "array", "prefixItems": [{"type": "integer"}], "minItems": 1}
older = {"$schema": "http://json-schema.org/draft-07/schema#", **pair}
assert accepts(older, '["a"]') and not accepts(pair, '["a"]') and accepts(pair, "[1]")
print('["a"] where the first item is an integer: accepted under draft 7, refused without $schema')
PY
"$folder/env/bin/python" "$folder/try.py"
