"""From a request to the answer that counts: sent, and sent otherwise where the server wants it so.

A server may want its cap in another field, spend all of it on reasoning, take no pins, or refuse to
write on from a message. Each is mended here, within the same terms.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agentdiff.backends import continuing, wire
from agentdiff.backends.pinning import Pinning
from agentdiff.backends.rendering import Rendering
from agentdiff.errors import AuthenticationFailed, ContextTooLong, Rejected

if TYPE_CHECKING:
    from agentdiff.backends.identity import Identity
    from agentdiff.backends.profiles import EngineProfile
    from agentdiff.backends.service import Call, Service
    from agentdiff.backends.terms import Terms
    from agentdiff.generation import Request


class Completing:
    """Gets chat completions of one model from one server."""

    def __init__(
        self, service: Service, identity: Identity, *, backend: str, model: str, streaming: bool
    ) -> None:
        self._service = service
        self._identity = identity
        self._model = model
        self._is_streaming = streaming
        self._rendering = Rendering()
        self._pinning = Pinning(service, backend=backend, model=model)

    async def answer(self, terms: Terms, profile: EngineProfile) -> Call:
        """The answer that counts, read up to its first text, or to its end where there is a schema.

        Raises:
            BackendError: The server could not be reached, failed, or refused.
            ConfigurationError: The request cannot be sent as it is.
        """

        async def opened(asked: wire.Asked) -> Call:
            return await self._open(asked, terms, profile)

        asked = self._asked(terms.request, profile)
        if profile.structured == "pinned_canvas" and terms.schema is not None and not asked.prefix:
            call = await self._pinning.answer(
                asked, terms, canvas_tokens=profile.canvas_tokens, opened=opened
            )
            if call is not None:
                return call
        try:
            call = await opened(asked)
        except (AuthenticationFailed, ContextTooLong):
            raise
        except Rejected as error:
            if not asked.prefix:
                raise
            call = await self._in_words(asked.prefix, terms, profile, error)
        if call.is_over and not call.text and call.reply.was_spent_on_reasoning(call.asked.cap):
            spent = call.reply.usage
            terms.spent += spent
            cap = call.asked.cap or spent.output_tokens or 0
            await call.aclose()
            call = await opened(call.asked.with_cap(2 * max(cap, 512)))
            terms.warnings.append(
                f"all {spent.reasoning_tokens or cap} tokens went into reasoning; asked again with room "
                f"for {call.asked.cap}"
            )
        return call

    def _asked(self, request: Request, profile: EngineProfile) -> wire.Asked:
        return wire.ask(
            request,
            model=self._model,
            profile=profile,
            streamed=self._is_streaming or profile.diffusing,
        )

    async def _open(self, asked: wire.Asked, terms: Terms, profile: EngineProfile) -> Call:
        """The answer to `asked`, retried, in whichever length field the server takes."""
        try:
            return await self._send(asked, terms, profile)
        except Rejected as error:
            other = wire.other_length_field(asked, str(error))
            if other is None:
                raise
            call = await self._send(asked.with_length_field(other), terms, profile)
        self._identity.takes_length_in(other)
        return call

    async def _send(self, asked: wire.Asked, terms: Terms, profile: EngineProfile) -> Call:
        return await self._service.call(
            asked,
            asked.body(self._rendering),
            prompt=wire.PromptTexts(terms.request),
            deadline=terms.deadline,
            is_held=terms.schema is not None and not profile.diffusing,
            may_retry=terms.request.may_retry,
            count=terms.count,
        )

    async def _in_words(
        self, prefix: str, terms: Terms, profile: EngineProfile, error: Rejected
    ) -> Call:
        """The answer where a server refuses to write on from a message: it is asked to, in words."""
        # A grammar would have it begin a value anew, so the schema goes in words too.
        plain = replace(profile, continue_fields=None, structured="prompt", enforcement="validated")
        asked = self._asked(continuing.in_words(terms.request), plain)
        call = await self._open(replace(asked, prefix=prefix), terms, plain)
        self._identity.does_not_continue()  # an older engine, or a template that cannot
        terms.warnings.append(f"asked in words to go on, because {error}")
        return call
