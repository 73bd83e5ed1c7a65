"""References inside a JSON schema."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote


class SchemaError(ValueError):
    """No reply can be made to follow a JSON schema.

    Args:
        at: JSON pointer to what is wrong.
        problem: what was found there, and what is possible instead.
    """

    def __init__(self, at: str, problem: str) -> None:
        super().__init__(f"{at or 'the root'}: {problem}")
        self.at = at


class SchemaReferences:
    """The places that references in a schema point to, by pointer, anchor or id.

    Args:
        root: the whole schema.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._named: dict[str, str] | None = None

    def find(self, reference: Any, at: str) -> tuple[str, Any]:
        """Return the pointer to what `reference`, found at the pointer `at`, means, and that.

        Raises:
            SchemaError: it is no reference, leads out of the schema, or to nothing in it.
        """
        if not isinstance(reference, str):
            raise SchemaError(at, f"a reference is text; found {shown(reference)}")
        base, _, fragment = reference.partition("#")
        if base:
            fragment = self._names.get(base, "") + fragment if base in self._names else reference
        pointer = unquote(fragment)
        if pointer and not pointer.startswith("/"):
            pointer = self._names.get(f"#{pointer}", pointer)
        if pointer and not pointer.startswith("/"):
            raise SchemaError(
                at,
                f"{shown(reference)} is no part of this schema; a reference is a pointer such as "
                "#/$defs/Name, an anchor or an id in the schema itself",
            )
        return pointer, self._at(pointer, reference, at)

    def _at(self, pointer: str, reference: str, at: str) -> Any:
        found: Any = self._root
        for part in pointer.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            else:
                known = [f"#/{group}/{name}" for group, name in self._definitions()]
                raise SchemaError(
                    at,
                    f"{shown(reference)} points to nothing; the definitions are "
                    f"{', '.join(known[:8]) or 'none'}",
                )
        return found

    def _definitions(self) -> Iterator[tuple[str, str]]:
        for group in ("$defs", "definitions"):
            members = self._root.get(group)
            for name in members if isinstance(members, Mapping) else ():
                yield group, name

    @property
    def _names(self) -> dict[str, str]:
        """Pointers to what anchors (`#name`) and ids name; the root has an empty one."""
        if self._named is None:
            self._named = {}
            waiting: list[tuple[str, Any]] = [("", self._root)]
            while waiting:
                pointer, found = waiting.pop()
                if isinstance(found, Mapping):
                    for key, mark in (("$id", ""), ("id", ""), ("$anchor", "#")):
                        if isinstance(name := found.get(key), str):
                            self._named.setdefault(mark + name.removesuffix("#"), pointer)
                    waiting += [(f"{pointer}/{escaped(key)}", each) for key, each in found.items()]
                elif isinstance(found, list):
                    waiting += [(f"{pointer}/{i}", each) for i, each in enumerate(found)]
        return self._named


def escaped(key: str) -> str:
    """Return a member's name as a part of a JSON pointer."""
    return str(key).replace("~", "~0").replace("/", "~1")


def shown(value: Any) -> str:
    """Return a value as an error quotes it."""
    return repr(value)[:100]
