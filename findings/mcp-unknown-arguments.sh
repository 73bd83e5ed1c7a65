#!/usr/bin/env bash
# mcp 2.3.0: a tool is called although the client misspells one of its arguments.
#
# `MCPServer` makes a pydantic model of a tool's parameters and lets it ignore extra fields. A client that writes an optional
# argument under a wrong name gets no error: the tool runs with the default of the right one. The schema that the server
# lists has no `additionalProperties: false` either, so a client cannot find the mistake. A required argument that is
# missing is an error, as expected.
#
# Seen with mcp 2.3.0, Python 3.11, on 27 November 2026:
#   listed: additionalProperties is absent
#   right name: deleted=False
#   wrong name: deleted=True, is_error=False
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check 'mcp==2.3.0'
cat > "$folder/try.py" <<'PY'
import asyncio

from mcp import Client
from mcp.server.mcpserver import MCPServer

server = MCPServer("files", log_level="ERROR")


@server.tool()
def remove(name: str, dry_run: bool = False) -> str:
    """Remove a file."""
    return f"deleted={not dry_run}"


async def main() -> None:
    async with Client(server) as client:
        (tool,) = (await client.list_tools()).tools
        listed = tool.input_schema.get("additionalProperties", "absent")
        right = await client.call_tool("remove", {"name": "a", "dry_run": True})
        wrong = await client.call_tool("remove", {"name": "a", "dryrun": True})
        missing = await client.call_tool("remove", {"dry_run": True})
    print("listed: additionalProperties is", listed)
    print("right name:", right.content[0].text)
    print(f"wrong name: {wrong.content[0].text}, is_error={wrong.is_error}")
    assert listed == "absent" and right.content[0].text == "deleted=False"
    assert wrong.content[0].text == "deleted=True" and not wrong.is_error
    assert missing.is_error


asyncio.run(main())
PY
"$folder/env/bin/python" "$folder/try.py"
