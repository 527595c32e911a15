r"""The formats of JSON Schema as patterns, narrower than any common validator reads them.

Each takes only what both `jsonschema` (all extras, draft 2020-12) and `jsonschema-rs` accept. Where
RFCs leave room that readers fill differently, the plain form is taken: ASCII, upper-case `T` and
`Z`, no leap seconds, no quoted local parts. Lengths that a standard limits as a whole
are limited part by part, so that no position has to be counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import Lock

from agentdiff.constraint.regex import parse_pattern
from agentdiff.constraint.terms import Pattern

_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_MONTH_AND_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"(?:{_YEAR}-{_MONTH_AND_DAY}|{_LEAP}-02-29)"
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](?:\.[0-9]{{1,9}})?(?:Z|[+-]{_CLOCK})"

# RFC 3339, appendix A: no unit is skipped between two others.
_COUNT = "[0-9]{1,6}"
_CLOCK_SPAN = f"T(?:{_COUNT}H(?:{_COUNT}M(?:{_COUNT}S)?)?|{_COUNT}M(?:{_COUNT}S)?|{_COUNT}S)"
_DATE_SPAN = f"(?:{_COUNT}Y(?:{_COUNT}M(?:{_COUNT}D)?)?|{_COUNT}M(?:{_COUNT}D)?|{_COUNT}D)"
_DURATION = f"P(?:{_DATE_SPAN}(?:{_CLOCK_SPAN})?|{_CLOCK_SPAN}|{_COUNT}W)"

# At most 6 labels of at most 41 characters: 251 of the 253 that a name may have. No two hyphens side
# by side, which would be a question of IDNA; the last label begins with a letter, so that no name
# is half an address.
_ALNUM = "[A-Za-z0-9]"
_LABEL_END = f"(?:(?:-?{_ALNUM}){{0,20}}|{_ALNUM}{{0,40}})"
_HOST = rf"(?:{_ALNUM}{_LABEL_END}\.){{0,5}}[A-Za-z]{_LABEL_END}"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
# At most 32 of these and of those, each with a dot (or a hyphen) before it: 63 of the 64 characters
# that a local part and a label may have. Few counts make few states.
_EMAIL = rf"{_ATOM}(?:\.?{_ATOM}){{0,31}}@{_ALNUM}(?:[.-]?{_ALNUM}){{0,31}}"

_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_GROUP = "[0-9A-Fa-f]{1,4}"


def _ipv6() -> str:
    """Eight groups, or fewer around one `::`; or an IPv4 address in disguise."""
    ways = [f"{_GROUP}(?::{_GROUP}){{7}}"]
    for before in range(8):
        front = f"{_GROUP}(?::{_GROUP}){{{before - 1}}}" if before else ""
        after = 7 - before
        back = f"(?:{_GROUP}(?::{_GROUP}){{0,{after - 1}}})?" if after else ""
        ways.append(f"{front}::{back}")
    ways.append(f"::(?:[Ff]{{4}}:)?{_IPV4}")
    return f"(?:{'|'.join(ways)})"


_PERCENT = "%[0-9A-Fa-f]{2}"
_PATH_CHAR = rf"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|{_PERCENT})"
_PATH_CHAR_NO_COLON = rf"(?:[A-Za-z0-9\-._~!$&'()*+,;=@]|{_PERCENT})"
_REST = rf"(?:\?(?:{_PATH_CHAR}|[/?])*)?(?:#(?:{_PATH_CHAR}|[/?])*)?"
_USER = rf"(?:(?:[A-Za-z0-9\-._~!$&'()*+,;=:]|{_PERCENT})*@)?"
_AUTHORITY = rf"//(?:{_USER}(?:[A-Za-z0-9\-._~]+|\[{_ipv6()}\])(?::[0-9]{{1,5}})?)?"
_SEGMENTS = f"(?:/{_PATH_CHAR}*)*"
_URI = (
    rf"[A-Za-z][A-Za-z0-9+.\-]*:"
    rf"(?:{_AUTHORITY}{_SEGMENTS}|/?{_PATH_CHAR}+{_SEGMENTS}){_REST}"
)
_URI_REFERENCE = (
    rf"(?:{_URI}|{_AUTHORITY}{_SEGMENTS}{_REST}|/(?:{_PATH_CHAR}+{_SEGMENTS})?{_REST}"
    rf"|{_PATH_CHAR_NO_COLON}+{_SEGMENTS}{_REST}|{_REST})"
)

_POINTER = "(?:/(?:[^~/]|~[01])*)*"

_TEXTS: Mapping[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _ipv6(),
    "uri": _URI,
    "uri-reference": _URI_REFERENCE,
    "uuid": "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(?:0|[1-9]{{1,8}}0?)(?:#|{_POINTER})",
}


class _Formats(Mapping[str, Pattern]):
    """Patterns by format, parsed when first asked for."""

    def __init__(self) -> None:
        self._parsed: dict[str, Pattern] = {}
        self._lock = Lock()

    def __getitem__(self, name: str) -> Pattern:
        with self._lock:
            if name not in self._parsed:
                self._parsed[name] = parse_pattern(_TEXTS[name], whole=True)
            return self._parsed[name]

    def __contains__(self, name: object) -> bool:
        return name in _TEXTS

    def __iter__(self) -> Iterator[str]:
        return iter(_TEXTS)

    def __len__(self) -> int:
        return len(_TEXTS)


FORMATS: Mapping[str, Pattern] = _Formats()
"""Name of a format → the strings that it takes."""
