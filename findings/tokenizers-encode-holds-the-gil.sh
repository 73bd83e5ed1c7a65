#!/usr/bin/env bash
# tokenizers 0.23.3: `Tokenizer.encode` and `decode` keep all other Python threads from running; the batch forms do not.
#
# A server that encodes a long prompt in a thread expects its other threads to go on, since the work is done in Rust. With
# `encode(text)` and `decode(ids)` no other thread runs until the call returns, seconds for some megabytes of text. The same
# work as a batch of one, `encode_batch([text])`, `encode_batch_fast([text])` or `decode_batch([ids])`, lets them run.
# `encode_batch_fast`, which leaves the offsets out, also took a third of the time.
#
# Seen with tokenizers 0.23.3, Python 3.11, on 27 November 2026, with 2.4 million characters; the longest time without another
# thread, as a share of the call:
#   encode: 0.94, decode: 1.00
#   encode_batch: 0.02, encode_batch_fast: 0.01, decode_batch: 0.06
# The script expects more than 0.5 of the first two and less of the others.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check 'tokenizers==0.23.3'
cat > "$folder/try.py" <<'PY'
import threading
import time
from collections.abc import Callable

from tokenizers import Tokenizer, models, pre_tokenizers

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
text = "one two three four five " * 100_000
ids = tokenizer.encode_batch_fast([text])[0].ids


def share_without_others(call: Callable[[], object]) -> float:
    """Return the longest time in which no other thread ran, as a share of a call's time."""
    ran_at: list[float] = []
    is_over = threading.Event()

    def run() -> None:
        while not is_over.is_set():
            ran_at.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.1)
    begin = time.monotonic()
    call()
    took = time.monotonic() - begin
    time.sleep(0.1)
    is_over.set()
    thread.join()
    return max(after - before for before, after in zip(ran_at, ran_at[1:])) / took


calls = {
    "encode": lambda: tokenizer.encode(text),
    "decode": lambda: tokenizer.decode(ids),
    "encode_batch": lambda: tokenizer.encode_batch([text]),
    "encode_batch_fast": lambda: tokenizer.encode_batch_fast([text]),
    "decode_batch": lambda: tokenizer.decode_batch([ids]),
}
for name, call in calls.items():
    share = share_without_others(call)
    print(f"{name}: {share:.2f}")
    assert (share > 0.5) == (name in ("encode", "decode")), f"{name}: expected otherwise"
PY
"$folder/env/bin/python" "$folder/try.py"
