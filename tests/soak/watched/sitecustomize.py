"""Imported by every Python of a run that `tests.soak.endurance` watches; see `count_contexts`."""

import gc
import os
import signal
import sys
from pathlib import Path


def count_contexts(*_: object) -> None:
    """Write the number of open browser contexts of this process to a file of its process id."""
    module = sys.modules.get("playwright.sync_api")
    kind = getattr(module, "Browser", None)
    browsers = [each for each in gc.get_objects() if kind is not None and type(each) is kind]
    path = Path(os.environ["SOAK_FOLDER"], f"{os.getpid()}.contexts")
    part = path.with_suffix(".part")
    part.write_text(str(sum(len(browser.contexts) for browser in browsers)))
    part.replace(path)


if "SOAK_FOLDER" in os.environ:
    signal.signal(signal.SIGUSR1, count_contexts)
