r"""Regular expressions as JSON Schema means them: ECMA-262, a match anywhere unless anchored.

`parse_pattern` reads one into a `Pattern`. What a string cannot be held to soundly is an error that
names the construct: look-around (but for look-aheads right behind a leading `^`, and a positive one
at the end), back-references, word boundaries, flags.

Knows characters; no bytes and no automaton.
"""

from __future__ import annotations

from typing import NoReturn

from agentdiff.constraint.characters import (
    ANY,
    DOT,
    CharacterClass,
    category_class,
    escaped_class,
    exactly,
)
from agentdiff.constraint.terms import (
    Ahead,
    Alt,
    Anchor,
    Chars,
    Pattern,
    Repeat,
    Seq,
    Term,
    Unenforceable,
    leading_aheads,
    whole_string,
    without_last_ahead,
)
from agentdiff.errors import SchemaError

_MAX_NESTED = 100


def parse_pattern(text: str, *, whole: bool = False) -> Pattern:
    r"""Read an ECMA-262 regular expression.

    `\d`, `\w`, `\s`, `.` and their opposites are narrowed to what every common reader takes them
    for. Lazy quantifiers are greedy ones, and named groups are groups: neither changes which
    strings match.

    Args:
        text: The expression, without slashes or flags.
        whole: Whether it must match the whole string; else it may match anywhere in it.

    Raises:
        SchemaError: It is malformed, or holds something that cannot be enforced; names it.
    """
    parser = _Parser(text)
    try:
        term = parser.parse()
        term = Seq((Anchor(True), term, Anchor(False))) if whole else without_last_ahead(term)
        aheads, term = leading_aheads(term)
        needs = [whole_string(term, lenient=False)]
        bars: list[Term] = []
        for ahead in aheads:
            body = Seq((Anchor(True), ahead.body))
            found = whole_string(body, lenient=ahead.is_negative)
            (bars if ahead.is_negative else needs).append(found)
    except Unenforceable as error:
        parser.refuse(str(error))
    except RecursionError:
        parser.refuse("it is nested too deep")
    return Pattern(text, tuple(needs), tuple(bars))


class _Parser:
    """Recursive descent, as in ECMA-262 annex B: braces and brackets may stand for themselves."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0

    def parse(self) -> Term:
        term = self._alternatives()
        if self._at < len(self._text):
            self.refuse("a `)` closes no group")
        return term

    def refuse(self, why: str) -> NoReturn:
        raise SchemaError(
            f"`pattern` {self._text!r:.120} cannot be enforced: {why}", keyword="pattern"
        )

    def _next_is(self, text: str) -> bool:
        """Whether this comes next; if so, go past it."""
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _alternatives(self) -> Term:
        self._depth += 1
        if self._depth > _MAX_NESTED:
            self.refuse("it is nested too deep")
        ways = [self._sequence()]
        while self._next_is("|"):
            ways.append(self._sequence())
        self._depth -= 1
        return ways[0] if len(ways) == 1 else Alt(tuple(ways))

    def _sequence(self) -> Term:
        items: list[Term] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            items.append(self._quantified(self._atom()))
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def _quantified(self, term: Term) -> Term:
        bounds = self._bounds()
        if bounds is None:
            return term
        self._next_is("?")  # lazy
        if self._is_quantifier_at(self._at):
            self.refuse("a quantifier has nothing to repeat")
        if isinstance(term, (Anchor, Ahead)):
            self.refuse("a quantifier repeats an assertion")
        return Repeat(term, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._next_is(sign):
                return bounds
        if not self._text.startswith("{", self._at):
            return None
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : max(end, self._at + 1)].partition(",")
        if end < 0 or not _is_count(low) or (high and not _is_count(high)):
            return None  # a brace that stands for itself
        self._at = end + 1
        fewest = int(low)
        most = fewest if not comma else int(high) if high else None
        if most is not None and most < fewest:
            self.refuse(f"the numbers of `{{{low},{high}}}` are out of order")
        return fewest, most

    def _atom(self) -> Term:
        c = self._text[self._at]
        self._at += 1
        match c:
            case "^" | "$":
                return Anchor(c == "^")
            case "(":
                return self._group()
            case ".":
                return Chars(DOT)
            case "[":
                return Chars(self._brackets())
            case "\\":
                return Chars(self._escape(in_brackets=False))
            case "*" | "+" | "?":
                self.refuse(f"`{c}` has nothing to repeat")
            case "{" if self._is_quantifier_at(self._at - 1):
                self.refuse("a quantifier has nothing to repeat")
            case _:
                return Chars(_one(ord(c)))

    def _is_quantifier_at(self, at: int) -> bool:
        here, self._at = self._at, at
        found = self._bounds() is not None
        self._at = here
        return found

    def _group(self) -> Term:
        ahead: bool | None = None
        if self._next_is("?"):
            if self._next_is("="):
                ahead = False
            elif self._next_is("!"):
                ahead = True
            elif self._next_is("<=") or self._next_is("<!"):
                self.refuse("look-behind is not supported")
            elif self._next_is("<"):
                end = self._text.find(">", self._at)
                if end < 0 or not self._text[self._at : end].isidentifier():
                    self.refuse("a group has no proper name")
                self._at = end + 1
            elif not self._next_is(":"):
                self.refuse(f"`(?{self._text[self._at : self._at + 1]}` is not supported")
        body = self._alternatives()
        if not self._next_is(")"):
            self.refuse("a group is not closed")
        return body if ahead is None else Ahead(body, ahead)

    def _brackets(self) -> CharacterClass:
        is_negated = self._next_is("^")
        begin = self._at
        found = exactly(())
        while not self._next_is("]"):
            first = self._member()
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                last = self._member()
                if isinstance(first, int) and isinstance(last, int):
                    if last < first:
                        self.refuse("the ends of a range are out of order")
                    found = found.joined(exactly(((first, last),)))
                    continue
                # A class cannot begin or end a range: the dash stands for itself.
                found = found.joined(_one(0x2D)).joined(_class_of(last))
            found = found.joined(_class_of(first))
        inside = self._text[begin : self._at]
        if any(f"\\{c}" in inside and f"\\{c.upper()}" in inside for c in "dsw"):
            found = exactly(ANY)  # a class and its opposite, for every reader
        return found.negated() if is_negated else found

    def _member(self) -> int | CharacterClass:
        """One member of a class: a code point, or a class of its own."""
        if self._at >= len(self._text):
            self.refuse("a `[` is not closed")
        c = self._text[self._at]
        self._at += 1
        if c != "\\":
            return ord(c)
        escaped = self._escape(in_brackets=True)
        ranges = escaped.must
        if len(ranges) == 1 and ranges[0][0] == ranges[0][1] and escaped.may == ranges:
            return ranges[0][0]
        return escaped

    def _escape(self, *, in_brackets: bool) -> CharacterClass:
        if self._at >= len(self._text):
            self.refuse("it ends in a backslash")
        c = self._text[self._at]
        self._at += 1
        named = escaped_class(c)
        if named is not None:
            return named
        if c in _CONTROLS:
            return _one(_CONTROLS[c])
        match c:
            case "x":
                return _one(self._hex(2))
            case "u":
                return self._unicode()
            case "c" if self._text[self._at : self._at + 1].isalpha():
                self._at += 1
                return _one(ord(self._text[self._at - 1]) % 32)
            case "0" if not self._text[self._at : self._at + 1].isdecimal():
                return _one(0)
            case "p" | "P":
                return self._category(is_negated=c == "P")
            case "b" if in_brackets:
                return _one(0x08)
            case "b" | "B":
                self.refuse(f"the word boundary `\\{c}` is not supported")
            case "k":
                self.refuse("the back-reference `\\k` is not supported")
            case _ if c.isdecimal():
                self.refuse(f"the back-reference `\\{c}` is not supported")
            case _ if c.isalpha():
                self.refuse(f"the escape `\\{c}` is not known")
            case _:
                return _one(ord(c))

    def _hex(self, count: int) -> int:
        digits = self._text[self._at : self._at + count]
        if len(digits) < count or not all(d in "0123456789abcdefABCDEF" for d in digits):
            self.refuse("a hexadecimal escape is malformed")
        self._at += count
        return int(digits, 16)

    def _unicode(self) -> CharacterClass:
        if self._next_is("{"):
            end = self._text.find("}", self._at)
            code = self._hex(end - self._at) if 0 < end - self._at <= 6 else -1
            if not self._next_is("}") or not 0 <= code <= 0x10FFFF:
                self.refuse("a `\\u{...}` escape is malformed")
            return _one(code)
        code = self._hex(4)
        if 0xD800 <= code < 0xDC00 and self._text.startswith("\\u", self._at):
            here = self._at
            self._at += 2
            low = self._hex(4)
            if 0xDC00 <= low < 0xE000:
                return _one(0x10000 + ((code - 0xD800) << 10) + low - 0xDC00)
            self._at = here
        return _one(code)

    def _category(self, *, is_negated: bool) -> CharacterClass:
        end = self._text.find("}", self._at)
        if not self._next_is("{") or end < 0:
            self.refuse("`\\p` needs the name of a category in braces")
        name = self._text[self._at : end]
        self._at = end + 1
        known = category_class(name)
        if known is None:
            self.refuse(f"`\\p{{{name}}}` is not supported; only general categories are")
        return known.negated() if is_negated else known


_CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _one(code: int) -> CharacterClass:
    return exactly(((code, code),))


def _class_of(member: int | CharacterClass) -> CharacterClass:
    return _one(member) if isinstance(member, int) else member
