"""No file of a run contains typed passwords or credentials of addresses."""

import base64
import html
import http.server
import json
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, quote, quote_plus, urlsplit

import pytest
from typer.testing import CliRunner

from agentkv.trace import TraceWriter
from agentkv_env.masking import Secrets
from agentkv_tasks.cli.app import cli
from tests.agentkv.agent.test_trace import STEP
from tests.tasks.runs import SMALL, complete_rows, run

pytestmark = pytest.mark.browser

TYPED = "p&ss <w>\"o'rd 99"
GIVEN = "k3y/of=bo"


class SignIn(http.server.BaseHTTPRequestHandler):
    """A form that puts the password into the address, and a page that shows its encodings."""

    def do_GET(self) -> None:
        password = parse_qs(urlsplit(self.path).query).get("pw", [""])[0]
        body = "<title>Sign in</title><form><label>Password <input type=password name=pw>"
        if password:
            encodings = (
                password,
                quote(password),
                json.dumps(password),
                base64.b64encode(f"bo:{password}".encode()),
            )
            lines = "".join(f"<p>{html.escape(str(encoding))}</p>" for encoding in encodings)
            body = f"<title>You are {html.escape(password)}</title>{lines}"
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), SignIn) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_port
        server.shutdown()


def spellings(secret: str) -> set[str]:
    encoded = [base64.b64encode(b"x" * at + secret.encode())[4:-4].decode() for at in (0, 1, 2)]
    return {
        *(secret, quote(secret), quote(secret, safe=""), quote_plus(secret), html.escape(secret)),
        *(json.dumps(secret)[1:-1], html.escape(json.dumps(secret)[1:-1]), *encoded),
    }


def test_secrets_are_masked_in_all_output_but_not_in_scoring(tmp_path: Path, port: int) -> None:
    task = json.loads(SMALL.read_text())[1]
    task |= {
        "start_url": f"http://127.0.0.1:{port}/",
        "intent": f"Sign in with {TYPED} and say it.",
        "solution": [f"type [textbox: Password] [{TYPED}] [1]", f"stop [{TYPED}]"],
    }
    task["eval"]["reference_answers"]["exact_match"] = TYPED
    broken = json.loads(SMALL.read_text())[2]
    broken["start_url"] = f"http://bo:{quote(GIVEN, safe='')}@127.0.0.1:9/"
    (tmp_path / "tasks.json").write_text(json.dumps([task, broken]))
    out = tmp_path / "out"
    before = os.umask(0)
    try:
        output = run(out, "--tasks", str(tmp_path / "tasks.json"), "--model", "solution")
    finally:
        os.umask(before)
    rows = {row.task_id: row for row in complete_rows(out)}
    assert rows[1].success and rows[1].answer == "***", output
    assert rows[2].status == "env_error" and "127.0.0.1:9" in rows[2].error
    files = [path for path in out.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".jsonl", ".html", ".log"}
    for text in (output, *(path.read_text() for path in files), *map(str, files)):
        shown = [each for secret in (TYPED, GIVEN) for each in spellings(secret) if each in text]
        assert not shown
    for path in (out, *out.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    trace = next(path for path in files if path.name.startswith("001"))
    assert "Sign in with *** and say it." in trace.read_text()


def test_a_replay_types_the_mask_and_reports_it(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    task = json.loads(SMALL.read_text())[1]
    secrets = Secrets(["welcome99"])
    task["start_url"] = "__SHOPPING__/sign-in"
    task["eval"]["reference_answers"]["exact_match"] = "welcome99"
    with TraceWriter(path, head={"goal": "Sign in.", "task": task}, secrets=secrets) as trace:
        for index, reply in enumerate(["type [1] [welcome99] [0]", "stop [welcome99]"]):
            trace.step(replace(STEP, index=index, reply=f"```{reply}```", action=reply))
    output = CliRunner().invoke(cli, ["replay", str(path)]).output
    assert "type [1] [***] [0]" in output and "welcome99" not in output
    assert "stopped, score 1" in output
    assert "the trace holds no secrets; *** was typed in their place" in output
