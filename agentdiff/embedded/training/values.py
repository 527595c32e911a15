"""Values that people write into requests: half from the written lists, half invented, so that they must be copied."""

from __future__ import annotations

import string
from random import Random

from agentdiff.embedded.training import corpus
from agentdiff.embedded.training.corpus import Split

_SYLLABLES = (
    "ba be bi bo bu da de di do du fa fe fi fo ga ge go gu ha he hi ho ja jo ka ke ki ko "
    "ku la le li lo lu ma me mi mo mu na ne ni no nu pa pe pi po ra re ri ro ru sa se si "
    "so su ta te ti to tu va ve vi vo wa we wi ya yo za zo an en in on ar er or al el il "
    "st ch sh th br cl dr fr gr pl tr ing ton er ly"
).split()
_EXTENSIONS = ("txt md pdf csv json py log yaml html docx xlsx png jpg zip toml ts sql").split()
_STREETS = "Street Road Ave Lane street".split()
_OCCASIONS = (
    "lunch dinner call meeting coffee review drinks training interview session walk".split()
)
_TEXTUAL = frozenset(
    (
        "person city country place company product food item song artist movie book animal "
        "job topic title query word tag status question sport color"
    ).split()
)
_NUMERIC = frozenset(["int", "small_int", "decimal", "money", "percent", "minutes", "year"])


def pseudo_word(rng: Random) -> str:
    """A pronounceable word that is in no list."""
    return "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(2, 4)))


def word(rng: Random) -> str:
    """A noun, an adjective or an invented word."""
    pick = rng.random()
    if pick < 0.5:
        return rng.choice(corpus.names()["nouns"])
    if pick < 0.75:
        return rng.choice(corpus.names()["adjectives"])
    return pseudo_word(rng)


def words(rng: Random, low: int, high: int) -> str:
    """Between `low` and `high` words; sometimes capitalised as a name."""
    count = rng.randint(low, high)
    chosen = [word(rng) for _ in range(count)]
    style = rng.random()
    if style < 0.15:
        chosen = [part.capitalize() for part in chosen]
    elif style < 0.22:
        chosen[0] = chosen[0].capitalize()
    if count > 1 and rng.random() < 0.15:
        chosen.insert(
            rng.randrange(1, count), rng.choice(["of", "the", "and", "for", "with", "in", "no"])
        )
    if rng.random() < 0.08:
        chosen.append(str(rng.randint(1, 99)))
    return " ".join(chosen)


def draw(rng: Random, kind: str, split: Split = "train") -> str:
    """One value of `kind` as it stands in a request (numbers as text, too)."""
    if kind in _NUMERIC:
        return _number(rng, kind)
    written = corpus.values(split).get(kind, ())
    invented = 0.35 if kind in _TEXTUAL else 0.5
    if kind in ("date", "time"):
        invented = 0.3
    if kind == "message":
        invented = 0.4
    if written and rng.random() >= invented:
        return rng.choice(written)
    return _invented(rng, kind, split)


def _number(rng: Random, kind: str) -> str:
    match kind:
        case "small_int":
            return str(rng.randint(1, 20))
        case "minutes":
            return str(
                rng.choice(
                    [1, 2, 3, 5, 10, 15, 20, 25, 30, 40, 45, 50, 60, 90, rng.randint(1, 240)]
                )
            )
        case "year":
            return str(rng.randint(1900, 2060))
        case "percent":
            return str(rng.choice([5, 10, 15, 20, 25, 50, 75, rng.randint(1, 99)]))
        case "money":
            return (
                f"{rng.randint(1, 999)}.{rng.randint(0, 99):02d}"
                if rng.random() < 0.5
                else str(rng.randint(1, 5000))
            )
        case "decimal":
            if rng.random() < 0.55:
                return str(
                    rng.choice([rng.randint(1, 20), rng.randint(1, 999), rng.randint(1, 20_000)])
                )
            return f"{rng.randint(0, 999)}.{rng.choice([str(rng.randint(1, 9)), f'{rng.randint(1, 99):02d}'])}"
        case _:
            return str(
                rng.choice([rng.randint(1, 30), rng.randint(1, 500), rng.randint(1, 99_999)])
            )


def _date(rng: Random) -> str:
    months = (
        "january february march april may june july august september october november december"
    ).split()
    month = rng.choice(months) if rng.random() < 0.7 else rng.choice(months)[:3]
    month = month.capitalize() if rng.random() < 0.4 else month
    day, year = rng.randint(1, 28), rng.randint(2015, 2035)
    suffix = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd"}.get(day, "th")
    return rng.choice(
        [
            f"{year}-{rng.randint(1, 12):02d}-{day:02d}",
            f"{month} {day}",
            f"{month} {day}{suffix}",
            f"{day} {month}",
            f"{month} {day}, {year}",
            f"{month} {day} {year}",
            f"{day} {month} {year}",
            f"the {day}{suffix}",
            f"{rng.randint(1, 12)}/{day}/{year}",
            f"{day}.{rng.randint(1, 12)}.{year}",
            rng.choice(["next ", "this ", "on ", ""]).replace("on ", "")
            + rng.choice(
                [
                    "monday",
                    "tuesday",
                    "wednesday",
                    "thursday",
                    "friday",
                    "saturday",
                    "sunday",
                    "week",
                ]
            ),
            f"in {rng.randint(2, 20)} days",
        ]
    )


def _time(rng: Random) -> str:
    hour, minute = (
        rng.randint(1, 12),
        rng.choice(["00", "05", "10", "15", "20", "30", "40", "45", "50"]),
    )
    half = rng.choice(["am", "pm"])
    return rng.choice(
        [
            f"{hour}{half}",
            f"{hour} {half}",
            f"{hour}:{minute}{half}",
            f"{hour}:{minute} {half}",
            f"{rng.randint(0, 23):02d}:{minute}",
            f"{rng.randint(6, 23)}:{minute}",
            f"{hour} o'clock",
        ]
    )


def _expression(rng: Random) -> str:
    def number() -> str:
        return (
            str(rng.randint(1, rng.choice([9, 99, 999, 9999])))
            if rng.random() < 0.85
            else f"{rng.randint(0, 99)}.{rng.randint(1, 99)}"
        )

    pick = rng.random()
    if pick < 0.2:
        return f"{number()}{rng.choice(['%', ' percent', ' %'])} of {number()}"
    if pick < 0.3:
        return rng.choice(
            [
                f"square root of {number()}",
                f"sqrt({number()})",
                f"{number()} squared",
                f"half of {number()}",
                f"a third of {number()}",
                f"{rng.randint(2, 12)}^{rng.randint(2, 9)}",
                f"{number()} cubed",
                f"{number()} to the power of {rng.randint(2, 6)}",
                f"a quarter of {number()}",
                f"{number()} mod {number()}",
            ]
        )
    if pick < 0.5:
        operation = rng.choice(
            ["plus", "minus", "times", "divided by", "multiplied by", "over", "x"]
        )
        tail = f" {rng.choice(['plus', 'minus', 'times'])} {number()}" if rng.random() < 0.2 else ""
        return f"{number()} {operation} {number()}{tail}"
    space = rng.choice(["", " "])
    text = number()
    for _ in range(rng.randint(1, 3)):
        term = number()
        if rng.random() < 0.15:
            term = f"({term}{space}{rng.choice('+-')}{space}{number()})"
        text += f"{space}{rng.choice('+-*/')}{space}{term}"
    return text


def _invented(rng: Random, kind: str, split: Split) -> str:
    upper, digits = string.ascii_uppercase, string.digits
    match kind:
        case "date":
            return _date(rng)
        case "time":
            return _time(rng)
        case "expression":
            return _expression(rng)
        case "unit":
            return rng.choice(rng.choice(corpus.unit_groups()))
        case "person":
            name = pseudo_word(rng).capitalize()
            return name if rng.random() < 0.7 else f"{name} {pseudo_word(rng).capitalize()}"
        case "city" | "country" | "company" | "artist" | "language":
            name = pseudo_word(rng)
            return name.capitalize() if rng.random() < 0.7 else name
        case "email":
            user = pseudo_word(rng) + rng.choice(["", ".", "_"]) + pseudo_word(rng)[:3]
            return f"{user}@{pseudo_word(rng)}.{rng.choice(['com', 'org', 'net', 'io'])}"
        case "phone":
            return rng.choice(["+", ""]) + "".join(
                rng.choice(digits) for _ in range(rng.randint(6, 11))
            )
        case "url":
            site = f"{pseudo_word(rng)}.{rng.choice(['com', 'io', 'org'])}"
            return f"{rng.choice(['https://', '', 'www.'])}{site}/{pseudo_word(rng)}"
        case "username":
            return (
                rng.choice(["@", ""]) + pseudo_word(rng) + rng.choice(["", str(rng.randint(1, 99))])
            )
        case "id" | "code" | "ticker" | "airport":
            if kind == "airport":
                return "".join(rng.choice(upper) for _ in range(3))
            letters = "".join(rng.choice(upper) for _ in range(rng.randint(1, 4)))
            return (
                letters
                if kind == "ticker"
                else rng.choice(
                    [
                        f"{letters}{rng.randint(1, 99_999)}",
                        f"{letters}-{rng.randint(1, 9999)}",
                        f"#{rng.randint(1, 99_999)}",
                        str(rng.randint(10, 999_999)),
                    ]
                )
            )
        case "hostname":
            return f"{pseudo_word(rng)}{rng.choice(['-', '.'])}{rng.choice(['01', 'prod', 'db', 'local', 'eu'])}"
        case "ip":
            return ".".join(str(rng.randint(0, 255)) for _ in range(4))
        case "branch":
            return rng.choice(["feature/", "fix/", "", "release-"]) + rng.choice(
                [pseudo_word(rng), f"{rng.randint(1, 9)}.{rng.randint(0, 20)}"]
            )
        case "filename" | "path":
            stem = rng.choice(
                [
                    word(rng),
                    f"{word(rng)}_{word(rng)}",
                    f"{word(rng)}-{rng.randint(1, 2030)}",
                    f"{word(rng)}{rng.randint(1, 99)}",
                ]
            )
            folder = f"{word(rng)}/" if rng.random() < 0.3 else ""
            return f"{folder}{stem}.{rng.choice(_EXTENSIONS)}"
        case "folder":
            return rng.choice([word(rng), f"{word(rng)}/{word(rng)}", f"/{word(rng)}/{word(rng)}"])
        case "address":
            street = f"{pseudo_word(rng).capitalize()} {rng.choice(_STREETS)}"
            return f"{rng.randint(1, 999)} {street}"
        case "message" | "question":
            if rng.random() < 0.5 or kind == "question":
                return words(rng, 3, 8)
            first, second = rng.choice(corpus.values(split)["message"]), draw(rng, "title", split)
            cut = first.split()
            return " ".join(cut[: rng.randint(1, len(cut))]) + " " + second
        case "query":
            pick = rng.random()
            if pick < 0.12:
                return f"*.{rng.choice(_EXTENSIONS)}"
            if pick < 0.18:
                return f"{word(rng)}*"
            return words(rng, 1, 3)
        case "title":
            pick = rng.random()
            if pick < 0.4:
                whom = draw(rng, rng.choice(["person", "topic", "company", "place"]), split)
                return (
                    f"{rng.choice(_OCCASIONS)} {rng.choice(['with', 'for', 'about', 'at'])} {whom}"
                )
            return words(rng, 1, 4)
        case "word" | "tag" | "status" | "color":
            return word(rng)
        case "month" | "weekday" | "currency":
            return rng.choice(corpus.values("train")[kind])
        case _:
            return words(rng, 1, 3)


_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(number: int) -> str:
    """A number from 0 to 100 in words."""
    if number < 20:
        return _ONES[number]
    if number == 100:
        return "a hundred"
    tens, ones = _TENS[number // 10 - 2], number % 10
    return f"{tens} {_ONES[ones]}" if ones else tens


def time_span(rng: Random, *, is_whole: bool) -> tuple[str, float]:
    """(a time span in words, hours or seconds, how many minutes that is)."""
    if not is_whole and rng.random() < 0.3:
        seconds = rng.choice([15, 20, 30, 30, 30, 45, 60, 75, 90, 90, 120, 150, 180])
        shown = in_words(seconds) if seconds <= 100 and rng.random() < 0.2 else str(seconds)
        return f"{shown} {rng.choice(['seconds', 'seconds', 'sec', 'secs'])}", round(
            seconds / 60, 4
        )
    pick = rng.random()
    if pick < 0.3:
        return rng.choice(
            [
                ("an hour", 60),
                ("one hour", 60),
                ("1 hour", 60),
                ("half an hour", 30),
                ("a half hour", 30),
                ("a quarter of an hour", 15),
                ("three quarters of an hour", 45),
                ("an hour and a half", 90),
                ("one and a half hours", 90),
                ("a couple of minutes", 2),
                ("a minute", 1),
            ]
        )
    if pick < 0.65:
        hours = rng.choice([2, 2, 2, 3, 3, 4, 5, 6, 8, 10, 12, 24])
        shown = in_words(hours) if rng.random() < 0.3 else str(hours)
        unit = rng.choice(["hours", "hours", "hours", "hrs", "h"])
        return f"{shown} {unit}" if unit != "h" else f"{shown}h", 60 * hours
    if pick < 0.75:
        half = rng.choice([1.5, 2.5, 3.5, 0.5])
        return f"{half:g} hours", 60 * half
    if pick < 0.85:
        minutes = rng.choice([5, 10, 15, 20, 30, 45])
        between = rng.choice([" ", " and "])
        return f"1 hour{between}{minutes} minutes", 60 + minutes
    minutes = rng.choice([2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30, 35, 40, 45, 50, 90])
    return f"{in_words(minutes)} {rng.choice(['minutes', 'minutes', 'min'])}", minutes


def unit_pair(rng: Random) -> tuple[str, str]:
    """Two different units that convert into each other."""
    first, second = rng.sample(rng.choice(corpus.unit_groups()), 2)
    return first, second
