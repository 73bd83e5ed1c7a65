"""Solution steps that many tasks share."""


def find_article(title: str) -> str:
    """On the wiki: search for a title, which leads straight to its article."""
    return f"type [textbox: Search the wiki] [{title}] [1]"


def find_thread(title: str) -> list[str]:
    """On the forum: search for a thread and open it."""
    return [f"type [textbox: Search threads] [{title}] [1]", f"click [link: {title}]"]


def find_listing(title: str) -> list[str]:
    """On the classifieds: search for a listing and open it."""
    return [f"type [textbox: Search listings] [{title}] [1]", f"click [link: {title}]"]


def find_product(name: str) -> list[str]:
    """In the shop: search for a product and open it."""
    return [f"type [textbox: Search] [{name}] [1]", f"click [link: {name}]"]


def write(field: str, text: object) -> str:
    """Type into a text field, no Enter after it."""
    return f"type [textbox: {field}] [{text}] [0]"


def rewrite(field: str, text: object) -> list[str]:
    """Empty a text field, then type into it."""
    return [f"clear [textbox: {field}]", write(field, text)]


def choose(field: str, option: str) -> str:
    """Choose an option of a native select by its label."""
    return f"type [combobox: {field}] [{option}] [0]"


def done(answer: object = "") -> str:
    """The last step."""
    return f"stop [{answer}]"
