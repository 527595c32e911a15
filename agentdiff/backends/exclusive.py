"""What a grammar cannot say about grounded arguments: that no two of them take the same words, and that one is whole.

A grammar says what each argument may be, not that two of them differ; and a diffusion model, which writes them at the
same time, may put the likeliest words into both. Nor does it know that "kelvin per" has one word too many. So where a
proposal does that, the matcher is asked again with one or the other word ruled out, and the likelier of its answers is
taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from agentdiff.constraint import Matcher, Proposal, StepScores

if TYPE_CHECKING:
    from agentdiff.constraint import Vocabulary

_ARGUMENTS = b'"args":'
_MEMBER = re.compile(
    rb'"(?:[^"\\]|\\.)*": ?(?:("(?:[^"\\]|\\.)*"|-?\d[\d.]*)(?=[,}])|("(?:[^"\\]|\\.)+|-?\d[\d.]*)$)'
)
"""A member with a whole string or number; or with one that is still open where the block ends."""
_ROUNDS = 3
_PLACES = 3
"""Tokens of an argument, from its first, that may be ruled out."""

_LOOSE = "a an the at of per to and or with in on for by from is are my your our"
"""English words that a value of several words does not end with while the sentence goes on."""

_Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Argument:
    """A value in a proposal."""

    said: list[_Span]
    """Where the conversation says it."""
    open: list[int]
    """Positions of the block that hold it and are not settled."""
    is_loose: bool
    """Whether its last word or mark belongs to what follows it in the conversation."""

    def is_within(self, other: _Argument) -> bool:
        """Whether every place where it is said shares characters with every place of the other."""
        pairs = [(a, b) for a in self.said for b in other.said]
        return bool(pairs) and all(a[0] < b[1] and b[0] < a[1] for a, b in pairs)


class ExclusiveMatcher(Matcher):
    """A matcher whose proposals use no words twice and cut no phrase, as far as the grammar lets them."""

    def __init__(self, matcher: Matcher, vocabulary: Vocabulary, texts: Sequence[str]) -> None:
        """Take the place of `matcher`, which must not be used any more; `texts` is the conversation."""
        super().__init__(matcher._tokens, matcher._solver, matcher._state, matcher._budget)
        self._vocabulary = vocabulary
        self._text = re.sub(r"(?<=\d),(?=\d{3})", "", "\n".join(texts))
        self._written = b""

    def copy(self) -> ExclusiveMatcher:
        """See `Matcher.copy`."""
        other = ExclusiveMatcher(super().copy(), self._vocabulary, ())
        other._text, other._written, other._path = self._text, self._written, self._path
        return other

    def advance(self, tokens: Sequence[int]) -> None:
        """See `Matcher.advance`."""
        super().advance(tokens)
        self._written += b"".join(self._bytes(token) for token in tokens)

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
        if not isinstance(scores, StepScores):
            scores = StepScores.whole(scores)
        ask = partial(super().propose, temperature=temperature, top_p=top_p, rng=rng)
        fill = ask(scores, pinned)
        for _ in range(_ROUNDS):
            answers: list[tuple[float, StepScores, Proposal, list[int]]] = []
            for position in self._objections(fill, pinned):
                try:
                    less = scores.without(position, int(fill.tokens[position]))
                except ValueError:  # scores of groups, and the token is in one: not a grounded one
                    continue
                other = ask(less, pinned)
                answers.append((_likelihood(less, other, pinned), less, other, self._path))
            if not answers:
                break
            _, scores, fill, self._path = max(answers, key=lambda answer: answer[0])
        return fill

    def _bytes(self, token: int) -> bytes:
        return self._vocabulary.tokens[token] or b""

    def _objections(self, fill: Proposal, pinned: Mapping[int, int]) -> list[int]:
        """Positions one of which should hold something else.

        Those of the last words of an argument that is loose, or of the first two arguments that share their words.
        """
        before: list[_Argument] = []
        for argument in self._arguments(fill.tokens.tolist(), pinned):
            if argument.is_loose and argument.open:
                return argument.open[-_PLACES:]
            for earlier in before:
                if argument.is_within(earlier):
                    return [*earlier.open[:_PLACES], *argument.open[:_PLACES]]
            before.append(argument)
        return []

    def _arguments(self, tokens: Sequence[int], pinned: Mapping[int, int]) -> Iterator[_Argument]:
        pieces = [self._bytes(token) for token in tokens]
        text = self._written + b"".join(pieces)
        begin = text.find(_ARGUMENTS)
        if begin < 0:
            return
        ends = [*accumulate(map(len, pieces), initial=len(self._written))]
        for match in _MEMBER.finditer(text, begin + len(_ARGUMENTS)):
            group = 1 if match[1] else 2
            first, last = match.span(group)
            first += text[first] == 0x22
            holding = [n for n in range(len(pieces)) if ends[n] < last and ends[n + 1] > first]
            value = match[group].decode("utf-8", "ignore")
            said = self._said(value, group == 1)
            yield _Argument(
                said=said,
                open=[n for n in holding if n not in pinned],
                is_loose=group == 1 and value.startswith('"') and self._is_loose(value, said),
            )

    def _is_loose(self, value: str, said: Sequence[_Span]) -> bool:
        """Whether a whole string, said there, ends in the middle of a phrase everywhere."""
        if not said:
            return False
        if value[-2] in ",;!":
            return not any(self._text.startswith(('"', "'", "”"), end) for _, end in said)
        last = re.search(r"\s(\w+)\"$", value)
        return (
            last is not None
            and last[1].lower() in _LOOSE.split()
            and all(re.match(r"\s+\w", self._text[end:]) for _, end in said)
        )

    def _said(self, value: str, is_whole: bool) -> list[_Span]:
        if value.startswith('"'):
            behind = r"(?!\w)" if is_whole else ""
            pattern = rf"(?<!\w){re.escape(value[1:-1] if is_whole else value[1:])}{behind}"
        else:
            behind = r"(?!\d|\.\d)" if is_whole else ""
            pattern = rf"(?<![\d.]){re.escape(value)}{behind}"
        return [match.span() for match in re.finditer(pattern, self._text) if match[0]]


def _likelihood(scores: StepScores, fill: Proposal, pinned: Mapping[int, int]) -> float:
    """Log-probability of what a fill adds to the pins."""
    places = [n for n in scores.places.tolist() if n not in pinned]
    return sum(float(scores.at(n, [int(fill.tokens[n])])[0]) for n in places)
