"""The table of `docs/families.md`: run as a module, it writes the table anew."""

import re
from pathlib import Path

from agentkv.cache.hf.decoder import unknown_code
from agentkv.cache.hf.families import describe
from agentkv.cache.refusals import refused_policies
from tests.agentkv.cache.every_family import CHANGES, SEEING, SINCE_5, tiny

PAGE = Path(__file__).parents[2] / "docs" / "families.md"


def rows() -> str:
    """The lines of the table, one per family."""
    lines = []
    for family in sorted(CHANGES):
        model = tiny(family)
        refused = refused_policies(describe(model))
        others = [f"not {' and '.join(names)}: it {why}" for why, names in refused.items()]
        kind, _, size = family.partition(" ")
        name = ", ".join(filter(None, (f"`{kind}`", size, "text alone" * (family in SEEING))))
        step = "transformers" if unknown_code(model) else "compiled"
        oldest = "5.23" if family in SINCE_5 else "4.57, 5.23"
        lines.append(f"| {name} | {'; '.join(others) or 'all'} | {step} | {oldest} |\n")
    return "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(re.sub(r"(\| `.*\|\n)+", lambda _: rows(), PAGE.read_text(), count=1))
