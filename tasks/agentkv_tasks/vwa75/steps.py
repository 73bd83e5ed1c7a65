"""Solution steps that many tasks share."""


def find_article(title: str) -> str:
    """Return the step on the wiki that searches for a title, which opens its article."""
    return f"type [textbox: Search the wiki] [{title}] [1]"


def find_thread(title: str) -> list[str]:
    """Return the steps on the forum that search for a thread and open it."""
    return [f"type [textbox: Search threads] [{title}] [1]", f"click [link: {title}]"]


def find_listing(title: str) -> list[str]:
    """Return the steps on the classifieds that search for a listing and open it."""
    return [f"type [textbox: Search listings] [{title}] [1]", f"click [link: {title}]"]


def find_product(name: str) -> list[str]:
    """Return the steps in the shop that search for a product and open it."""
    return [f"type [textbox: Search] [{name}] [1]", f"click [link: {name}]"]


def write(field: str, text: object) -> str:
    """Return the step that types into a text field without pressing Enter."""
    return f"type [textbox: {field}] [{text}] [0]"


def rewrite(field: str, text: object) -> list[str]:
    """Return the steps that clear a text field and type into it."""
    return [f"clear [textbox: {field}]", write(field, text)]


def choose(field: str, option: str) -> str:
    """Return the step that chooses an option of a native select by its label."""
    return f"type [combobox: {field}] [{option}] [0]"


def done(answer: object = "") -> str:
    """Return the `stop` step with this answer."""
    return f"stop [{answer}]"
