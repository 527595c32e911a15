"""The 22 kinds of fault that real servers have shown, each as bytes with their reads cut where it hurts.

A case is what a server says and what must come of it: an outcome or a typed error, never silence.
The numbers are those of the list of bug reports that the cases were made from. Texts that errors
must not repeat hold `CANARY`, which is also in every prompt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentdiff.errors import (
    AgentDiffError,
    BackendError,
    ContextTooLong,
    OutputInvalid,
    ProtocolError,
    RateLimited,
    Rejected,
    Unavailable,
)
from agentdiff.generation import Budget, Request, Result, Sampling
from agentdiff.messages import ToolCall, assistant, tool_result, user
from tests.backends.conformance import CITY, NOTE
from tests.backends.fakes import DONE, USAGE, Reply, chunk, completion, frame, stream, whole
from tests.backends.server.sockets import Received

CANARY = "the launch code is swordfish-0042"
KEY = "key-abcdefghijkl"
CUT = ConnectionError("the server goes away")

ASK = Request(messages=(user(CANARY),))
NOTING = Request(messages=(user(CANARY),), tools=(NOTE,), kind="route")
STRUCTURED = Request(messages=(user(CANARY),), schema=CITY)
_MADE = ToolCall(id="call_1", name="add_note", arguments={"text": CANARY})
REPLAYED = Request(
    messages=(user(CANARY), assistant(tool_calls=[_MADE]), tool_result(_MADE, CANARY)),
    tools=(NOTE,),
)

Said = Reply | Sequence[Reply] | Callable[[Received], Reply]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One case."""

    number: int
    name: str
    said: Said
    """One answer; several, one after the other; or a function."""
    request: Request = ASK
    text: str = ""
    """What the result must say."""
    calls: Sequence[dict[str, Any]] = ()
    """The arguments of the calls that the result must make."""
    error: type[AgentDiffError] | None = None
    """What must be raised instead."""
    partial: str = ""
    """What the error must keep."""
    also: Callable[[Result], bool] = lambda result: True
    attempts: int = 1
    streamed: Sequence[bool] = field(default=(True, False))
    """The forms of request that the case is for: a whole answer where a stream was asked for is one."""

    @property
    def id(self) -> str:
        return f"{self.number:02}-{self.name.replace(' ', '-')}"


def part(**fields: Any) -> dict[str, Any]:
    """A fragment of a tool call; `name` and `arguments` go into `function`."""
    function = {key: fields.pop(key) for key in ("name", "arguments") if key in fields}
    return {**fields, "function": function}


def called(*fragments: dict[str, Any], finish: str | None = "tool_calls") -> Reply:
    """A stream of tool call fragments, a chunk each."""
    return stream(*(chunk(tool_calls=[f]) for f in fragments), chunk(finish=finish), DONE)


def asked(request: Received, field_name: str) -> bool:
    return field_name in request.body


def only(length_field: str, complaint: str) -> Callable[[Received], Reply]:
    """A server that takes the cap in one field only."""

    def answer(request: Received) -> Reply:
        other = {"max_tokens", "max_completion_tokens"} - {length_field}
        if other & request.body.keys():
            return whole({"error": {"message": complaint}}, status=400)
        return completion(f"capped at {request.body[length_field]}")

    return answer


def nullable(request: Received) -> Reply:
    """A server whose template fails on null content."""
    if any(message.get("content", "") is None for message in request.body["messages"]):
        return whole({"error": {"message": "NoneType"}}, status=500)
    # Where the tools were told in words, the answer is an action too.
    return completion("seen" if "tools" in request.body else '{"answer": "seen"}')


ONE, TWO = {"text": "one"}, {"text": "two"}
_ONE, _TWO = json.dumps(ONE), json.dumps(TWO)
_CAPPED = Request(messages=(user(CANARY),), budget=Budget(target=3, ceiling=3))
_NESTED = {"error": {"message": f"odd: {CANARY}", "code": "odd_field"}}
_EMOJI = 'data: {"choices": [{"delta": {"content": "Grüße 🎉"}}]}\n\n'.encode()


def _errors() -> list[Fault]:
    """10: bodies of every shape, with statuses that mean something."""
    shapes: dict[str, bytes] = {
        "nested": json.dumps(_NESTED).encode(),
        "flat": json.dumps({"object": "error", "message": CANARY, "code": 400}).encode(),
        "string": json.dumps(f"no: {CANARY}").encode(),
        "error string": json.dumps({"error": CANARY}).encode(),
        "list": json.dumps(
            {"error": {"message": [{"loc": ["body", CANARY], "msg": CANARY}]}}
        ).encode(),
        "detail": json.dumps(
            {"detail": [{"loc": ["body"], "msg": "odd", "input": CANARY}]}
        ).encode(),
        "problem": json.dumps({"title": CANARY, "detail": CANARY}).encode(),
        "html": f"<html><body>{CANARY} {KEY}</body></html>".encode(),
        "text": f"{CANARY} {KEY}".encode(),
        "empty": b"",
        "cut": b'{"error": {"mess',
        "key": json.dumps({"error": {"message": f"bad key {KEY}"}}).encode(),
    }
    kinds: dict[int, type[BackendError]] = {400: Rejected, 413: ContextTooLong, 429: RateLimited}
    kinds[503] = Unavailable
    return [
        Fault(
            number=10,
            name=f"{status} {shape}",
            said=Reply(parts=[body], status=status, headers={"content-type": "application/json"}),
            error=kind,
        )
        for status, kind in kinds.items()
        for shape, body in shapes.items()
        if status == 400 or shape in ("nested", "html")
    ]


FAULTS: Sequence[Fault] = (
    Fault(
        number=1,
        name="no index",
        request=NOTING,
        said=called(
            part(id="a", name="add_note", arguments='{"text":'),
            part(arguments=' "one"}'),
            part(id="b", name="add_note", arguments=_TWO),
        ),
        calls=(ONE, TWO),
    ),
    Fault(
        number=2,
        name="two calls at one index",
        request=NOTING,
        said=called(
            part(index=0, id="a", name="add_note", arguments=_ONE),
            part(index=0, id="b", name="add_note", arguments='{"text":'),
            part(index=0, id="b", arguments=' "two"}'),
        ),
        calls=(ONE, TWO),
    ),
    Fault(
        number=3,
        name="a fresh id in every fragment",
        request=NOTING,
        said=called(
            part(index=0, id="a", name="add_note", arguments='{"text":'),
            part(index=0, id="x", name=None, arguments=' "on'),
            part(index=0, id="y", arguments='e"}'),
        ),
        calls=(ONE,),
    ),
    Fault(
        number=4,
        name="chunks without choices",
        said=stream(
            frame({"choices": [], "prompt_filter_results": []}),
            chunk(content="hi"),
            chunk(finish="stop"),
            USAGE,
            DONE,
        ),
        text="hi",
        also=lambda result: result.usage.output_tokens == 3,
    ),
    Fault(number=5, name="200 and an error", said=whole(_NESTED), error=Unavailable),
    Fault(
        number=5,
        name="an error in the stream",
        said=stream(chunk(content="half"), frame({"error": {"code": 502, "message": CANARY}})),
        error=Unavailable,
        partial="half",
    ),
    Fault(
        number=5,
        name="finish error",
        said=stream(chunk(content="half"), chunk(finish="error"), DONE),
        error=Unavailable,
        partial="half",
    ),
    Fault(
        number=6,
        name="calls and stop",
        request=NOTING,
        said=called(part(index=0, id="a", name="add_note", arguments=_ONE), finish="stop"),
        calls=(ONE,),
    ),
    Fault(
        number=6,
        name="calls and null",
        request=NOTING,
        said=called(part(index=0, id="a", name="add_note", arguments=_ONE), finish=None),
        calls=(ONE,),
    ),
    Fault(
        number=7,
        name="stop at the cap",
        request=_CAPPED,
        said=lambda request: whole(
            {
                "choices": [{"finish_reason": "stop", "message": {"content": "all of it?"}}],
                "usage": {
                    "completion_tokens": request.body.get("max_tokens")
                    or request.body["max_completion_tokens"]
                },
            }
        ),
        text="all of it?",
        also=lambda result: "may be cut" in str(result.warnings),
    ),
    Fault(
        number=8,
        name="a schema ignored",
        request=STRUCTURED,
        said=completion(f"It is sunny. {CANARY}"),
        error=OutputInvalid,
    ),
    Fault(
        number=8,
        name="a schema not kept to",
        request=STRUCTURED,
        said=completion('{"city": "Bern"}'),
        error=OutputInvalid,
    ),
    Fault(
        number=9,
        name="reasoning in two names",
        said=stream(
            chunk(reasoning_content=CANARY),
            chunk(reasoning=CANARY, content=None),
            chunk(content="hi", reasoning=""),
            chunk(finish="stop"),
            DONE,
        ),
        text="hi",
    ),
    *_errors(),
    Fault(
        number=11,
        name="comments and no DONE",
        said=stream(
            b": OPENROUTER PROCESSING\n\n:\n\n",
            b"data: : keepalive\n\ndata:\n\n",
            b'data: {"choices":[{"delta":{"content":"h',
            b'i"}}]}\n',
            b"\n",
            chunk(finish="stop"),
        ),
        text="hi",
    ),
    Fault(
        number=11,
        name="an end without a reason",
        said=stream(chunk(content="half")),
        error=ProtocolError,
        partial="half",
    ),
    Fault(
        number=12,
        name="only max_tokens",
        request=_CAPPED,
        said=only("max_tokens", "extra_forbidden: max_completion_tokens"),
        also=lambda result: result.text.startswith("capped at "),
        attempts=0,
    ),
    Fault(
        number=12,
        name="only max_completion_tokens",
        request=_CAPPED,
        said=only(
            "max_completion_tokens",
            "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
        ),
        also=lambda result: result.text.startswith("capped at "),
        attempts=0,
    ),
    Fault(number=13, name="null content refused", request=REPLAYED, said=nullable, text="seen"),
    Fault(
        number=14,
        name="ids empty and missing",
        request=NOTING,
        said=called(
            part(index=0, id="", name="add_note", arguments=_ONE),
            part(index=1, name="add_note", arguments=_TWO),
        ),
        calls=(ONE, TWO),
    ),
    Fault(
        number=15,
        name="cut in a chunk",
        said=stream(chunk(content="half"), b'data: {"choices": [{"delta": {"con', CUT),
        error=ProtocolError,
        partial="half",
    ),
    Fault(
        number=15,
        name="cut in the arguments",
        request=NOTING,
        said=stream(
            chunk(tool_calls=[part(index=0, id="a", name="add_note", arguments='{"te')]), CUT
        ),
        error=ProtocolError,
    ),
    Fault(number=15, name="cut before a byte", said=stream(CUT), error=ProtocolError),
    Fault(
        number=15,
        name="a body cut",
        said=Reply(parts=[b'{"choi', CUT], headers={"content-type": "application/json"}),
        error=ProtocolError,
    ),
    Fault(number=16, name="choices null", said=whole({"choices": None}), error=ProtocolError),
    Fault(
        number=16,
        name="message null",
        said=whole({"choices": [{"finish_reason": "stop", "message": None}]}),
        error=ProtocolError,
    ),
    Fault(
        number=16,
        name="choices null in a stream",
        said=stream(chunk(content="half"), frame({"choices": None})),
        error=ProtocolError,
        partial="half",
    ),
    *(
        Fault(number=17, name=reason, said=completion("hi", finish=reason), text="hi", also=also)
        for reason, also in (
            ("end_turn", lambda r: r.reason == "stop"),
            ("model_context_window_exceeded", lambda r: r.reason == "length"),
            ("tired", lambda r: "'tired' is unknown" in str(r.warnings)),
        )
    ),
    *(
        Fault(
            number=17,
            name=reason,
            said=completion("hi", finish=reason),
            error=kind,
            partial="hi",
        )
        for reason, kind in (
            ("sensitive", Rejected),
            ("network_error", Unavailable),
            ("insufficient_system_resource", Unavailable),
        )
    ),
    Fault(
        number=18,
        name="only temperature 1",
        request=Request(messages=(user(CANARY),), sampling=Sampling(temperature=0.7)),
        said=lambda request: (
            whole({"error": {"message": "invalid temperature: only 1 is allowed"}}, status=400)
            if request.body.get("temperature", 1) == 0.7
            else completion("hi")
        ),
        attempts=0,
    ),
    Fault(
        number=19,
        name="usage on every chunk",
        said=stream(
            frame({"choices": [{"delta": {"content": "h"}}], "usage": {"completion_tokens": 1}}),
            frame({"choices": [{"delta": {"content": "i"}}], "usage": {"completion_tokens": 2}}),
            frame(
                {
                    "choices": [{"delta": {}, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 7, "completion_tokens": 2},
                }
            ),
            frame({"choices": [], "usage": None}),
            DONE,
        ),
        text="hi",
        also=lambda result: (result.usage.input_tokens, result.usage.output_tokens) == (7, 2),
    ),
    Fault(
        number=20,
        name="characters cut in two",
        said=stream(*(_EMOJI[i : i + 1] for i in range(len(_EMOJI))), chunk(finish="stop"), DONE),
        text="Grüße 🎉",
    ),
    Fault(
        number=21,
        name="another tool",
        request=Request(messages=(user(CANARY),), tools=(NOTE,), tool_choice="required"),
        said=called(part(index=0, id="a", name="delete_all", arguments="{}")),
        calls=({},),
        also=lambda result: (
            result.enforcement == "none" and "it was not given" in str(result.warnings)
        ),
    ),
    Fault(
        number=22,
        name="arguments of other kinds",
        request=NOTING,
        said=called(
            part(index=0, id="a", name="add_note", arguments=ONE),
            part(index=1, id="b", name="add_note", arguments=""),
            part(index=2, id="c", name="add_note", arguments=None),
        ),
        calls=(ONE, {}, {}),
    ),
    Fault(
        number=22,
        name="arguments that are no JSON",
        request=NOTING,
        said=called(part(index=0, id="a", name="add_note", arguments='{"text": one}')),
        calls=({},),
        also=lambda result: (
            result.tool_calls[0].malformed == '{"text": one}'
            and result.enforcement == "none"
            and "are not JSON" in str(result.warnings)
        ),
    ),
)
