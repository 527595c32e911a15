"""A decision by one look of a local model: how likely it finds each option's letter as the first token of its reply.

The grammar allows the letters only, so the decode takes a single denoising step; a matcher that listens keeps what the
model thought of the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentdiff.backends.decisions import LABELS
from agentdiff.constraint import Grammar, Matcher, Proposal, StepScores, compile_choice
from agentdiff.messages import Message, user

if TYPE_CHECKING:
    from agentdiff.constraint import Vocabulary
    from agentdiff.generation import Question


def as_messages(question: Question) -> tuple[Message, ...]:
    """The conversation, and the question with a letter for each option behind it."""
    lines = [
        f"{label} = {option}: {meaning}" if meaning else f"{label} = {option}"
        for label, (option, meaning) in zip(LABELS, question.options.items(), strict=False)
    ]
    text = "\n".join([question.instructions, *lines, "Answer with one letter."])
    return (*question.messages, user(text))


def letters(vocabulary: Vocabulary, count: int) -> Grammar:
    """The grammar of the first letters."""
    return compile_choice(list(LABELS[:count]), vocabulary)


def probabilities(
    heard: Mapping[int, float], vocabulary: Vocabulary, options: Sequence[str]
) -> dict[str, float] | None:
    """Option → probability, by the log-probabilities of the tokens that spell its letter; None where none was heard."""
    scores = dict.fromkeys(options, 0.0)
    by_letter = {label.encode(): option for label, option in zip(LABELS, options, strict=False)}
    for token, log_prob in heard.items():
        option = by_letter.get(vocabulary.tokens[token] or b"")
        if option is not None:
            scores[option] += math.exp(log_prob)
    total = sum(scores.values())
    return {option: score / total for option, score in scores.items()} if total > 0 else None


class ListeningMatcher(Matcher):
    """A matcher that keeps what the model thought of some tokens at the first position."""

    def __init__(self, matcher: Matcher, tokens: Sequence[int]) -> None:
        """Take the place of `matcher`, which must not be used any more."""
        super().__init__(matcher._tokens, matcher._solver, matcher._state, matcher._budget)
        self._listened = list(tokens)
        self.heard: dict[int, float] = {}
        """Token → its log-probability in the last look."""

    def propose(
        self,
        scores: Any,
        pinned: Mapping[int, int],
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        rng: Any = None,
    ) -> Proposal:
        """See `Matcher.propose`."""
        if 0 not in pinned:
            rows = scores if isinstance(scores, StepScores) else StepScores.whole(scores)
            heard = rows.at(0, self._listened).tolist()
            self.heard = dict(zip(self._listened, heard, strict=True))
        return super().propose(scores, pinned, temperature=temperature, top_p=top_p, rng=rng)
