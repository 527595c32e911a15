"""Grammars shared between requests, within a bound of bytes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock

from agentdiff.constraint.matcher import Grammar


class GrammarCache:
    """Grammars by what they were compiled from; the least recently used go first. Thread-safe.

    A grammar grows as it is used. One that has outgrown its share is compiled anew when it is asked
    for again; matchers that are under way keep the old one.
    """

    def __init__(self, *, max_bytes: int = 64_000_000, max_grammar_bytes: int = 4_000_000) -> None:
        """Begin empty.

        Args:
            max_bytes: What all grammars may hold together, about; the last one stays in any case.
            max_grammar_bytes: What one grammar may have grown to when it is asked for again.
        """
        self._max_bytes, self._max_grammar_bytes = max_bytes, max_grammar_bytes
        self._grammars: dict[Hashable, Grammar] = {}  # the least recently used first
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._grammars)

    @property
    def nbytes(self) -> int:
        """Bytes held, about."""
        with self._lock:
            return sum(grammar.nbytes for grammar in self._grammars.values())

    def get(self, key: Hashable, compile: Callable[[], Grammar]) -> Grammar:
        """Return the grammar of a key, compiled when it is not there.

        Args:
            key: All that the grammar depends on: the text of the schema, its options, its vocabulary
                where there are several.
            compile: Makes the grammar; what it raises is raised, and nothing is kept. Two requests
                that come at once may both compile.
        """
        with self._lock:
            grammar = self._grammars.pop(key, None)
            if grammar is not None and grammar.nbytes <= self._max_grammar_bytes:
                self._grammars[key] = grammar
                return grammar
        grammar = compile()
        with self._lock:
            self._grammars.pop(key, None)
            self._grammars[key] = grammar
            sizes = {key: grammar.nbytes for key, grammar in self._grammars.items()}
            held = sum(sizes.values())
            for oldest in list(self._grammars)[:-1]:
                if held <= self._max_bytes:
                    break
                del self._grammars[oldest]
                held -= sizes[oldest]
        return grammar
