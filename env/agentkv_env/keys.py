"""Map key names that models write to Playwright's key names."""

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

# The names that VisualWebArena maps; ArrowLeft, Ctrl, Cmd and Esc are missing there.
_STRICT = {
    name.lower(): name
    for name in (
        "Backquote Minus Equal Backslash Backspace Meta Tab Delete Escape ArrowDown End Enter Home "
        "Insert PageDown PageUp ArrowRight ArrowUp"
    ).split()
}


def normalize(combination: str, *, strict: bool = False) -> str:
    """Return `combination` with Playwright's key names: `ctrl + v` becomes `Control+v`.

    Unknown names are unchanged, and a final `+` is the plus key. With `strict`, only the names that
    VisualWebArena maps are mapped.
    """
    if strict:
        return "+".join(_STRICT.get(key.lower(), key) for key in combination.split("+"))
    combination = combination.strip()
    parts = [part.strip() for part in combination.split("+")]
    if combination.endswith("+"):
        parts = [*[part for part in parts if part], "+"]
    keys = [_NAMES.get(part.lower(), part) for part in parts if part]
    # Playwright would press Shift for a capital letter; models mean Control+v by Control+V.
    if len(keys) > 1 and len(keys[-1]) == 1 and "Shift" not in keys:
        keys[-1] = keys[-1].lower()
    return "+".join(keys)
