"""Local models: text to tokens and back around the decode engine.

Text ends here: the chat template makes the prompt, the vocabulary makes the grammar, and the engine sees only ids. Many
requests share one engine; whoever waits for tokens takes the step for all, in a worker thread, so their blocks share
forward passes and nothing runs when nobody waits.
"""

from __future__ import annotations

import codecs
import itertools
import json
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import jsonschema
from anyio.lowlevel import RunVar

from agentdiff.backends.actions import (
    ReplyFormat,
    chat_messages,
    grounding,
    instructions,
    parse_reply,
    reply_schema,
)
from agentdiff.constraint import Grammar, Matcher, Vocabulary, compile_schema
from agentdiff.engine import DecodeOutput, DecodeParams, Engine, Threshold, Update, load_family
from agentdiff.errors import ConfigurationError, ContextTooLong, ProtocolError, TimedOut
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

MASKED = "░"
"""Stands for a position of the block that is not decided yet, in drafts."""
DEFAULT_BUDGET = Budget(target=64, ceiling=512, source="default")
THRESHOLDS = {"speed": 0.8, "balanced": 0.9, "quality": 0.97}
"""`Sampling.effort` -> the probability above which tokens are committed together."""


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
        self._grammar = lru_cache(maxsize=256)(self._compile)
        self._inbox: dict[int, list[Update]] = {}
        self._thread_lock = threading.Lock()
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
        """Drop the sequences in flight; the model is freed with the object."""
        with self._thread_lock:
            for number in list(self._inbox):
                self._engine.cancel(number)
        self._inbox.clear()

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[Event]]:
        started = time.perf_counter()
        job = await anyio.to_thread.run_sync(self._begin, request, started)
        try:
            async with aclosing(self._events(job)) as events:
                yield events
        finally:
            with self._thread_lock:
                self._engine.cancel(job.number)
            self._inbox.pop(job.number, None)

    def _begin(self, request: Request, started: float) -> _Job:
        """Tokenize, compile, queue. Runs in a worker thread."""
        schema = reply_schema(request, self._format)
        budget = request.budget or DEFAULT_BUDGET
        prompt = self._prompt(request)
        context = self._engine.family.traits.context_len
        room = context - len(prompt)
        if room < budget.target:
            raise ContextTooLong(
                f"the conversation takes {len(prompt)} tokens and the reply needs about "
                f"{budget.target}, but the context holds {context}; shorten the task or use a "
                "larger model",
                backend=self._name,
            )
        most = min(room, self._format.max_reply or room)
        if budget.ceiling > most:
            budget = replace(budget, target=min(budget.target, most), ceiling=most)
        before = time.perf_counter()
        matcher: Matcher | None = None
        if schema is not None:
            grounds = grounding(request, self._format)
            grammar = self._grammar(json.dumps(schema), json.dumps(grounds))
            matcher = grammar.start(budget.ceiling)
        compile_s = time.perf_counter() - before
        params = DecodeParams(
            target=budget.target,
            ceiling=budget.ceiling,
            policy=Threshold(THRESHOLDS[request.sampling.effort]),
            temperature=request.sampling.temperature or 0.0,
            seed=request.sampling.seed or 0,
        )
        with self._thread_lock:
            number = self._engine.add(prompt, params, matcher)
            self._inbox[number] = []
        return _Job(
            number=number,
            request=request,
            budget=budget,
            schema=schema,
            prompt_tokens=len(prompt),
            started=started,
            compile_s=compile_s,
            call_id=f"call_{next(self._ids)}",
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
        with self._thread_lock:
            updates = self._engine.step()
        for update in updates:
            if update.sequence in self._inbox:
                self._inbox[update.sequence].append(update)

    async def _events(self, job: _Job) -> AsyncGenerator[Event]:
        try:
            lock = self._lock.get()
        except LookupError:
            lock = anyio.Lock()
            self._lock.set(lock)
        text = _Text(self._vocabulary)
        while True:
            async with lock:
                if not self._inbox[job.number]:
                    await anyio.to_thread.run_sync(self._step)
            updates = self._inbox[job.number]
            self._inbox[job.number] = []
            for update in updates:
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

    def _finish(self, job: _Job, output: DecodeOutput, text: str) -> Finish:
        stats = output.stats
        finish = Finish(
            reason="length",
            usage=Usage(input_tokens=job.prompt_tokens, output_tokens=len(output.tokens)),
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
        if output.reason == "length":
            return finish
        if job.schema is not None:
            self._validate(text, job.schema)
        reply = parse_reply(text, job.request, self._format, call_id=job.call_id)
        return replace(finish, reason=reply.reason, text=reply.text, tool_calls=reply.tool_calls)

    def _validate(self, text: str, schema: dict[str, Json]) -> None:
        """Every constrained reply is checked once more; a failure is our bug, never the user's."""
        error = next(jsonschema.Draft202012Validator(schema).iter_errors(json.loads(text)), None)
        if error is not None:
            raise ProtocolError(
                f"a constrained reply does not satisfy its schema at {error.json_path}; this is a "
                "bug in agentdiff: please report it with the schema",
                backend=self._name,
            )

    def _warnings(self, request: Request) -> tuple[str, ...]:
        if not self._format.reads_instructions and any(
            m.role == "system" for m in request.messages
        ):
            return (f"{self._name} does not read instructions; they were left out of its prompt",)
        return ()


@dataclass(slots=True, kw_only=True)
class _Job:
    """One request in flight."""

    number: int
    request: Request
    budget: Budget
    schema: dict[str, Json] | None
    prompt_tokens: int
    started: float
    compile_s: float
    call_id: str
    first_commit_s: float | None = None


def _utf8() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")


@dataclass(slots=True)
class _Text:
    """Tokens to text: a character is committed once all its bytes are."""

    vocabulary: Vocabulary
    committed: str = ""
    _decoder: codecs.IncrementalDecoder = field(default_factory=_utf8)

    def commit(self, tokens: tuple[int, ...]) -> str:
        """The text that `tokens` complete."""
        new = self._decoder.decode(b"".join(self.vocabulary.tokens[t] or b"" for t in tokens))
        self.committed += new
        return new

    def close(self) -> str:
        """What is left of an unfinished character."""
        new = self._decoder.decode(b"", final=True)
        self.committed += new
        return new

    def draft(self, tokens: tuple[int | None, ...]) -> str:
        """How the rest of the block looks now."""
        parts = [MASKED.encode() if t is None else self.vocabulary.tokens[t] or b"" for t in tokens]
        return b"".join(parts).decode("utf-8", "replace")


EMBEDDED = Path(__file__).parent.parent / "embedded" / "weights"


def find_checkpoint(source: str) -> Path:
    """The folder of a local checkpoint, or of a hub snapshot that is downloaded if need be.

    Raises:
        ConfigurationError: Neither a folder nor a hub id that can be had.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or source.startswith((".", "~")) or source.count("/") != 1:
        raise ConfigurationError(
            f"no checkpoint folder at `{source}`; give a folder or a hub id such as `owner/name`"
        )
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
    try:
        return Path(huggingface_hub.snapshot_download(source, allow_patterns=wanted))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigurationError(
            f"`{source}` is not a folder here and could not be downloaded as a hub id "
            f"({type(error).__name__})"
        ) from error


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a checkpoint folder; by the light loader where `tokenizer.json` says it all."""
    import transformers

    is_light = (folder / "tokenizer.json").is_file()
    kind: Any = transformers.PreTrainedTokenizerFast if is_light else transformers.AutoTokenizer
    return kind.from_pretrained(folder)


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
