"""Work on a page behind a sign-in, with the cookies that Playwright keeps in a file.

    python examples/signed_in.py http://shop.example/orders "How many orders are open?"

The first run asks for a name and a password, signs in, and keeps the browser's state in state.json.
Later runs need neither. The model never sees the password; whoever has the file is signed in.
"""

import getpass
import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

import agentkv
from agentkv_env.browser import find_executable

STATE = Path("state.json")


def sign_in(browser: Browser, url: str) -> None:
    """Sign in as the site wants it, here with the form that it shows instead of the page."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(url)
    page.get_by_label("Name").fill(input("Name: "))
    page.get_by_label("Password").fill(getpass.getpass())
    page.get_by_label("Password").press("Enter")
    page.wait_for_url(url)
    STATE.touch(mode=0o600)  # only its owner may read it
    context.storage_state(path=STATE)
    context.close()


def main(url: str, goal: str) -> None:
    agent = agentkv.Agent("nano", policy="lookback-int8", budget="25%")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_executable())
        if not STATE.exists():
            sign_in(browser, url)
        page = browser.new_context(storage_state=STATE).new_page()
        page.goto(url)
        episode = agent.run(page, goal, max_steps=4)  # stays on the host of the page
        for step in episode.steps:
            print(step.url, step.action)
        print(f"{episode.status}: {episode.answer}")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
