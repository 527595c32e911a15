"""A backend that denoises what it was told to, with the stats of a local model."""

import json
import re
from collections.abc import Iterator
from typing import Any

from agentdiff.backends.scripted import Scripted
from agentdiff.generation import (
    Capabilities,
    Commit,
    Draft,
    Event,
    Finish,
    Stats,
)
from agentdiff.messages import ToolCall, Usage

MODEL = "agentdiff-router"
CAPABILITIES = Capabilities(
    enforcement="in_block",
    drafts=True,
    seed=True,
    extends=True,
    model=f"{MODEL}, block diffusion",
    quantum=16,
    tokenizer="toy",
)
BLOCK = 16


def calls(*wanted: tuple[str, dict[str, Any]]) -> list[Event]:
    """The events of a reply that calls tools."""
    made = tuple(
        ToolCall(id=f"call_{n}", name=name, arguments=arguments)
        for n, (name, arguments) in enumerate(wanted)
    )
    actions = [{"tool": call.name, "args": call.arguments} for call in made]
    text = json.dumps(actions[0] if len(actions) == 1 else actions, separators=(",", ":"))
    return denoised(text, reason="tool_calls", tool_calls=made)


def says(answer: str) -> list[Event]:
    """The events of a reply in words."""
    return denoised(json.dumps({"answer": answer}, separators=(",", ":")), text=answer)


def refuses() -> list[Event]:
    """The events of a refusal."""
    return denoised('{"none":true}', reason="refused", text="")


def denoised(written: str, /, *, reason: Any = "stop", **finish: Any) -> list[Event]:
    """The events of a text: blocks of tokens, each in a few drafts."""
    tokens = re.findall(r"\w+|\W", written)
    return [
        *_frames(tokens),
        Finish(
            reason=reason,
            usage=Usage(input_tokens=180, output_tokens=len(tokens)),
            stats=Stats(forwards=6, positions=96, blocks=2, decode_s=0.07, total_s=0.0714),
            enforcement="in_block",
            model=MODEL,
            **finish,
        ),
    ]


def _frames(tokens: list[str]) -> Iterator[Event]:
    for start in range(0, len(tokens), BLOCK):
        block = tokens[start : start + BLOCK]
        for step in (1, 2, 3):
            shown = [t if (i * 7 + step * 5) % 4 < step else "░" for i, t in enumerate(block)]
            yield Draft("".join(shown))
        yield Commit("".join(block))


def embedded(*replies: Any) -> Scripted:
    """A double of the embedded backend."""
    return Scripted(replies, name="embedded", capabilities=CAPABILITIES)
