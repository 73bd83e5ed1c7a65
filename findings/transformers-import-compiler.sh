#!/usr/bin/env bash
# transformers 5.23.0: importing PreTrainedModel imports torch's compiler and the code of continuous batching.
#
# torch loads `torch._dynamo` only when something is compiled. transformers' `modeling_utils` imports it at once, through
# `integrations.hub_kernels`, `integrations.flash_attention` and `generation.continuous_batching.cache`, where a decorator
# `@torch.compiler.disable` stands on a method of a cache for continuous batching. torch imports `torch._dynamo` to make that
# decorator. So a process that loads a model on a CPU and compiles nothing takes tens of MiB more, before the
# first weight. Where Triton is installed, it is imported as well.
#
# Seen with transformers 5.23.0, torch 2.13.0, Python 3.11, Linux, on 29 November 2026:
#   after torch: compiler imported False
#   after modeling_utils: compiler imported True, continuous batching imported True
#   the compiler takes more than 30 MiB: True
# The script expects these lines.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check 'torch==2.13.0' 'transformers==5.23.0' 'numpy==2.4.6'
cat > "$folder/try.py" <<'PY'
import sys

import torch


def resident():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


print("after torch: compiler imported", "torch._dynamo" in sys.modules)
if sys.argv[1:] == ["alone"]:
    before = resident()
    torch.compiler.disable(print)
    print("the compiler takes more than 30 MiB:", resident() - before > 30)
else:
    import transformers.modeling_utils

    batching = "transformers.generation.continuous_batching.cache" in sys.modules
    found = "torch._dynamo" in sys.modules
    print(f"after modeling_utils: compiler imported {found}, continuous batching imported {batching}")
PY
"$folder/env/bin/python" "$folder/try.py" > "$folder/seen"
"$folder/env/bin/python" "$folder/try.py" alone | tail -1 >> "$folder/seen"
cat "$folder/seen"
diff "$folder/seen" - <<'SEEN'
after torch: compiler imported False
after modeling_utils: compiler imported True, continuous batching imported True
the compiler takes more than 30 MiB: True
SEEN
echo "transformers still imports torch's compiler with every model"
