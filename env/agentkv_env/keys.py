"""Names of keyboard keys: what models write, as Playwright wants it."""

_NAMES = {
    name.lower(): name
    for name in (
        "Control Alt Shift Meta Enter Escape Tab Backspace Delete Insert Home End PageUp PageDown "
        "ArrowLeft ArrowRight ArrowUp ArrowDown Space F1 F2 F3 F4 F5 F6 F7 F8 F9 F10 F11 F12 "
        "Backquote Minus Equal Backslash"
    ).split()
} | {
    "ctrl": "Control",
    "ctl": "Control",
    "cmd": "Meta",
    "command": "Meta",
    "win": "Meta",
    "super": "Meta",
    "option": "Alt",
    "opt": "Alt",
    "esc": "Escape",
    "return": "Enter",
    "del": "Delete",
    "ins": "Insert",
    "left": "ArrowLeft",
    "right": "ArrowRight",
    "up": "ArrowUp",
    "down": "ArrowDown",
    "page_up": "PageUp",
    "page_down": "PageDown",
    "pgup": "PageUp",
    "pgdn": "PageDown",
    "spacebar": "Space",
}

# What VisualWebArena maps by itself. ArrowLeft is missing there, and so are Ctrl, Cmd and Esc.
_STRICT = {
    name.lower(): name
    for name in (
        "Backquote Minus Equal Backslash Backspace Meta Tab Delete Escape ArrowDown End Enter Home "
        "Insert PageDown PageUp ArrowRight ArrowUp"
    ).split()
}


def normalize(combination: str, *, strict: bool = False) -> str:
    """`ctrl + v` -> `Control+v`; names that are not known stay as they are.

    A final `+` is the plus key itself. With `strict` only the names VisualWebArena maps are mapped.
    """
    if strict:
        return "+".join(_STRICT.get(key.lower(), key) for key in combination.split("+"))
    combination = combination.strip()
    parts = [part.strip() for part in combination.split("+")]
    if combination.endswith("+"):
        parts = [*[part for part in parts if part], "+"]
    keys = [_NAMES.get(part.lower(), part) for part in parts if part]
    # A lone capital after a modifier would mean Shift to Playwright: Control+V is Control+v.
    if len(keys) > 1 and len(keys[-1]) == 1 and "Shift" not in keys:
        keys[-1] = keys[-1].lower()
    return "+".join(keys)
