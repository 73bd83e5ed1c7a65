import pytest

from agentkv.models.scripted import RandomClicks, Solution, SolutionStuck, Stop
from agentkv_env.actions import extract, parse
from agentkv_env.page import Page


@pytest.mark.parametrize(
    ("step", "reply"),
    [
        ("click [link: Blue Kayak]", "at Blue Kayak\n```click [3]```"),
        ("click [link: Red ⟦12⟧ 'Kayak']", "at Red ⟦12⟧ 'Kayak'\n```click [4]```"),
        ("click [button: Add to cart]", "at Add to cart\n```click [7]```"),
        ("click [button: Add to cart #2]", "at Add to cart\n```click [18]```"),
        ("type [textbox: Search] [red [x]] [1]", "at Search\n```type [5] [red [x]] [1]```"),
        ("type [combobox: Sort by] [Price] [0]", "at Sort by\n```type [6] [Price] [0]```"),
        ("clear [textbox: Search]", "at Search\n```clear [5]```"),
        ("scroll [down]", "scroll\n```scroll [down]```"),
        ("goto [http://wiki.localhost/]", "goto\n```goto [http://wiki.localhost/]```"),
        ("go_back", "go_back\n```go_back```"),
        ("stop [42]", "done\n```stop [42]```"),
        ("stop []", "done\n```stop []```"),
    ],
)
def test_a_named_step_becomes_a_thought_and_a_numbered_action(
    page: Page, step: str, reply: str
) -> None:
    assert Solution([step]).begin("goal").reply(page).text == reply


def test_a_step_without_its_element_names_the_step_and_the_elements_found(page: Page) -> None:
    conversation = Solution(["click [link: Blue Kayak]", "click [button: Buy]"]).begin("goal")
    conversation.reply(page)
    with pytest.raises(SolutionStuck, match=r"step 2 `click \[button: Buy\]`.*'Add to cart'"):
        conversation.reply(page)


def test_a_step_for_the_third_of_two_elements_says_that_there_are_two(page: Page) -> None:
    with pytest.raises(SolutionStuck, match="only 2 elements match"):
        Solution(["click [button: Add to cart #3]"]).begin("goal").reply(page)


def test_a_step_that_is_not_an_action_is_an_error(page: Page) -> None:
    with pytest.raises(SolutionStuck, match="not an action"):
        Solution(["buy the kayak"]).begin("goal").reply(page)


def test_a_solution_ends_at_a_failed_action(page: Page) -> None:
    conversation = Solution(["click [link: Blue Kayak]", "stop []"]).begin("goal")
    conversation.reply(page)
    with pytest.raises(SolutionStuck, match=r"click \[link: Blue Kayak\].*covered"):
        conversation.reply(page, note="error: the link is covered")


def test_a_solution_without_a_stop_is_an_error(page: Page) -> None:
    conversation = Solution(["scroll [down]"]).begin("goal")
    conversation.reply(page)
    with pytest.raises(SolutionStuck, match="without a stop"):
        conversation.reply(page)


def test_episodes_of_a_solution_are_independent(page: Page) -> None:
    solution = Solution(["scroll [down]", "stop [7]"])
    solution.begin("goal").reply(page)
    assert solution.begin("goal").reply(page).text == "scroll\n```scroll [down]```"


def test_stop_stops_at_once(page: Page) -> None:
    assert parse(extract(Stop("7").begin("goal").reply(page).text)).answer == "7"


def test_random_clicks_hit_the_page_and_repeat_with_their_seed(page: Page) -> None:
    def clicks(seed: int) -> list[int | None]:
        conversation = RandomClicks().begin("goal", seed=seed)
        return [parse(extract(conversation.reply(page).text)).element_id for _ in range(20)]

    assert clicks(1) == clicks(1) != clicks(2)
    assert set(clicks(1)) <= {3, 4, 5, 6, 7, 18}


def test_random_clicks_scroll_on_a_page_without_elements() -> None:
    empty = Page("http://shop.localhost/", "", ())
    assert "scroll [down]" in RandomClicks().begin("goal").reply(empty).text
