"""Synthetic episodes over generated pages, in unlimited number.

They train reading a goal of several steps, finding the element that each step names, and writing
its id.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agentkv.models.scripted import resolve
from agentkv_env.page import Box, Node, Page
from agentkv_env.sites.names import FIRST_TRAINING_SEED, Names
from train_nano.episode import RecordedEpisode, RecordedTurn

_NOWHERE = Box(0, 0, 0, 0)
_KINDS = (
    "Kayak Tent Lamp Kettle Chair Desk Bicycle Camera Guitar Jacket Backpack Clock Mirror Blanket "
    "Radio Stove Teapot Hammer Ladder Rug Printer Speaker Helmet Sofa Toaster Boots "
    "Scarf Drill Vase Piano"
).split()
_RANGES = (
    "Trail City Classic Compact Deluxe Mini Pro Summer Winter Travel Studio Garden Blue Red Green "
    "Silent Solid Quick Bright Urban"
).split()
_COMMON = (
    "Home Cart Orders Account Wishlist Categories Messages Profile Settings Help Contact Forums "
    "Submit Listings Favourites History Articles Random Index Next Previous Popular Recent Saved "
    "Reviews Deals Sign-out"
).split()
_BUTTONS = (
    "Add to cart|Save|Search|Send|Post|Place order|Apply|Update|Remove|Subscribe|Continue|Reply|"
    "Publish|Go|Sort"
).split("|")
_FIELDS = (
    "Search|Name|Email|City|Street|Title|Comment|Message|Quantity|Price|Phone|Bio|Text|Coupon|Subject"
).split("|")
_CHOICES = (
    "Sort by: Relevance, Price low to high, Price high to low, Newest, Rating|"
    "Category: All, Kitchen, Garden, Music, Sport, Home|Delivery: Standard, Express, Pick up|"
    "Condition: Any, New, Good, Used, Broken|Colour: Red, Green, Blue, Black, White|"
    "Month: January, March, May, July, October"
).split("|")
OPENING = ("open {}", "go to {}", "click {}", "show {}", "find {}", "open the page of {}")
TYPING = ("type {0} into {1}", 'type "{0}" into {1}', "set {1} to {0}", 'enter "{0}" as {1}')
SEARCHING = ("search for {0}", 'search for "{0}"', "look for {0}")
CHOOSING = ("set {1} to {0}", "choose {0} under {1}", "select {0} as {1}")
PRICING = ("tell me the price of {}", "what is the price of {}?", "how much is {}?")
ASKING = ("what is the {}?", "tell me the {}", "what does it say under {}?")
JOINTS = (", then ", ". ", ", and ", " and then ", "; ")
_FACTS = (
    "Price Founded Population Founder Length Rating Seller Owner Mayor Opened Weight Stock".split()
)


@dataclass(frozen=True, slots=True)
class DrillStep:
    """One step of a goal."""

    request: str
    """The text in the goal."""
    node: Node
    """The element that the step needs."""
    line: str
    """The line of a solution that carries out the step."""
    details: tuple[Node, ...] = ()
    """Nodes below the element on its page, such as prices and facts."""


class Drills:
    """Generator of synthetic steps, pages and episodes with names of training worlds.

    Equal seeds give equal episodes.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"drills/{seed}")
        self._taken: set[str] = set()
        self._names = Names(FIRST_TRAINING_SEED + seed, "drill", self._taken)

    def walk(self, num_elements: int, *, num_steps: int | None = None) -> RecordedEpisode:
        """Generate an episode over pages of up to `num_elements` elements.

        Without `num_steps` the goal has one to five steps.
        """
        self.reset_names()
        rng = self.rng
        count = num_steps or rng.choice((1, 1, 2, 3, 4, 5))
        steps = [self.step() for _ in range(count)]
        ending, question = self._question()
        requests = [step.request for step in steps] + ([question] if question else [])
        goal = goal_sentence(rng, requests)
        turns: list[RecordedTurn] = []
        for index, step in enumerate(steps):
            others = [other for other in steps if other is not step and rng.random() < 0.6]
            size = rng.randint(max(1, num_elements // 3), num_elements)
            if index and rng.random() < 0.1:
                turns += self._wrong_page(size)
            if rng.random() < 0.15:
                page = replace(self.page(others, size), pixels_below=rng.randint(1, 900))
                turns.append(RecordedTurn(page, "scroll\n```scroll [down]```"))
                page = replace(self.page([step, *others], size), pixels_above=500)
            else:
                page = self.page([step, *others], size)
            turns.append(RecordedTurn(page, resolve(step.line, page, goal=goal)))
        page = self.page([*ending, *steps[:1]], rng.randint(1, num_elements))
        answer = ending[0].line if ending else ""
        turns.append(RecordedTurn(page, resolve(f"stop [{answer}]", page, goal=goal)))
        return RecordedEpisode(goal, tuple(turns), "drill")

    # ---- names --------------------------------------------------------------------------

    def name(self) -> str:
        """Generate a name of a product, a person, a place or a link."""
        names, rng = self._names, self.rng
        roll = rng.random()
        if roll < 0.4:
            return f"{names.brand()} {rng.choice(_RANGES)} {rng.choice(_KINDS)}"
        if roll < 0.55:
            return names.person("").name
        if roll < 0.7:
            return names.place()
        if roll < 0.8:
            return f"{rng.choice(_RANGES)} {rng.choice(_KINDS)} from {names.place()}"
        if roll < 0.9:
            return f"{names.street()} {rng.randint(1, 99)}"
        return rng.choice(_COMMON)

    def value(self) -> str:
        """Generate a value: a price, a year, a number, a code or a name."""
        rng = self.rng
        roll = rng.random()
        if roll < 0.4:
            cents = rng.choice(("00", "50", "95", "99", str(rng.randint(10, 99))))
            return f"${rng.randint(1, 400)}.{cents}"
        if roll < 0.6:
            return str(rng.randint(1200, 2026))
        if roll < 0.75:
            return str(rng.randint(1, 10 ** rng.randint(1, 5)))
        if roll < 0.85:
            letters = "".join(rng.choice("ACEFHKLMNPRTVWX") for _ in range(2))
            return f"{letters}-{rng.randint(200, 999)}"
        return self.name()

    def reset_names(self) -> None:
        """Allow all names again. They are unique only within an episode, because there are few."""
        self._taken.clear()

    # ---- steps --------------------------------------------------------------------------

    def step(self) -> DrillStep:
        """Generate a step that uses a link, a button, a field or a select."""
        makers: tuple[Callable[[], DrillStep], ...] = (
            self._open,
            self._open,
            self._press,
            self._fill,
            self._choose,
        )
        return self.rng.choice(makers)()

    def field(self, name: str) -> DrillStep:
        """Return a step with a text field but without a request and a line."""
        return DrillStep("", _element("textbox", name), "")

    def _open(self) -> DrillStep:
        name = self.name()
        request = self.rng.choice(OPENING)
        facts = tuple(_text(self.value()) for _ in range(self.rng.choice((0, 1, 1, 2))))
        return DrillStep(
            request.format(name), _element("link", name), f"click [link: {name}]", facts
        )

    def _press(self) -> DrillStep:
        name = self.rng.choice(_BUTTONS)
        request = self.rng.choice(("press {}", "click {}", "use the button {}"))
        return DrillStep(request.format(name), _element("button", name), f"click [button: {name}]")

    def _fill(self) -> DrillStep:
        rng = self.rng
        name, enter = rng.choice(_FIELDS), rng.choice((0, 1))
        text = rng.choice((self.name, self.value))()
        if rng.random() < 0.4:
            text = text.lower()
        request = rng.choice(TYPING)
        if name == "Search":
            enter = 1
            request = rng.choice((*SEARCHING, request))
        elif enter:
            request += " and press Enter"
        role = "textbox" if rng.random() < 0.8 else "searchbox"
        line = f"type [{role}: {name}] [{text}] [{enter}]"
        return DrillStep(request.format(text, name), _element(role, name), line)

    def _choose(self) -> DrillStep:
        name, _, listed = self.rng.choice(_CHOICES).partition(": ")
        options = tuple(
            self.rng.sample(listed.split(", "), self.rng.randint(3, listed.count(",") + 1))
        )
        value, wanted = self.rng.sample(options, 2)
        request = self.rng.choice(CHOOSING)
        node = replace(_element("combobox", name), value=value, options=options)
        return DrillStep(
            request.format(wanted, name), node, f"type [combobox: {name}] [{wanted}] [0]"
        )

    def _question(self) -> tuple[list[DrillStep], str]:
        """Generate the step that the last page must show and its question; often neither."""
        rng = self.rng
        if rng.random() < 0.45:
            return [], ""
        answer = self.value()
        if rng.random() < 0.5:
            name = self.name()
            shown: tuple[Node, ...] = (
                _element("link", name) if rng.random() < 0.7 else _text(name),
                _text(answer),
            )
            question = rng.choice(PRICING)
            return [DrillStep(question, shown[0], answer, shown[1:])], question.format(name)
        fact = rng.choice(_FACTS)
        if rng.random() < 0.5:
            shown = (_text(f"{fact} | {answer}"),)
        else:
            shown = (replace(_text(fact), role=rng.choice(("text", "rowheader"))), _text(answer))
        if rng.random() < 0.3:
            shown = tuple(replace(node, kind="ocr", role="text") for node in shown)
        question = rng.choice(ASKING).format(fact.lower() if rng.random() < 0.5 else fact)
        return [DrillStep(question, shown[0], answer, shown[1:])], question

    # ---- pages --------------------------------------------------------------------------

    def _wrong_page(self, size: int) -> list[RecordedTurn]:
        """Generate a wrong page and the step back."""
        page = self.page([], size)
        return [
            RecordedTurn(replace(page, title=f"Not found: {self.name()}"), "go_back\n```go_back```")
        ]

    def page(
        self, steps: Sequence[DrillStep], num_elements: int, *, first: Sequence[Node] = ()
    ) -> Page:
        """Generate a page with the nodes of `steps` among up to `num_elements` elements.

        Args:
            first: the main content: a heading and the nodes below it.
        """
        rng = self.rng
        groups = [(step.node, *step.details) for step in steps]
        taken = {(step.node.role, step.node.name) for step in steps}
        while len(groups) < num_elements:
            other = rng.choice(
                (self._open, self._open, self._open, self._press, self._fill, self._choose)
            )()
            if (other.node.role, other.node.name) in taken:
                num_elements -= 1
                continue
            taken.add((other.node.role, other.node.name))
            filler = other.details if rng.random() < 0.7 else (_text(self.name()),)
            groups.append((other.node, *filler))
        rng.shuffle(groups)
        number, nodes = rng.randint(1, 20), []
        for node in (node for group in groups for node in group):
            if node.role not in ("text", "rowheader"):
                node = replace(node, id=number)
                number += 1 if rng.random() < 0.8 else rng.randint(1, 4)
            nodes.append(node)
        site = rng.choice(("shop", "classifieds", "forum", "wiki"))
        content = first or (Node("text", "heading", self.name(), _NOWHERE),)
        title = content[0].name
        path = title.lower().replace(" ", "-")
        start = rng.randint(0, len(nodes)) if rng.random() < 0.5 else 0
        nodes[start:start] = content
        return Page(f"http://{site}.localhost/{path}", title, tuple(nodes))


def goal_sentence(rng: random.Random, parts: Sequence[str]) -> str:
    """Join `parts` into a goal, in order."""
    text = rng.choice(JOINTS).join(parts)
    return text[0].upper() + text[1:] + ("" if text.endswith("?") else ".")


def _element(role: str, name: str) -> Node:
    return Node("element", role, name, _NOWHERE)


def _text(name: str) -> Node:
    return Node("text", "text", name, _NOWHERE)
