"""Local models: text to tokens and back around the decode engine.

Text ends here: the chat template makes the prompt, the vocabulary makes the grammar, and the engine sees only ids. Many
requests share one engine; whoever waits for tokens takes the step for all, in a worker thread, so their blocks share
forward passes and nothing runs when nobody waits.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from agentdiff.backends.actions import (
    ReplyFormat,
    chat_messages,
    grounding,
    instructions,
    parse_reply,
    reply_schema,
)
from agentdiff.backends.checkpoints import EMBEDDED, find_checkpoint
from agentdiff.backends.detokenizer import Detokenizer
from agentdiff.backends.validation import AnyDraftValidator
from agentdiff.constraint import Grammar, Matcher, Vocabulary, compile_schema
from agentdiff.engine import DecodeOutput, DecodeParams, Engine, Update, load_family, preset
from agentdiff.errors import (
    BackendError,
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
    Draft,
    Event,
    Finish,
    Request,
    Stats,
)
from agentdiff.messages import Json, Usage
from agentdiff.telemetry import traced

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

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
        self._engine = engine
        self._tokenizer = tokenizer
        self._name = name
        self._model = model
        self._description = description
        self._format = format
        traits = engine.family.traits
        self._vocabulary = vocabulary_of(tokenizer, traits.eos_ids, traits.vocab_size)
        self._grammar = lru_cache(maxsize=64)(self._compile)
        self._grounded_grammar = lru_cache(maxsize=8)(self._compile)
        """Few: each takes megabytes, and the texts it is for seldom come back once a run has gone on."""
        self._engine_lock = threading.Lock()
        self._changed: deque[_Job] = deque()
        """Who came or left since the engine was last told."""
        self._jobs: dict[int, _Job] = {}
        """Whom the engine decodes for, by sequence; only touched under the engine's lock."""
        self._lock: RunVar[anyio.Lock] = RunVar(f"agentdiff-local-{id(self)}")
        self._ids = itertools.count(1)

    @classmethod
    def load(cls, source: str, *, device: str | None = None) -> LocalBackend:
        """Load the embedded model (`"embedded"`), a checkpoint folder or a hub id.

        Raises:
            ConfigurationError: No such folder or hub id, or a model of a kind that is not supported.
        """
        is_embedded = source == "embedded"
        folder = EMBEDDED if is_embedded else find_checkpoint(source)
        family = load_family(folder, device=device)
        config = json.loads((folder / "config.json").read_text("utf-8"))
        declared: dict[str, Any] = config.get("agentdiff", {})
        return cls(
            Engine(family),
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
            quantum=traits.block_len,
        )

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """See `Backend.stream`."""
        return traced(self, request, self._stream(request))

    async def aclose(self) -> None:
        """End the streams in flight with a `BackendError`; the model is freed with the object."""
        for job in [*self._jobs.values(), *self._changed]:
            self._leave(job)

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[Event]]:
        started = time.perf_counter()
        job = await anyio.to_thread.run_sync(self._begin, request, started)
        try:
            self._changed.append(job)
            async with aclosing(self._events(job)) as events:
                yield events
        finally:
            self._leave(job)

    def _begin(self, request: Request, started: float) -> _Job:
        """Tokenize and compile. Runs in a worker thread, and does nothing that a cancelled task would have to undo."""
        schema = reply_schema(request, self._format)
        budget = request.budget or DEFAULT_BUDGET
        prompt = self._prompt(request)
        context = self._engine.family.traits.context_len
        room = context - len(prompt)
        if room < budget.target:
            raise self._too_long(len(prompt), budget.target)
        most = min(room, self._format.max_reply or room)
        if budget.ceiling > most:
            budget = replace(budget, target=min(budget.target, most), ceiling=most)
        before = time.perf_counter()
        matcher: Matcher | None = None
        if schema is not None:
            grounds = grounding(request, self._format)
            compiled = self._grounded_grammar if grounds else self._grammar
            grammar = compiled(json.dumps(schema), json.dumps(grounds))
            try:
                matcher = grammar.start(budget.ceiling)
            except BudgetTooSmall as error:
                if budget.ceiling == room:
                    raise self._too_long(len(prompt), error.needed) from None
                raise
        compile_s = time.perf_counter() - before
        settings = preset(self._engine.family.traits, request.sampling.effort)
        params = DecodeParams(
            target=budget.target,
            ceiling=budget.ceiling,
            policy=settings.policy,
            revision=settings.revision,
            temperature=request.sampling.temperature or 0.0,
            seed=request.sampling.seed or 0,
        )
        return _Job(
            prompt=prompt,
            params=params,
            matcher=matcher,
            request=request,
            budget=budget,
            schema=schema,
            started=started,
            compile_s=compile_s,
            call_id=f"call_{next(self._ids)}",
        )

    def _too_long(self, prompt_tokens: int, needed: int) -> ContextTooLong:
        return ContextTooLong(
            f"the conversation takes {prompt_tokens} tokens and the reply needs about {needed}, but "
            f"the context holds {self._engine.family.traits.context_len}; shorten the task or use "
            "a larger model",
            backend=self._name,
        )

    def _compile(self, schema: str, grounds: str) -> Grammar:
        return compile_schema(
            json.loads(schema),
            self._vocabulary,
            style="compact" if self._format.style == "compact" else "spaced",
            grounding=json.loads(grounds) or None,
        )

    def _prompt(self, request: Request) -> list[int]:
        messages = chat_messages(request.messages, self._format)
        if request.tools and not self._format.refuses:
            messages = [{"role": "system", "content": instructions(request)}, *messages]
        tools: list[Json] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                },
            }
            for tool in request.tools
        ]
        text = self._tokenizer.apply_chat_template(
            messages, tools=tools or None, add_generation_prompt=True, tokenize=False
        )
        return self._tokenizer.encode(str(text), add_special_tokens=False)

    def _step(self) -> None:
        """One engine step for everybody. Runs in a worker thread."""
        try:
            with self._engine_lock:
                self._settle()
                for update in self._engine.step():
                    self._jobs[update.sequence].updates.append(update)
        finally:
            self._settle_soon()

    def _leave(self, job: _Job) -> None:
        """Let a job go without waiting for a step that is under way; twice is safe."""
        job.is_over = True
        self._changed.append(job)
        self._settle_soon()

    def _settle_soon(self) -> None:
        """Settle now, or leave it to whoever has the engine: they come here once they let go of it."""
        while self._changed and self._engine_lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._engine_lock.release()

    def _settle(self) -> None:
        """Tell the engine who came and who left; under its lock."""
        while self._changed:
            job = self._changed.popleft()
            if not job.is_over:
                try:
                    job.number = self._engine.add(job.prompt, job.params, job.matcher)
                except ConfigurationError as error:
                    job.refusal = error
                else:
                    self._jobs[job.number] = job
            elif job.number is not None:
                self._engine.cancel(job.number)
                self._jobs.pop(job.number, None)

    async def _events(self, job: _Job) -> AsyncGenerator[Event]:
        try:
            lock = self._lock.get()
        except LookupError:
            lock = anyio.Lock()
            self._lock.set(lock)
        text = Detokenizer(self._vocabulary)
        while True:
            async with lock:
                if not job.updates and not job.is_over:
                    try:
                        await anyio.to_thread.run_sync(self._step)
                    except Exception as error:
                        raise self._failed(error) from error
            if job.refusal is not None:
                raise job.refusal
            if job.is_over:
                raise BackendError("closed before the reply was complete", backend=self._name)
            while job.updates:
                update = job.updates.popleft()
                if update.error is not None:
                    raise self._failed(update.error) from update.error
                if committed := text.commit(update.final):
                    if job.first_commit_s is None:
                        job.first_commit_s = time.perf_counter() - job.started
                    yield Commit(committed)
                if update.output is not None:
                    if rest := text.close():
                        yield Commit(rest)
                    yield self._finish(job, update.output, text.committed)
                    return
                if draft := text.draft(update.draft):
                    yield Draft(draft)
            deadline = job.request.deadline_s
            if deadline is not None and time.perf_counter() - job.started > deadline:
                raise TimedOut(
                    f"no complete reply within `deadline_s`={deadline:g}", backend=self._name
                )

    def _failed(self, error: Exception) -> BackendError:
        """What a failed decode is called: by the kind of its error, whose words may quote the prompt."""
        return BackendError(f"the decode failed: {type(error).__name__}", backend=self._name)

    def _finish(self, job: _Job, output: DecodeOutput, text: str) -> Finish:
        stats = output.stats
        finish = Finish(
            reason="length",
            usage=Usage(input_tokens=len(job.prompt), output_tokens=len(output.tokens)),
            budget=job.budget,
            model=self._model,
            enforcement="none" if job.schema is None else "in_block",
            warnings=self._warnings(job.request),
            stats=Stats(
                forwards=stats.forwards,
                positions=stats.positions,
                blocks=stats.blocks,
                forced_tokens=stats.forced_tokens,
                constraint_s=stats.constraint_s + job.compile_s,
                decode_s=stats.decode_s,
                first_commit_s=job.first_commit_s,
                total_s=time.perf_counter() - job.started,
                cache="block",
                extensions=stats.extensions,
                confidence=stats.confidence,
            ),
        )
        if output.finish == "length":
            return finish
        if job.schema is not None:
            self._validate(text, job.schema)
        reply = parse_reply(text, job.request, self._format, call_id=job.call_id)
        return replace(finish, reason=reply.reason, text=reply.text, tool_calls=reply.tool_calls)

    def _validate(self, text: str, schema: dict[str, Json]) -> None:
        """Every constrained reply is checked once more; a failure is our bug, never the user's."""
        error = next(AnyDraftValidator(schema).iter_errors(json.loads(text)), None)
        if error is not None:
            raise ProtocolError(
                f"a constrained reply does not satisfy its schema at {error.json_path}; this is a "
                "bug in agentdiff: please report it with the schema",
                backend=self._name,
            )

    def _warnings(self, request: Request) -> tuple[str, ...]:
        warnings: list[str] = []
        if not self._format.reads_instructions and any(
            m.role == "system" for m in request.messages
        ):
            warnings.append(
                f"{self._name} does not read instructions; they were left out of its prompt"
            )
        if request.sampling.top_p is not None:
            warnings.append(f"{self._name} does not cut its distribution; `top_p` was not used")
        return tuple(warnings)


@dataclass(slots=True, kw_only=True, eq=False)
class _Job:
    """One request in flight."""

    prompt: list[int]
    params: DecodeParams
    matcher: Matcher | None
    request: Request
    budget: Budget
    schema: dict[str, Json] | None
    started: float
    compile_s: float
    call_id: str
    first_commit_s: float | None = None
    number: int | None = None
    """The engine's number for it; None until the engine knows it."""
    refusal: ConfigurationError | None = None
    """Why the engine would not have it."""
    updates: deque[Update] = field(default_factory=deque["Update"])
    """What the engine has done for it and its stream has not yet told."""
    is_over: bool = False
    """Whether nobody waits for it any more."""


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a checkpoint folder; by the light loader where `tokenizer.json` says it all."""
    import transformers

    is_light = (folder / "tokenizer.json").is_file()
    kind: Any = transformers.PreTrainedTokenizerFast if is_light else transformers.AutoTokenizer
    tokenizer: PreTrainedTokenizerFast = kind.from_pretrained(folder)
    tokenizer.model_max_length = sys.maxsize  # the context is checked here, without a warning
    return tokenizer


def vocabulary_of(
    tokenizer: PreTrainedTokenizerFast, eos_ids: tuple[int, ...], size: int
) -> Vocabulary:
    """The bytes of every token id; special tokens and ids beyond the tokenizer have none."""
    added = tokenizer.added_tokens_decoder
    special = set(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}
    decoder = json.loads(tokenizer.backend_tokenizer.to_str()).get("decoder")
    is_byte_level = "ByteLevel" in str(decoder)
    to_byte = _byte_level_alphabet()
    tokens: list[bytes | None] = [None] * size
    for index in range(min(size, len(tokenizer))):
        piece = tokenizer.backend_tokenizer.id_to_token(index)
        if index in special or index in eos_ids or piece is None:
            continue
        if index in added:
            tokens[index] = str(added[index].content).encode()
        elif is_byte_level:
            tokens[index] = bytes(to_byte[c] for c in piece)
        elif len(piece) == 6 and piece.startswith("<0x"):
            tokens[index] = bytes([int(piece[3:5], 16)])
        else:
            tokens[index] = piece.replace("▁", " ").encode()
    return Vocabulary(tokens, eos_ids)


def _byte_level_alphabet() -> dict[str, int]:
    """Character -> byte of the GPT-2 byte-level alphabet."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + n): byte for n, byte in enumerate(others)}
