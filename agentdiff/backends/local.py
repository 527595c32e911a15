"""Local models: text to tokens and back around the decode engine.

Text ends here: the chat template makes the prompt, the vocabulary makes the grammar, and the engine sees only ids.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from agentdiff.backends import after_decode
from agentdiff.backends.actions import Reply, ReplyFormat
from agentdiff.backends.chat_template import ChatTemplate
from agentdiff.backends.decisions import LABELS, constrained_choice
from agentdiff.backends.detokenizer import Detokenizer
from agentdiff.backends.framing import Framing, Language, frame
from agentdiff.backends.scored_choice import ListeningMatcher, as_messages, letters, probabilities
from agentdiff.backends.shared_engine import Job, SharedEngine
from agentdiff.backends.validation import parse_json
from agentdiff.backends.vocabulary import vocabulary_of
from agentdiff.constraint import GrammarCache, Matcher
from agentdiff.engine import DecodeOutput, DecodeParams, Engine, preset
from agentdiff.engine.load import find_checkpoint
from agentdiff.errors import (
    BudgetTooSmall,
    ConfigurationError,
    ContextTooLong,
    ProtocolError,
    TimedOut,
)
from agentdiff.generation import (
    Budget,
    Capabilities,
    Commit,
    Decision,
    Draft,
    Event,
    Finish,
    Question,
    Request,
    Result,
    Sampling,
    Stats,
    collect,
)
from agentdiff.messages import Json, Usage, user
from agentdiff.telemetry import traced

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

EMBEDDED = Path(__file__).parent.parent / "embedded" / "weights"
DEFAULT_BUDGET = Budget(target=64, ceiling=512, source="default")


class LocalBackend:
    """A diffusion model on this machine, with structure enforced inside the block."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: PreTrainedTokenizerFast,
        *,
        name: str,
        model: str,
        description: str = "",
        format: ReplyFormat,
    ) -> None:
        """Put a tokenizer around an engine.

        Args:
            engine: Decodes; it is this backend's own from here on.
            tokenizer: With the model's chat template.
            name: See `Backend.name`.
            model: The model's own name.
            description: A word on it, for people.
            format: What it was trained to reply, where that is not in its chat template.
        """
        self._engine = engine
        self._shared = SharedEngine(engine, name=name)
        self._tokenizer = tokenizer
        self._name = name
        self._model = model
        self._description = description
        self._format = format
        self._template = ChatTemplate(tokenizer)
        self._calls = None if format.refuses else self._template.calls
        self._tags: Mapping[int, str] = self._calls.tags if self._calls is not None else {}
        traits = engine.family.traits
        self._vocabulary = vocabulary_of(
            tokenizer, traits.eos_ids, traits.vocab_size, atomic=tuple(self._tags)
        )
        self._grammars = GrammarCache()
        self._ids = itertools.count(1)

    @classmethod
    def load(
        cls,
        source: str,
        *,
        device: str | None = None,
        dtype: str = "auto",
        adapter: str | None = None,
        family: str | None = None,
        block_len: int | None = None,
        mask_id: int | None = None,
    ) -> LocalBackend:
        """Load the embedded model (`"embedded"`), a checkpoint folder or a hub id.

        Args:
            source: What to load.
            device: None takes the GPU where there is one.
            dtype: See `Engine.load`, as for the rest.
            adapter: A LoRA adapter, merged into the weights.
            family: What kind of model it is, where its config does not say.
            block_len: Positions denoised together, where the config names none.
            mask_id: Where no file of the checkpoint names it.

        Raises:
            ConfigurationError: No such folder or hub id, or a model of a kind that is not supported.
        """
        is_embedded = source == "embedded"
        folder = EMBEDDED if is_embedded else find_checkpoint(source)
        engine = Engine.load(
            folder if is_embedded else source,
            device=device or "auto",
            dtype=dtype,
            adapter=adapter,
            family=family,
            block_len=block_len,
            mask_id=mask_id,
        )
        config = json.loads((folder / "config.json").read_text("utf-8"))
        declared: dict[str, Any] = config.get("agentdiff", {})
        return cls(
            engine,
            load_tokenizer(folder),
            name="embedded" if is_embedded else f"local:{source}",
            model=config.get("name", folder.name),
            description=config.get("description", ""),
            format=ReplyFormat(**declared),
        )

    @property
    def name(self) -> str:
        """See `Backend.name`."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """See `Backend.capabilities`."""
        traits = self._engine.family.traits
        return Capabilities(
            enforcement="in_block",
            drafts=True,
            seed=True,
            extends=True,
            model=f"{self._model}, {self._description}" if self._description else self._model,
            context_tokens=traits.context_len,
            max_tools=self._format.max_tools,
            tokenizer=f"{self._model}:{traits.vocab_size}",
            # A bidirectional model pays for every position that is laid out, the others for whole blocks.
            quantum=1 if traits.attention == "bidirectional" else traits.block_len,
        )

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """See `Backend.stream`."""
        return traced(self, request, self._stream(request))

    async def infill(
        self,
        prefix: str,
        suffix: str,
        *,
        budget: Budget | None = None,
        deadline_s: float | None = None,
    ) -> Result:
        """See `Infills.infill`: the model sees both sides at once. What it writes takes at most `budget.target` tokens.

        Raises:
            ConfigurationError: The model is block-causal, so it sees no suffix, or both texts do not fit its context.
        """
        started = time.perf_counter()
        budget = budget or DEFAULT_BUDGET
        before, behind = self._encode(prefix), self._encode(suffix)
        request = Request(messages=(user(prefix),), budget=budget, deadline_s=deadline_s)
        whole = replace(budget, ceiling=budget.target)
        job = _Reply(
            prompt=before,
            params=replace(self._params(request, whole), suffix=tuple(behind)),
            matcher=None,
            request=request,
            framing=Framing(rows=(), read=partial(Reply, "stop")),
            budget=whole,
            started=started,
            compile_s=0.0,
        )
        async with self._running(job) as events:
            # The space was given, so what fills it to the end is complete.
            return replace(await collect(events), reason="stop")

    async def decide(self, question: Question) -> Decision:
        """See `Decides.decide`: one denoising step, and the probability of every option.

        Raises:
            ConfigurationError: The model was trained to call tools and cannot be asked anything else.
        """
        if self._format.refuses:
            raise ConfigurationError(
                f"{self._name} was trained to call tools and to refuse, so it cannot decide; use another model"
            )
        options = list(question.options)
        if len(options) > len(LABELS):
            return await constrained_choice(self, question)
        request = Request(
            messages=as_messages(question),
            kind="route",
            budget=Budget(target=1, ceiling=1, source="decide"),
            sampling=Sampling(effort="speed", temperature=0.0),
            deadline_s=question.deadline_s,
        )
        job = await anyio.to_thread.run_sync(self._begin, request, time.perf_counter())
        names = {label.encode() for label in LABELS[: len(options)]}
        tokens = [n for n, token in enumerate(self._vocabulary.tokens) if token in names]
        grammar = self._grammars.get(
            ("letters", len(options)), lambda: letters(self._vocabulary, len(options))
        )
        matcher = ListeningMatcher(grammar.start(1), tokens)
        job.matcher = matcher
        async with self._running(job) as events:
            result = await collect(events)
        scores = probabilities(matcher.heard, self._vocabulary, options)
        choice = options[LABELS.index(result.text)]
        return Decision(
            choice=choice,
            probabilities=scores,
            confidence=None if scores is None else scores[choice],
            usage=result.usage,
            stats=result.stats,
            enforcement="in_block",
            model=self._model,
            warnings=result.warnings,
        )

    async def aclose(self) -> None:
        """End the streams in flight with a `BackendError`; the model is freed with the object."""
        self._shared.close()

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[Event]]:
        started = time.perf_counter()
        job = await anyio.to_thread.run_sync(self._begin, request, started)
        async with self._running(job) as events:
            yield events

    @asynccontextmanager
    async def _running(self, job: _Reply) -> AsyncGenerator[AsyncIterator[Event]]:
        try:
            self._shared.join(job)
            async with aclosing(self._events(job)) as events:
                yield events
        finally:
            self._shared.leave(job)

    def _begin(self, request: Request, started: float) -> _Reply:
        """Tokenize and compile. Runs in a worker thread, and does nothing that a cancelled task would have to undo."""
        framing = frame(request, self._format, self._calls, call_id=f"call_{next(self._ids)}")
        prompt = self._encode(self._template.render(framing.rows, framing.tools))
        budget = request.budget or DEFAULT_BUDGET
        room = self._engine.family.traits.context_len - len(prompt)
        if room < budget.target:
            raise self._too_long(len(prompt), budget.target)
        most = min(room, self._format.max_reply or room)
        if budget.ceiling > most:
            budget = replace(budget, target=min(budget.target, most), ceiling=most)
        before = time.perf_counter()
        matcher: Matcher | None = None
        if framing.language is not None:
            try:
                matcher = self._matcher(framing.language, budget.ceiling)
            except BudgetTooSmall as error:
                if budget.ceiling == room:
                    raise self._too_long(len(prompt), error.needed) from None
                raise
        return _Reply(
            prompt=prompt,
            params=self._params(request, budget),
            matcher=matcher,
            request=request,
            framing=framing,
            budget=budget,
            started=started,
            compile_s=time.perf_counter() - before,
        )

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _matcher(self, language: Language, budget: int) -> Matcher:
        grammar = self._grammars.get(language.key, lambda: language.compile(self._vocabulary))
        return grammar.start(budget)

    def _params(self, request: Request, budget: Budget) -> DecodeParams:
        traits = self._engine.family.traits
        sampling = request.sampling
        settings = preset(traits, sampling.effort)
        # Canvas models denoise by drawing; mask models are at their best where they take the likeliest.
        by_default = 1.0 if traits.attention == "canvas" else 0.0
        return DecodeParams(
            target=budget.target,
            ceiling=budget.ceiling,
            policy=settings.policy,
            revision=settings.revision,
            temperature=by_default if sampling.temperature is None else sampling.temperature,
            top_p=1.0 if sampling.top_p is None else sampling.top_p,
            seed=sampling.seed or 0,
        )

    def _too_long(self, prompt_tokens: int, needed: int) -> ContextTooLong:
        return ContextTooLong(
            f"the conversation takes {prompt_tokens} tokens and the reply needs about {needed}, but "
            f"the context holds {self._engine.family.traits.context_len}; shorten the task or use "
            "a larger model",
            backend=self._name,
        )

    async def _events(self, job: _Reply) -> AsyncGenerator[Event]:
        text = Detokenizer(self._vocabulary, self._tags)
        async with aclosing(self._shared.follow(job)) as steps:
            async for updates in steps:
                for update in updates:
                    if update.error is not None:
                        raise self._shared.failed(update.error) from update.error
                    if committed := text.commit(update.final):
                        if job.first_commit_s is None:
                            job.first_commit_s = time.perf_counter() - job.started
                        yield Commit(committed)
                    if update.output is not None:
                        yield self._finish(job, update.output, text.marked)
                        return
                    if draft := text.draft(update.draft):
                        yield Draft(draft)
                deadline = job.request.deadline_s
                if deadline is not None and time.perf_counter() - job.started > deadline:
                    raise TimedOut(
                        f"no complete reply within `deadline_s`={deadline:g}", backend=self._name
                    )

    def _finish(self, job: _Reply, output: DecodeOutput, marked: str) -> Finish:
        stats = output.stats
        language = job.framing.language
        finish = Finish(
            reason="length",
            usage=Usage(input_tokens=len(job.prompt), output_tokens=len(output.tokens)),
            budget=job.budget,
            model=self._model,
            enforcement="none" if language is None else "in_block",
            warnings=self._warnings(job),
            stats=Stats(
                forwards=stats.forwards,
                positions=stats.positions,
                blocks=stats.blocks,
                forced_tokens=stats.forced_tokens,
                constraint_s=stats.constraint_s + job.compile_s,
                decode_s=stats.decode_s,
                first_commit_s=job.first_commit_s,
                total_s=time.perf_counter() - job.started,
                cache=self._cache_mode,
                extensions=stats.extensions,
                confidence=stats.confidence,
            ),
        )
        if output.finish == "length":
            return finish
        if language is None:
            return replace(finish, reason="stop")
        reply = self._read(job, language, output, marked)
        has_room = len(output.tokens) < job.budget.ceiling
        if language.has_text and not reply.tool_calls and not has_room:
            return finish  # a grammar lets free text end anywhere, so its ceiling cut it
        return replace(finish, reason=reply.reason, text=reply.text, tool_calls=reply.tool_calls)

    @property
    def _cache_mode(self) -> str:
        return "none" if self._engine.family.traits.attention == "bidirectional" else "block"

    def _read(self, job: _Reply, language: Language, output: DecodeOutput, marked: str) -> Reply:
        """The constrained reply, checked once more: a failure is our bug, never the user's."""
        try:
            found, reply = _fault(language, marked, job.framing)
        except (ValueError, LookupError, StopIteration) as error:
            found, reply = f"it cannot be read ({type(error).__name__})", Reply("stop")
        if found is None:
            return reply
        place = after_decode.keep(
            after_decode.Dump(
                model=self._model,
                place=found,
                schema=json.loads(language.key),
                tokens=output.tokens,
                prompt=job.prompt,
                seed=job.params.seed,
                temperature=job.params.temperature,
            )
        )
        where = "" if place is None else f" with {place}, which holds the prompt and the reply"
        raise ProtocolError(
            f"a constrained reply does not satisfy its schema at {found}; this is a bug in agentdiff: "
            f"please report it{where}",
            backend=self._name,
        )

    def _warnings(self, job: _Reply) -> tuple[str, ...]:
        warnings: list[str] = []
        request, traits = job.request, self._engine.family.traits
        if not self._format.reads_instructions and any(
            m.role == "system" for m in request.messages
        ):
            warnings.append(
                f"{self._name} does not read instructions; they were left out of its prompt"
            )
        if not self._template.exists:
            warnings.append(f"{self._name} has no chat template; it was shown `role: text` lines")
        if job.params.top_p < 1 and (job.matcher is not None or traits.attention == "canvas"):
            why = "under a grammar" if job.matcher is not None else "on a canvas"
            warnings.append(
                f"{self._name} does not cut its distribution {why}; `top_p` was not used"
            )
        return tuple(warnings)


@dataclass(slots=True, kw_only=True, eq=False)
class _Reply(Job):
    """A job that answers a request."""

    request: Request
    framing: Framing
    budget: Budget
    started: float
    compile_s: float
    first_commit_s: float | None = None

    @property
    def schema(self) -> Mapping[str, Json] | None:
        """What the whole reply satisfies, where it is one value."""
        language = self.framing.language
        return None if language is None or language.tools is not None else language.schema


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


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a checkpoint folder; by the light loader where `tokenizer.json` says it all."""
    import transformers

    is_light = (folder / "tokenizer.json").is_file()
    kind: Any = transformers.PreTrainedTokenizerFast if is_light else transformers.AutoTokenizer
    tokenizer: PreTrainedTokenizerFast = kind.from_pretrained(folder)
    tokenizer.model_max_length = sys.maxsize  # the context is checked here, without a warning
    return tokenizer
