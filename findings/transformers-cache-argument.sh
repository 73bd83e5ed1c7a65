#!/usr/bin/env bash
# transformers 5.24.0: a forward calls its cache `cache`. It still takes `past_key_values`, but no longer names it.
#
# A decorator renames the argument inside of the call. What stands around the call sees this:
# 1. `inspect.signature(model.forward)` has no `past_key_values`. Code that passes only arguments that the signature names, as
#    wrappers of many models do, drops the cache without an error. Logits of a second piece are those of a text of its own.
# 2. A forward hook with keyword arguments gets whichever name the caller used: `generate` gives `cache` even if its own caller
#    gave `past_key_values`.
#
# Seen with transformers 5.24.0 (torch 2.13.0), Python 3.11, on 28 November 2026:
#   5.23.0: the signature names ['past_key_values']; hooks under generate see ['past_key_values']
#   5.23.0: a call filtered by the signature forgets the first piece: False
#   5.24.0: the signature names ['cache']; hooks under generate see ['cache']
#   5.24.0: a call filtered by the signature forgets the first piece: True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
cat > "$folder/try.py" <<'PY'
import inspect
import sys
import warnings

import torch
import transformers
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

warnings.simplefilter("ignore", FutureWarning)
torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
names = ("past_key_values", "cache")
known = inspect.signature(model.forward).parameters
named = [name for name in names if name in known]
seen = []
hook = model.register_forward_pre_hook(lambda _, args, given: seen.extend(n for n in names if n in given), with_kwargs=True)
first, second = torch.randint(3, 64, (1, 12)), torch.randint(3, 64, (1, 4))
model.generate(first, past_key_values=DynamicCache(), max_new_tokens=2, do_sample=False, pad_token_id=0)
hook.remove()
print(f"{transformers.__version__}: the signature names {named}; hooks under generate see {sorted(set(seen))}")


@torch.no_grad()
def last(is_filtered):
    kept = DynamicCache()
    for ids in (first, second):
        given = {"input_ids": ids, "past_key_values": kept, "use_cache": True}
        if is_filtered:
            given = {name: value for name, value in given.items() if name in known}
        logits = model(**given).logits
    return logits[0, -1]


with torch.no_grad():
    whole, alone = model(torch.cat([first, second], dim=1)).logits[0, -1], model(second).logits[0, -1]
assert torch.allclose(last(False), whole, atol=1e-4)
forgets = torch.allclose(last(True), alone, atol=1e-4) and not torch.allclose(alone, whole, atol=1e-4)
print(f"{transformers.__version__}: a call filtered by the signature forgets the first piece: {forgets}")
expected = (["past_key_values"], ["past_key_values"], False) if sys.argv[1] == "old" else (["cache"], ["cache"], True)
assert (named, sorted(set(seen)), forgets) == expected
PY
"$folder/env/bin/pip" install --quiet --disable-pip-version-check 'torch==2.13.0' 'transformers==5.23.0' 'numpy==2.4.6'
"$folder/env/bin/python" "$folder/try.py" old
"$folder/env/bin/pip" install --quiet --disable-pip-version-check 'transformers==5.24.0'
"$folder/env/bin/python" "$folder/try.py" new
