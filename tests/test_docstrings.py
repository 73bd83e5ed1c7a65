"""Every public name of the packages is documented."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import test_imports as sources

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "agentkv": ROOT / "agentkv",
    "agentkv_env": ROOT / "env/agentkv_env",
    "agentkv_kernels": ROOT / "kernels/agentkv_kernels",
    "agentkv_tasks": ROOT / "tasks/agentkv_tasks",
}
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def trees() -> dict[Path, ast.Module]:
    """The packages that users import, parsed once for these tests and those of imports."""
    return {
        sources.MODULES[name]: tree
        for name, tree in sorted(sources.trees().items())
        if name.partition(".")[0] in PACKAGES
    }


def public(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Public classes and functions of a module, and public methods of public classes."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Definition) or child.name.startswith("_"):
            continue
        yield f"{prefix}{child.name}", child
        if isinstance(child, ast.ClassDef):
            yield from public(child, f"{prefix}{child.name}.")


@cache
def declared() -> set[str]:
    """Methods that may leave their docstring to the protocol or base class that declares them."""
    return {
        name.rpartition(".")[2]
        for tree in trees().values()
        for name, definition in public(tree)
        if "." in name and ast.get_docstring(definition)
    }


def is_declared(name: str) -> bool:
    return "." in name and name.rpartition(".")[2] in declared()


def is_view(path: Path) -> bool:
    """Views of the embedded sites are named by their routes."""
    return "sites" in path.parts


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_a_docstring(package: str) -> None:
    missing = [
        f"{path.relative_to(ROOT)}:{definition.lineno} {name}"
        for path, tree in trees().items()
        if path.is_relative_to(PACKAGES[package]) and not is_view(path)
        for name, definition in public(tree)
        if not ast.get_docstring(definition) and not is_declared(name)
    ]
    assert missing == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_has_a_docstring(package: str) -> None:
    missing = [
        str(path.relative_to(ROOT))
        for path, tree in trees().items()
        if path.is_relative_to(PACKAGES[package])
        and path.name != "__init__.py"
        and not ast.get_docstring(tree)
    ]
    assert missing == []
