"""What a decode came to: the end of a stream, its reply checked once more, and what was not done as asked."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentdiff.backends import after_decode
from agentdiff.backends.actions import Reply
from agentdiff.backends.shared_engine import Job
from agentdiff.backends.validation import parse_json
from agentdiff.errors import ProtocolError
from agentdiff.generation import Finish, Stats
from agentdiff.messages import Json, Usage

if TYPE_CHECKING:
    from agentdiff.backends.framing import Framing, Language
    from agentdiff.backends.local_prompt import Prompting
    from agentdiff.engine import DecodeOutput, FamilyTraits
    from agentdiff.generation import Budget, Request


@dataclass(slots=True, kw_only=True, eq=False)
class LocalJob(Job):
    """A job that answers a request."""

    request: Request
    framing: Framing
    budget: Budget
    """As far as the context has room for it."""
    started: float
    compile_s: float
    first_commit_s: float | None = None

    @property
    def schema(self) -> Mapping[str, Json] | None:
        """What the whole reply satisfies, where it is one value."""
        language = self.framing.language
        return None if language is None or language.tools is not None else language.schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A decode that has ended, and who made it."""

    backend: str
    model: str
    prompting: Prompting
    traits: FamilyTraits
    job: LocalJob
    output: DecodeOutput
    marked: str
    """What was written, with a mark for every tag."""

    def finish(self) -> Finish:
        """The end of its stream.

        Raises:
            ProtocolError: The reply breaks its own grammar, which is a bug.
        """
        job, output = self.job, self.output
        language = job.framing.language
        finish = self._cut()
        if output.finish == "length":
            return finish
        if language is None:
            return replace(finish, reason="stop")
        reply = self._read(language)
        is_full = len(output.tokens) >= job.budget.ceiling
        if language.has_text and not reply.tool_calls and is_full:
            return finish  # a grammar lets free text end anywhere, so its ceiling cut it
        warnings = finish.warnings
        if is_full:
            warnings += (
                f"the reply takes all of its {job.budget.ceiling} tokens; a text in it may have been "
                "closed early",
            )
        return replace(
            finish,
            reason=reply.reason,
            text=reply.text,
            tool_calls=reply.tool_calls,
            warnings=warnings,
        )

    def _cut(self) -> Finish:
        """The end, as if the ceiling had made it."""
        job, stats = self.job, self.output.stats
        return Finish(
            reason="length",
            usage=Usage(input_tokens=len(job.prompt), output_tokens=len(self.output.tokens)),
            budget=job.budget,
            model=self.model,
            enforcement="none" if job.framing.language is None else "in_block",
            warnings=tuple(self._warnings()),
            stats=Stats(
                forwards=stats.forwards,
                positions=stats.positions,
                blocks=stats.blocks,
                forced_tokens=stats.forced_tokens,
                constraint_s=stats.constraint_s + job.compile_s,
                decode_s=stats.decode_s,
                first_commit_s=job.first_commit_s,
                total_s=time.perf_counter() - job.started,
                cache="none" if self.traits.attention == "bidirectional" else "block",
                extensions=stats.extensions,
                confidence=stats.confidence,
            ),
        )

    def _read(self, language: Language) -> Reply:
        """The constrained reply, checked once more: a failure is our bug, never the user's."""
        try:
            found, reply = _fault(language, self.marked, self.job.framing)
        except (ValueError, LookupError, StopIteration) as error:
            found, reply = f"it cannot be read ({type(error).__name__})", Reply("stop")
        if found is None:
            return reply
        place = after_decode.keep(
            after_decode.Dump(
                model=self.model,
                place=found,
                schema=json.loads(language.key),
                tokens=self.output.tokens,
                prompt=self.job.prompt,
                seed=self.job.params.seed,
                temperature=self.job.params.temperature,
            )
        )
        where = "" if place is None else f" with {place}, which holds the prompt and the reply"
        raise ProtocolError(
            f"a constrained reply does not satisfy its schema at {found}; this is a bug in agentdiff: "
            f"please report it{where}",
            backend=self.backend,
        )

    def _warnings(self) -> Iterator[str]:
        if not self.prompting.format.reads_instructions and any(
            m.role == "system" for m in self.job.request.messages
        ):
            yield f"{self.backend} does not read instructions; they were left out of its prompt"
        if not self.prompting.template.exists:
            yield f"{self.backend} has no chat template; it was shown `role: text` lines"


def _fault(language: Language, marked: str, framing: Framing) -> tuple[str | None, Reply]:
    """What is wrong with a constrained reply, if anything, and what it means."""
    if language.tools is None:
        assert language.schema is not None
        found = after_decode.fault(parse_json(marked), language.schema)
        return found, framing.read(marked)
    reply = framing.read(marked)
    for call in reply.tool_calls:
        found = after_decode.fault(call.arguments, language.tools[call.name])
        if found is not None:
            return f"{call.name} {found}", reply
    if language.schema is not None and not reply.tool_calls:
        return after_decode.fault(parse_json(reply.text), language.schema), reply
    return None, reply
