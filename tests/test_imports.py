"""Import rules: packages and their floors, checked by reading the source."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = {
    "agentkv": ROOT,
    "agentkv_env": ROOT / "env",
    "agentkv_kernels": ROOT / "kernels",
    "agentkv_tasks": ROOT / "tasks",
    "agentkv_lab": ROOT / "lab",
    "train_nano": ROOT / "lab",
    "train_smollm2": ROOT / "lab",
}
ALLOWED = {
    "agentkv_kernels": {"agentkv_kernels"},
    "agentkv_env": {"agentkv_env"},
    "agentkv": {"agentkv", "agentkv_env", "agentkv_kernels"},
    "agentkv_tasks": set(ROOMS) - {"agentkv_lab", "train_nano", "train_smollm2"},
    "agentkv_lab": set(ROOMS),
    "train_nano": set(ROOMS),
    "train_smollm2": set(ROOMS),
}
# From the bottom up: a room may import rooms of lower floors, and itself. A new room goes here.
FLOORS = {
    "agentkv_kernels": (
        "decoder formats ema look processor weights",
        "digests entries layout",
        "attention ragged",
        "numba triton",
        "device",
        "confidence",
    ),
    "agentkv_env": (
        "async_bridge flatten hosts keys loading masking page processes sanitize sites timing "
        "user_cache",
        "actions errors held ocr proxy serialize watchdog",
        "changes driver named_secrets nodes page_script request_filter uploads",
        "page_dialogs tab",
        "place tabs",
        "choices histories keyed reader",
        "person writing",
        "fields",
        "executor",
        "session",
        "attached browser",
    ),
    "agentkv": (
        "defaults nearest progress startup",
        "advice browsing dialog files hub policies settings terminal weights",
        "cache recordings status_line trace",
        "answer_form",
        "models",
        "demonstration episode",
        "agent",
        "async_session build",
        "plan",
        "serve",
        "__main__ adapters",
    ),
    "agentkv_tasks": (
        "addresses measured peak_memory progress provenance results settings task",
        "evaluate goal report sites template",
        "miniwob own_sites vwa75",
        "visualwebarena vwa_long vwa_unseen",
        "suites",
        "run show",
        "bench calibrate from_python record train",
        "cli",
    ),
    "agentkv_lab": (
        "outputs svg texts",
        "at_once concentration confidence edited forked gpu injection ocr perturbation picture "
        "ranking reach removal rounding states trigger",
        "lengths mechanisms questions",
        "__main__",
    ),
    "train_nano": (
        "attention optimizer passages tokenizer wording",
        "episode",
        "annotate associative_recall copying drills model paraphrase quoting record reword workers",
        "augment lookups loss page_recall random_walk teacher_forcing",
        "corpus data",
        "mixture record_miniwob rephrase",
        "drawers settings",
        "train",
        "check",
    ),
    "train_smollm2": ("export recordings settings", "__main__ recipe"),
}


DOOR = "agentkv.__main__"
"""`python -m agentkv`, which finds the command line by name and which nothing imports."""


def modules() -> dict[str, Path]:
    found = {}
    for package, root in ROOMS.items():
        for path in (root / package).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(part for part in parts if part != "__init__")] = path
    return found


MODULES = modules()


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that the code imports, wherever: in functions and for type checking too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"relative import in line {node.lineno}"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in names)
        elif isinstance(node, ast.Call) and _called(node.func) == "import_module":
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant))


def _called(function: ast.expr) -> str | None:
    return getattr(function, "attr", getattr(function, "id", None))


def ours(names: Iterator[str]) -> set[str]:
    return {name for name in names if name.partition(".")[0] in ROOMS}


@cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


@cache
def named() -> dict[str, set[str]]:
    return {name: ours(imports(tree)) for name, tree in trees().items()}


def of_package(package: str) -> list[str]:
    return sorted(module for module in MODULES if module.partition(".")[0] == package)


@pytest.mark.parametrize("package", ROOMS)
def test_a_room_imports_only_what_it_may(package: str) -> None:
    forbidden = {
        f"{module} imports {name}"
        for module in of_package(package)
        for name in named()[module]
        if module != DOOR and name.partition(".")[0] not in ALLOWED[package]
    }
    assert forbidden == set()


def floor_of(module: str) -> int:
    """The floor of the room that holds `module`; raises KeyError for a room without one."""
    package, _, inside = module.partition(".")
    floors = {
        room: number for number, rooms in enumerate(FLOORS[package]) for room in rooms.split()
    }
    return floors[inside.partition(".")[0]]


@pytest.mark.parametrize("package", ROOMS)
def test_inside_a_package_imports_point_down(package: str) -> None:
    upward = set()
    for module in of_package(package):
        if "." not in module:
            continue
        room, floor = ".".join(module.split(".")[:2]), floor_of(module)
        siblings = {
            name
            for name in named()[module] & set(MODULES)
            if name.startswith(f"{package}.") and name != room and not name.startswith(f"{room}.")
        }
        upward |= {f"{module} imports {name}" for name in siblings if floor_of(name) >= floor}
    assert upward == set()


def test_every_floor_holds_rooms_that_exist() -> None:
    rooms = {name for name in MODULES if name.count(".") == 1}
    listed = {
        f"{package}.{room}"
        for package, floors in FLOORS.items()
        for rooms_of_floor in floors
        for room in rooms_of_floor.split()
    }
    assert listed == rooms


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module: named()[module] & set(MODULES) - {module} for module in MODULES}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join([*trail[trail.index(module) :], module])
        if module not in done:
            for needed in sorted(graph[module]):
                visit(needed, (*trail, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())


def test_the_library_names_the_tasks_only_where_its_public_names_are_looked_up() -> None:
    """`agentkv.run` and `python -m agentkv` are found by name when they are asked for."""
    naming = {
        module
        for module in of_package("agentkv")
        if any(
            isinstance(node, ast.Constant) and str(node.value).startswith("agentkv_tasks")
            for node in ast.walk(trees()[module])
        )
    }
    assert naming == {"agentkv", DOOR}


@pytest.mark.parametrize("room", ["env", "kernels", "tasks", "lab"])
def test_the_workspaces_are_no_packages_themselves(room: str) -> None:
    assert not (ROOT / room / "__init__.py").exists()


def at_import(node: ast.AST) -> Iterator[ast.stmt]:
    """The import statements that run when a module is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from at_import(ast.Module(child.orelse, []))
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from at_import(child)


def test_a_cache_is_measured_without_what_only_episodes_need() -> None:
    absent = {"playwright", "pytesseract", "llguidance", "starlette", "uvicorn"}
    waiting = ["agentkv_tasks.bench.speed.measure", "agentkv_tasks.bench.memory.measure"]
    waiting += [name for name in MODULES if name.startswith("agentkv.policies.named.")]
    reached: set[str] = set()
    while waiting:
        module = waiting.pop()
        reached.add(module)
        parts = module.split(".")
        needed = {".".join(parts[:number]) for number in range(1, len(parts))}
        needed |= set(imports(ast.Module(list(at_import(trees()[module])), [])))
        assert not {name.partition(".")[0] for name in needed} & absent, module
        waiting += sorted(needed & set(MODULES) - reached)
    assert {"agentkv.cache.cache", "agentkv_kernels.device"} <= reached
