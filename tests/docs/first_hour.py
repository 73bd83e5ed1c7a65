"""Write docs/first-hour.md: the README's commands as typed, with what they print.

    python -m tests.docs.first_hour            # from the repository, by any Python; ten minutes

The commands run one after the other in a new clone with a new home and a new environment, at 80
columns. Of the caller's environment they see only the path and pip's settings, so that a CPU build
of torch that pip finds here is taken there.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "first-hour.md"
MEASURES = "agentkv bench"
"""Beginning of commands whose output is times of one machine."""
STAYS = ("agentkv serve", "agentkv sites", "agentkv mcp")
"""Beginnings of commands that run until somebody stops them."""
STAYS_S = 30
"""Seconds after which the page presses Ctrl-C."""
MAX_LINE = 240
"""Characters that the page shows of a line in JSON."""
EXTRA = ".[mcp]"
"""What `agentkv mcp` needs, as the README says."""
NEEDS_MODEL = "./my-model"
"""A folder that only the reader has; on the page it is nano's."""


def commands(text: str) -> list[str]:
    """Return the commands in a page's indented blocks, in order, without comments."""
    typed = re.findall(r"^    ((?:agentkv|make|git clone|cd|\.) .*)$", text, re.M)
    return [re.split(r"\s{2,}#", line)[0].strip() for line in typed]


def is_run(command: str) -> bool:
    """Whether `command` ends by itself, soon, and needs nothing of the reader's."""
    return not command.startswith((MEASURES, *STAYS)) and NEEDS_MODEL not in command


def snippets(text: str) -> list[str]:
    """Return the page's Python blocks, in order."""
    return re.findall(r"```python\n(.*?)```", text, re.S)


def _cut(line: str) -> str:
    """Shorten a line for programs, such as the last one of a benchmark."""
    is_long = line.startswith("{") and len(line) > MAX_LINE
    return f"{line[:MAX_LINE]} ..." if is_long else line


def _printed(arguments: list[str] | str, folder: Path, home: Path) -> str:
    path = os.pathsep.join([str(folder / ".venv" / "bin"), os.environ["PATH"]])
    settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    done = subprocess.run(
        arguments,
        shell=isinstance(arguments, str),
        cwd=folder,
        env={**settings, "HOME": str(home), "PATH": path, "COLUMNS": "80"},
        executable="/bin/bash" if isinstance(arguments, str) else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    for private, shown in ((folder, "~/agentkv"), (home, "~")):
        done.stdout = done.stdout.replace(str(private), shown)
    lines = [_cut(line.rstrip()) for line in done.stdout.splitlines()]
    code = f"(exit code {done.returncode})" if done.returncode else ""
    return "\n".join(filter(None, ["\n".join(lines), code]))


def main() -> None:
    """Run everything and write the page."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    parts = [
        "# The first hour",
        "The commands and snippets of the README as typed, in order, with what they print in a "
        "terminal of 80\ncolumns: a new clone, a new home, two cores without a GPU. "
        "`python -m tests.docs.first_hour` writes this page.",
    ]
    with tempfile.TemporaryDirectory() as temporary:
        home, folder = Path(temporary) / "home", Path(temporary) / "agentkv"
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        (folder / NEEDS_MODEL).symlink_to(folder / "agentkv" / "models" / "nano")
        for command in commands(text):
            parts.append(f"## `{command}`")
            print(command, file=sys.stderr, flush=True)
            if command.startswith(MEASURES):
                parts.append("Times of a busy machine; [benchmarks](benchmarks.md) have results.")
            if NEEDS_MODEL in command:
                parts.append("Here `my-model` is a link to nano's folder.")
            if command.startswith("agentkv mcp"):
                _printed(f"pip install --quiet -e {EXTRA!r}", folder, home)
            if command.startswith(STAYS):
                parts.append(f"Until Ctrl-C, after {STAYS_S} seconds here:")
                command = f"timeout --signal=INT {STAYS_S} {command} || true"
            printed = _printed(command, folder, home)
            parts.append(f"```text\n{printed}\n```" if printed else "Prints nothing.")
        for number, block in enumerate(snippets(text), start=1):
            print(f"snippet {number}", file=sys.stderr, flush=True)
            printed = _printed([str(folder / ".venv/bin/python"), "-c", block], folder, home)
            parts += [
                f"## Snippet {number}",
                f"```python\n{block}```",
                f"```text\n{printed}\n```",
            ]
    PAGE.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
