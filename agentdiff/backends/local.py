"""Local models: text to tokens and back around the decode engine.

Text ends here: the chat template makes the prompt and the vocabulary makes the grammar (`local_prompt`), and the engine
sees only ids; what it wrote becomes a reply again in `local_outcome`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from agentdiff.backends.actions import Reply, ReplyFormat
from agentdiff.backends.decisions import LABELS, constrained_choice
from agentdiff.backends.detokenizer import Detokenizer
from agentdiff.backends.framing import Framing
from agentdiff.backends.local_outcome import Decoded, LocalJob
from agentdiff.backends.local_prompt import Prompting
from agentdiff.backends.scored_choice import ListeningMatcher, as_messages, letters, probabilities
from agentdiff.backends.shared_engine import SharedEngine
from agentdiff.constraint import Matcher
from agentdiff.engine import DecodeParams, Engine, preset
from agentdiff.engine.load import find_checkpoint
from agentdiff.errors import BudgetTooSmall, ConfigurationError, ContextTooLong, TimedOut
from agentdiff.generation import (
    Budget,
    Capabilities,
    Commit,
    Decision,
    Draft,
    Event,
    Question,
    Request,
    Result,
    Sampling,
    collect,
)
from agentdiff.messages import user
from agentdiff.telemetry import traced
from agentdiff.telemetry.calls import CallSpan

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
        self._name = name
        self._model = model
        self._description = description
        self._traits = engine.family.traits
        self._prompting = Prompting(tokenizer, self._traits, format=format)
        self._vocabulary = self._prompting.vocabulary

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
        traits = self._traits
        return Capabilities(
            enforcement="in_block",
            drafts=True,
            seed=True,
            extends=True,
            model=f"{self._model}, {self._description}" if self._description else self._model,
            context_tokens=traits.context_len,
            max_tools=self._prompting.format.max_tools,
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
        before, behind = self._prompting.encode(prefix), self._prompting.encode(suffix)
        request = Request(messages=(user(prefix),), budget=budget, deadline_s=deadline_s)
        whole = replace(budget, ceiling=budget.target)
        job = LocalJob(
            prompt=before,
            params=replace(self._params(request, whole), suffix=tuple(behind)),
            matcher=None,
            request=request,
            framing=Framing(rows=(), read=partial(Reply, "stop")),
            budget=whole,
            started=started,
            compile_s=0.0,
        )
        with CallSpan("infill", backend=self._name) as span:
            async with self._running(job) as events:
                result = await collect(events)
            span.finish(result)
        # The space was given, so what fills it to the end is complete.
        return replace(result, reason="stop")

    async def decide(self, question: Question) -> Decision:
        """See `Decides.decide`: one denoising step, and the probability of every option.

        Raises:
            ConfigurationError: The model was trained to call tools and cannot be asked anything else.
        """
        if self._prompting.format.refuses:
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
        with CallSpan("decide", backend=self._name) as span:
            decision = await self._decided(request, options)
            span.finish(decision)
        return decision

    async def aclose(self) -> None:
        """End the streams in flight with a `BackendError`; the model is freed with the object."""
        self._shared.close()

    async def _decided(self, request: Request, options: list[str]) -> Decision:
        job = await anyio.to_thread.run_sync(self._begin, request, time.perf_counter())
        names = {label.encode() for label in LABELS[: len(options)]}
        tokens = [n for n, token in enumerate(self._vocabulary.tokens) if token in names]
        grammar = self._prompting.grammars.get(
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

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[Event]]:
        started = time.perf_counter()
        job = await anyio.to_thread.run_sync(self._begin, request, started)
        async with self._running(job) as events:
            yield events

    @asynccontextmanager
    async def _running(self, job: LocalJob) -> AsyncGenerator[AsyncIterator[Event]]:
        try:
            self._shared.join(job)
            async with aclosing(self._events(job)) as events:
                yield events
        finally:
            self._shared.leave(job)

    def _begin(self, request: Request, started: float) -> LocalJob:
        """Tokenize and compile. Runs in a worker thread, and does nothing that a cancelled task would have to undo."""
        prompt, framing = self._prompting.framed(request)
        budget = request.budget or DEFAULT_BUDGET
        room = self._traits.context_len - len(prompt)
        if room < budget.target:
            raise self._too_long(len(prompt), budget.target)
        most = min(room, self._prompting.format.max_reply or room)
        if budget.ceiling > most:
            budget = replace(budget, target=min(budget.target, most), ceiling=most)
        before = time.perf_counter()
        matcher: Matcher | None = None
        if framing.language is not None:
            try:
                matcher = self._prompting.matcher(request, framing.language, budget.ceiling)
            except BudgetTooSmall as error:
                if budget.ceiling == room:
                    raise self._too_long(len(prompt), error.needed) from None
                raise
        return LocalJob(
            prompt=prompt,
            params=self._params(request, budget),
            matcher=matcher,
            request=request,
            framing=framing,
            budget=budget,
            started=started,
            compile_s=time.perf_counter() - before,
        )

    def _params(self, request: Request, budget: Budget) -> DecodeParams:
        traits = self._traits
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
            f"the context holds {self._traits.context_len}; shorten the task or use "
            "a larger model",
            backend=self._name,
        )

    async def _events(self, job: LocalJob) -> AsyncGenerator[Event]:
        text = Detokenizer(self._vocabulary, self._prompting.tags)
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
                        decoded = Decoded(
                            backend=self._name,
                            model=self._model,
                            prompting=self._prompting,
                            traits=self._traits,
                            job=job,
                            output=update.output,
                            marked=text.marked,
                        )
                        yield decoded.finish()
                        return
                    if draft := text.draft(update.draft):
                        yield Draft(draft)
                deadline = job.request.deadline_s
                if deadline is not None and time.perf_counter() - job.started > deadline:
                    raise TimedOut(
                        f"no complete reply within `deadline_s`={deadline:g}", backend=self._name
                    )


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a checkpoint folder; by the light loader where `tokenizer.json` says it all."""
    import transformers

    is_light = (folder / "tokenizer.json").is_file()
    kind: Any = transformers.PreTrainedTokenizerFast if is_light else transformers.AutoTokenizer
    tokenizer: PreTrainedTokenizerFast = kind.from_pretrained(folder)
    tokenizer.model_max_length = sys.maxsize  # the context is checked here, without a warning
    return tokenizer
