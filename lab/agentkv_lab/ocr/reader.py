"""Read pages of pictures in a process of its own, with the OCR of any checkout.

It runs as a file, with the checkout's `env` folder on PYTHONPATH. A line of standard input holds
the paths of a page's pictures as JSON, and the answer is a line with the seconds and each text.
With the argument `alone`, Tesseract reads each picture as it is, one run for each.
"""

import json
import os
import sys
import time
from collections.abc import Mapping

import pytesseract
from PIL import Image

LIMIT_S = 300.0
"""For one page; nothing is left out because the machine is slow."""


def main() -> None:
    """Answer until standard input ends."""
    read = _read_alone if sys.argv[1:] == ["alone"] else _read
    for line in sys.stdin:
        images = {path: Image.open(path).convert("RGB") for path in json.loads(line)}
        start = time.perf_counter()
        texts = read(images)
        seconds = time.perf_counter() - start
        print(json.dumps([seconds, [texts[path] for path in images]]), flush=True)


def _read(images: Mapping[str, Image.Image]) -> dict[str, str]:
    from agentkv_env.ocr import Ocr

    found = Ocr(timeout_s=LIMIT_S).read(images)
    return {path: "\n".join(line.text for line in lines) for path, lines in found.items()}


def _read_alone(images: Mapping[str, Image.Image]) -> dict[str, str]:
    os.environ["OMP_THREAD_LIMIT"] = "1"  # as `Ocr` does
    return {
        path: pytesseract.image_to_string(image, config="--psm 11", timeout=LIMIT_S)
        for path, image in images.items()
    }


if __name__ == "__main__":
    main()
