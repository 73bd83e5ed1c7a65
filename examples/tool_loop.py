"""Let a model of `agentkv serve` call a function until it has an answer.

    agentkv serve --model ./my-model
    python examples/tool_loop.py http://127.0.0.1:8080/v1 my-model "How many legs have 7 bees?"

The whole conversation is sent each time, as every host does. The server reads only what is new; the
last line says how much that was.
"""

import json
import os
import sys
from typing import Any

from openai import OpenAI

MULTIPLY: Any = {
    "type": "function",
    "function": {
        "name": "multiply",
        "description": "Multiply two integers.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "minimum": 0, "maximum": 999},
                "b": {"type": "integer", "minimum": 0, "maximum": 999},
            },
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}


def multiply(a: int, b: int) -> str:
    return str(a * b)


def main(address: str, model: str, question: str, max_turns: int = 5) -> None:
    key = os.environ.get("AGENTKV_API_KEY", "none")
    with OpenAI(base_url=address, api_key=key) as client:
        messages: list[Any] = [
            {"role": "system", "content": "Use the function; then answer in a sentence."},
            {"role": "user", "content": question},
        ]
        num_read = num_sent = 0
        for turn in range(max_turns):
            answer = client.chat.completions.create(
                model=model,
                messages=messages,
                tools=[MULTIPLY],
                tool_choice="auto" if turn else "required",
                max_tokens=200,
                temperature=0,
            )
            usage = answer.usage
            assert usage is not None and usage.prompt_tokens_details is not None
            num_sent += usage.prompt_tokens
            num_read += usage.prompt_tokens - (usage.prompt_tokens_details.cached_tokens or 0)
            reply = answer.choices[0].message
            messages.append(reply.model_dump(exclude_none=True))
            if not reply.tool_calls:
                print(reply.content)
                break
            for call in reply.tool_calls:
                assert call.type == "function"
                result = multiply(**json.loads(call.function.arguments))
                print(f"{call.function.name}({call.function.arguments}) = {result}")
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        print(f"{num_sent} tokens before replies, {num_read} of them read")


if __name__ == "__main__":
    main(*sys.argv[1:4])
