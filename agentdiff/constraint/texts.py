"""Grammars that are no JSON Schema: a regex, a choice of texts, free text with a stop.

Free text may hold anything but what ends it: the first place where the stop can be read is where it
stands, also when it overlaps itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentdiff.constraint.automaton import END, Node, choice
from agentdiff.constraint.characters import ANY, exactly
from agentdiff.constraint.containers import one_of
from agentdiff.constraint.language import Language
from agentdiff.constraint.matcher import Grammar
from agentdiff.constraint.regex import parse_pattern
from agentdiff.constraint.spelled import Text
from agentdiff.constraint.spelling import RAW
from agentdiff.constraint.terms import ANYTHING, Chars, Pattern, Seq, Term
from agentdiff.constraint.vocabulary import Vocabulary
from agentdiff.errors import ConfigurationError, SchemaError


def compile_regex(pattern: str, vocabulary: Vocabulary) -> Grammar:
    """Compile a regular expression that the whole text must match.

    The expression is read as in JSON Schema (ECMA-262), but as if it stood between `^` and `$`.

    Raises:
        SchemaError: It holds something that cannot be enforced, or no text matches.
    """
    language = Language((parse_pattern(pattern, whole=True),), (), 0, RAW)
    language.check()
    start = Text(language, None, END).start()
    if start.is_dead:
        raise SchemaError(f"no text matches {pattern!r:.120}", keyword="pattern")
    return Grammar(start, vocabulary)


def compile_choice(texts: Sequence[str], vocabulary: Vocabulary) -> Grammar:
    """Compile a choice: the text is one of these, exactly.

    Raises:
        ConfigurationError: There is none, or one cannot be written in UTF-8.
    """
    if isinstance(texts, str) or not texts:
        raise ConfigurationError(f"`texts` must be a list of at least one text, got {texts!r:.80}")
    try:
        spelled = [text.encode() for text in texts]
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"`texts` holds one that is no valid Unicode: {error.object!r:.80}"
        ) from None
    return Grammar(one_of(spelled, END), vocabulary)


def compile_text(vocabulary: Vocabulary, *, stop: str | None = None) -> Grammar:
    """Compile free text: well-formed UTF-8 of any length, within the budget.

    Args:
        vocabulary: The model's vocabulary.
        stop: What ends the text. It does not occur before the end; the text may also end without.
    """
    if stop is None:
        return Grammar(free_text(END), vocabulary)
    return Grammar(choice([text_without(stop, END), text_until(stop, END)]), vocabulary)


def free_text(after: Node) -> Node:
    """Return a node that takes any text, then goes on."""
    return Text(Language((), (), 0, RAW), None, after).start()


def text_without(stop: str, after: Node) -> Node:
    """Return a node that takes any text in which the stop does not occur, then goes on."""
    bars = Seq((ANYTHING, _literal(stop), ANYTHING))
    return _text(Pattern(f"no {stop}", (), (bars,)), after)


def text_until(stop: str, after: Node) -> Node:
    """Return a node that takes any text up to and with the first stop, then goes on."""
    needs = Seq((ANYTHING, _literal(stop)))
    bars = Seq((ANYTHING, _literal(stop), _ANY_CHARACTER, ANYTHING))
    return _text(Pattern(f"up to {stop}", (needs,), (bars,)), after)


_ANY_CHARACTER = Chars(exactly(ANY))


def _text(pattern: Pattern, after: Node) -> Node:
    return Text(Language((pattern,), (), 0, RAW), None, after).start()


def _literal(text: str) -> Term:
    if not text:
        raise ConfigurationError("a stop must have at least one character")
    return Seq(tuple(Chars(exactly([(ord(c), ord(c))])) for c in text))
