"""The text side of a checkpoint: what the model is shown, and what it may write, in its own tokens.

Knows the chat template, the vocabulary and the grammars; no engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from agentdiff.backends.actions import said
from agentdiff.backends.chat_template import ChatTemplate
from agentdiff.backends.chat_template import Tokenizer as TemplateTokenizer
from agentdiff.backends.exclusive import ExclusiveMatcher
from agentdiff.backends.framing import Framing, Language, frame
from agentdiff.backends.vocabulary import Tokenizer as VocabularyTokenizer
from agentdiff.backends.vocabulary import vocabulary_of
from agentdiff.constraint import Grammar, GrammarCache, Matcher
from agentdiff.errors import BudgetTooSmall

if TYPE_CHECKING:
    from agentdiff.backends.actions import ReplyFormat
    from agentdiff.engine import FamilyTraits
    from agentdiff.generation import Request
    from agentdiff.messages import Json

_ROOMY = 1 << 20
"""More tokens than any text of a grammar needs."""


class Tokenizer(TemplateTokenizer, VocabularyTokenizer, Protocol):
    """What is used of a fast tokenizer of transformers: its template, its vocabulary, and to encode."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """A text in tokens."""
        ...


class Prompting:
    """Puts requests to one model."""

    def __init__(self, tokenizer: Tokenizer, traits: FamilyTraits, *, format: ReplyFormat) -> None:
        """Read the tokenizer.

        Args:
            tokenizer: With the model's chat template.
            traits: Of the model.
            format: What it was trained to reply, where that is not in its chat template.
        """
        self.tokenizer = tokenizer
        self.format = format
        self.template = ChatTemplate(tokenizer)
        self._calls = None if format.refuses else self.template.calls
        self.tags: Mapping[int, str] = self._calls.tags if self._calls is not None else {}
        """Tokens that stand for themselves, and how they are shown."""
        self.vocabulary = vocabulary_of(
            tokenizer, traits.eos_ids, traits.vocab_size, atomic=tuple(self.tags)
        )
        self.grammars = GrammarCache()
        self._ids = itertools.count(1)

    def framed(self, request: Request) -> tuple[list[int], Framing]:
        """The prompt, and how the request is put."""
        framing = frame(request, self.format, self._calls, call_id=f"call_{next(self._ids)}")
        return self.encode(self.template.render(framing.rows, framing.tools)), framing

    def encode(self, text: str) -> list[int]:
        """A text in tokens."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def matcher(self, request: Request, language: Language, budget: int) -> Matcher:
        """What holds a reply to `request`, of at most `budget` tokens, to the language.

        Raises:
            BudgetTooSmall: It has no room for the shortest reply. That no tool fits can be said in a
                token or two, so where calls are offered the shortest of them counts: with room for
                less, the model could do nothing but refuse.
            SchemaError: A schema cannot be enforced.
        """
        grammar = self.grammars.get(language.key, lambda: language.compile(self.vocabulary))
        if self._may_refuse(language):
            needed = self._shortest_call(grammar, language)
            if needed is not None and budget < needed:
                raise BudgetTooSmall(budget=budget, needed=needed)
        matcher = grammar.start(budget)
        if self.format.grounded:
            return ExclusiveMatcher(matcher, self.vocabulary, said(request))
        return matcher

    def _may_refuse(self, language: Language) -> bool:
        """Whether the reply may say that no tool fits, beside calls."""
        if not self.format.refuses or language.schema is None:
            return False
        actions: list[Json] = language.schema["anyOf"]
        return {"tool", "none"} <= {name for action in actions for name in action["properties"]}

    def _shortest_call(self, grammar: Grammar, language: Language) -> int | None:
        """Tokens that surely hold a call; None where none can be written, whatever the budget."""
        colon = ":" if language.style == "compact" else ": "
        opening = self.encode(f'{{"tool"{colon}"')
        call = grammar.start(_ROOMY)
        try:
            call.advance(opening)
        except ValueError:
            return None
        return len(opening) + call.min_tokens_left
