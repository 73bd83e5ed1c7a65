"""40 TOML files with run settings or composed policies: each is read or refused in one line."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.soak.command_line import NO_BROWSER, invoke
from tests.soak.part import Part, Verdict

TOTAL = 40

_SMALL = Path(__file__).parents[1] / "tasks" / "data" / "small.json"
_DEEP = 100_000


def cases() -> Iterator[tuple[str, bytes, bool]]:
    """Yield name, file content, and whether the file must be refused."""
    for name, (text, refused) in {**_SETTINGS, **_POLICIES}.items():
        yield name, text if isinstance(text, bytes) else text.encode(), refused


def check(name: str, content: bytes, refused: bool, folder: Path) -> Verdict:
    """Start a run with the file as settings or policy; a valid file fails at the browser."""
    path = folder / "mine.toml"
    path.write_bytes(content)
    given = ["--browser-path", NO_BROWSER, "--out", str(folder / "out")]
    if name in _SETTINGS:
        if b"tasks" not in content:
            given += ["--tasks", str(_SMALL)]
        return invoke(name, ["run", "--config", str(path), *given], folder, refused=refused)
    given += ["--tasks", str(_SMALL), "--model", "nano"]
    return invoke(name, ["run", "--policies", str(path), *given], folder, refused=refused)


def run() -> Iterator[Verdict]:
    with tempfile.TemporaryDirectory() as folder:
        for name, content, refused in cases():
            yield check(name, content, refused, Path(folder))


_SETTINGS: dict[str, tuple[str | bytes, bool]] = {
    "nothing": ("", False),
    "some settings": ('model = "stop"\npolicies = ["full"]\nseeds = [1, 2]', False),
    "not utf-8": (b"\xff\xfe", True),
    "a byte order mark": (b'\xef\xbb\xbfmodel = "stop"', True),
    "zeros": (b"\x00" * 100, True),
    "no TOML": ("model: stop", True),
    "a name twice": ('model = "stop"\nmodel = "nano"', True),
    "an unknown name": ('modle = "stop"', True),
    "deep lists": ("seeds = " + "[" * _DEEP + "]" * _DEEP, True),
    "a key of 100,000 parts": ("a." * _DEEP + "b = 1", True),
    "a key of 1,900 parts": ("a." * 1900 + "b = 1", True),
    "deep parameters": (
        'policies = [{name = "window", parameters = {x = ' + "[" * 300 + "]" * 300 + "}}]",
        True,
    ),
    "a number of 5,000 digits": ("world_seed = " + "9" * 5000, True),
    "a seed beyond 64 bits": ("seeds = [99999999999999999999]", True),
    "temperature inf": ("temperature = inf", True),
    "temperature nan": ("temperature = nan", True),
    "temperature 1e400": ("temperature = 1e400", True),
    "temperature 1e-320": ("temperature = 1e-320", True),
    "timeout inf": ("timeout_s = inf", True),
    "no policies": ("policies = []", True),
    "a policy without a name": ("policies = [{label = 'x'}]", True),
    "a label of another policy": (
        'policies = [{name = "streaming", parameters = {sinks = 8}, label = "h2o"}]',
        True,
    ),
    "a zero byte in a model": ('model = "a\\u0000b"', True),
    "a zero byte in the tasks": ('tasks = "a\\u0000b"', True),
    "a budget of 400 digits": (f'budget = "{"9" * 400}MiB"', True),
    "a budget of nothing": ('budget = ""', True),
}

_POLICIES: dict[str, tuple[str | bytes, bool]] = {
    "a policy": ('name = "mine"\nbase = "window"\nprecision = "int8"', False),
    "a policy with parameters": (
        'name = "mine"\nbase = { of = "conf-kv-int8", parameters = { threshold = 0.8 } }',
        False,
    ),
    "a policy of nothing": ("", True),
    "a policy without a base": ('name = "mine"', True),
    "a policy of an unknown one": ('name = "mine"\nbase = "gatd"', True),
    "a policy of itself": ('name = "mine"\nbase = "mine.toml"', True),
    "a part of a wrong type": ('name = "mine"\nbase = "full"\nscorer = 3', True),
    "an unknown part": ('name = "mine"\nbase = "full"\nsorter = "h2o"', True),
    "an unknown parameter": (
        'name = "mine"\nbase = { of = "window", parameters = { sinkz = 1 } }',
        True,
    ),
    "a parameter that is nan": (
        'name = "mine"\nbase = { of = "conf-kv", parameters = { threshold = nan } }',
        True,
    ),
    "a parameter of a wrong type": (
        'name = "mine"\nbase = { of = "snapkv", parameters = { window = [1, 2] } }',
        True,
    ),
    "a parameter of 5,000 digits": (
        'name = "m"\nbase = { of = "streaming", parameters = { sinks = ' + "9" * 5000 + " } }",
        True,
    ),
    "a parameter beyond 64 bits": (
        'name = "m"\nbase = { of = "snapkv", parameters = { window = 99999999999999999999 } }',
        True,
    ),
    "a name with a zero byte": ('name = "a\\u0000b"\nbase = "full"', True),
}


PART = Part("toml_files", "A TOML file is read or refused in one error line.", run)
