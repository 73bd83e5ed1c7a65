#!/usr/bin/env bash
# transformers 5.23.0: prompt lookup with a cache that is not empty reads the whole prompt into it once more.
#
# `generate` continues a conversation when it is given the ids of all turns and the cache of the earlier ones: it feeds only
# what the cache has not read. With `prompt_lookup_num_tokens` it feeds everything again in the second turn, so the cache holds
# the first turn twice: it takes twice the memory, and the reply attends to every earlier token two times. In the first turn,
# with an empty cache, the option changes neither the tokens nor the length of the cache.
#
# Seen with transformers 5.23.0 and torch 2.13.0 on a CPU, Python 3.11, on 27 November 2026:
#   first turn: equal tokens, 71 entries with and without prompt lookup
#   second turn: 92 entries without, 163 with
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check 'transformers==5.23.0' 'torch==2.13.0' 'numpy==2.4.6'
cat > "$folder/try.py" <<'PY'
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        eos_token_id=None,
    )
).eval()
first = torch.randint(5, 500, (1, 20)).repeat(1, 3)
message = torch.randint(5, 500, (1, 9))


def two_turns(**options: int) -> list[tuple[int, list[int]]]:
    cache, ids, found = DynamicCache(config=model.config), first, []
    for more in (None, message):
        ids = ids if more is None else torch.cat([ids, more], dim=1)
        ids = model.generate(ids, past_key_values=cache, max_new_tokens=12, do_sample=False, **options)
        found.append((cache.get_seq_length(), ids[0].tolist()))
    return found


plain, lookup = two_turns(), two_turns(prompt_lookup_num_tokens=3)
assert plain[0] == lookup[0]
print(f"first turn: equal tokens, {plain[0][0]} entries with and without prompt lookup")
print(f"second turn: {plain[1][0]} entries without, {lookup[1][0]} with")
assert lookup[1][0] == plain[1][0] + plain[0][0]
PY
"$folder/env/bin/python" -W ignore "$folder/try.py" 2>"$folder/errors" || { cat "$folder/errors" >&2; exit 1; }
