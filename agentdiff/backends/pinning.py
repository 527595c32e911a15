"""Schemas as pinned canvases on one server: token ids by its own tokenizer, and whether it takes pins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from agentdiff.backends import pinned_canvas, wire
from agentdiff.backends.loose import a_count, a_list
from agentdiff.backends.validation import check_output
from agentdiff.errors import AuthenticationFailed, OutputInvalid, Rejected
from agentdiff.generation import Budget

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agentdiff.backends.service import Call, Service
    from agentdiff.backends.terms import Terms

_CANVAS: Final = Budget(target=128, ceiling=256, source="default")


class Pinning:
    """What is known of one server's way with pins."""

    def __init__(self, service: Service, *, backend: str, model: str) -> None:
        self._service = service
        self._backend = backend
        self._model = model
        self._can_pin = True
        self._token_ids: dict[str, tuple[int, ...]] = {}

    async def answer(
        self,
        asked: wire.Asked,
        terms: Terms,
        *,
        canvas_tokens: int,
        opened: Callable[[wire.Asked], Awaitable[Call]],
    ) -> Call | None:
        """A valid answer in a pinned canvas; None where there is none, and words must do.

        Args:
            asked: What is sent without pins.
            terms: Told why, where there is no such answer.
            canvas_tokens: The canvas that the engine serves.
            opened: Sends it.
        """
        request = terms.request
        parts = None
        if self._can_pin and not request.tools and request.schema and terms.schema:
            parts = pinned_canvas.skeleton(request.schema)
        if parts is None or terms.schema is None:
            return None
        budget = request.budget or _CANVAS
        call = None
        try:
            canvas = pinned_canvas.lay_out(
                parts,
                await self._ids_of(pinned_canvas.texts_of(parts), terms.deadline),
                target=budget.target,
                ceiling=min(budget.ceiling, canvas_tokens),
            )
            if canvas is None:
                terms.warnings.append("the canvas is too narrow for the schema; nothing is pinned")
                return None
            call = await opened(wire.pinned(asked, canvas))
            call.text = pinned_canvas.read(call.text or "", parts)
            check_output(call.text, terms.schema, backend=self._backend)
        except AuthenticationFailed:
            raise
        except Rejected as error:
            self._can_pin = False  # an older engine, or another one: not asked again
            terms.warnings.append(f"nothing is pinned, because {error}")
            return None
        except OutputInvalid:
            if call is not None:
                terms.spent += call.reply.usage
                await call.aclose()
            terms.warnings.append("what was written into the pinned canvas is invalid; asked again")
            return None
        call.enforcement = "pinned_canvas"
        return call

    async def _ids_of(self, texts: set[str], deadline: float) -> Mapping[str, tuple[int, ...]]:
        """The token ids of texts, by the server's own tokenizer; asked for once each."""
        # One after the other: the first schema costs a moment, and an engine has few slots.
        for text in sorted(texts - self._token_ids.keys()):
            body = await self._service.fetch(
                "POST",
                "//tokenize",
                {"model": self._model, "prompt": text, "add_special_tokens": False},
                prompt=(text,),
                deadline=deadline,
            )
            found = map(a_count, a_list(body.get("tokens")))
            ids = tuple(one for one in found if one is not None)
            if not ids:
                raise Rejected("the server's tokenizer gives no ids", backend=self._backend)
            self._token_ids[text] = ids
        return self._token_ids
