"""Two things to draw on: SVG, and PNG without any library. They know lines, dots and words.

Points are (x, y) in pixels from the upper left corner; colours are `#rrggbb`.
"""

from __future__ import annotations

import struct
import zlib
from typing import Literal, Protocol
from xml.sax.saxutils import escape

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]
OPACITY = 0.35
"""Of a dot, so that many in one place are darker."""
_DOT = [(x, y) for y in (-1, 0, 1) for x in (-1, 0, 1)]


class Surface(Protocol):
    """What a picture is drawn on."""

    def line(self, start: Point, end: Point, color: str) -> None:
        """A thin line."""
        ...

    def dot(self, at: Point, color: str) -> None:
        """A small dot through which one sees."""
        ...

    def text(self, at: Point, words: str, *, anchor: Anchor = "start", color: str) -> None:
        """Words on one line; `at` is where their base line starts, has its middle or ends."""
        ...


class Svg:
    """A scalable picture, as text."""

    def __init__(self, width: int, height: int) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}" font-family="system-ui, sans-serif"'
            ' font-size="12">',
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
        ]

    def line(self, start: Point, end: Point, color: str) -> None:
        """See `Surface.line`."""
        path = f"M{start[0]:.1f} {start[1]:.1f}L{end[0]:.1f} {end[1]:.1f}"
        self._parts.append(f'<path d="{path}" stroke="{color}"/>')

    def dot(self, at: Point, color: str) -> None:
        """See `Surface.dot`."""
        self._parts.append(
            f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="2" fill="{color}"'
            f' fill-opacity="{OPACITY}"/>'
        )

    def text(self, at: Point, words: str, *, anchor: Anchor = "start", color: str) -> None:
        """See `Surface.text`."""
        self._parts.append(
            f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}" fill="{color}">'
            f"{escape(words)}</text>"
        )

    def encoded(self) -> bytes:
        """The file."""
        return "\n".join([*self._parts, "</svg>\n"]).encode()


class Png:
    """A picture of pixels; words are in capitals."""

    def __init__(self, width: int, height: int) -> None:
        self._width, self._height = width, height
        self._pixels = bytearray(b"\xff" * (3 * width * height))

    def line(self, start: Point, end: Point, color: str) -> None:
        """See `Surface.line`."""
        ink = _rgb(color)
        steps = max(1, round(max(abs(end[0] - start[0]), abs(end[1] - start[1]))))
        for step in range(steps + 1):
            x, y = (
                one + (other - one) * step / steps for one, other in zip(start, end, strict=True)
            )
            self._put(round(x), round(y), ink, 1.0)

    def dot(self, at: Point, color: str) -> None:
        """See `Surface.dot`."""
        ink = _rgb(color)
        for x, y in _DOT:
            self._put(round(at[0]) + x, round(at[1]) + y, ink, OPACITY)

    def text(self, at: Point, words: str, *, anchor: Anchor = "start", color: str) -> None:
        """See `Surface.text`."""
        ink = _rgb(color)
        width = _ADVANCE * len(words)
        left = round(at[0]) - {"start": 0, "middle": width // 2, "end": width}[anchor]
        top = round(at[1]) - _SCALE * _ROWS
        for number, letter in enumerate(words.upper()):
            shape = 5 * _LETTERS.find(letter)
            for row, bits in enumerate(_SHAPES[shape : shape + 5] if shape >= 0 else ""):
                for column in range(3):
                    if int(bits) & 4 >> column:
                        x = left + _ADVANCE * number + _SCALE * column
                        self._square(x, top + _SCALE * row, ink)

    def encoded(self) -> bytes:
        """The file (PNG, ISO/IEC 15948: eight bits a colour, no filter)."""
        stride = 3 * self._width
        rows = b"".join(
            b"\0" + self._pixels[start : start + stride]
            for start in range(0, len(self._pixels), stride)
        )
        head = struct.pack(">IIBBBBB", self._width, self._height, 8, 2, 0, 0, 0)
        chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
            for name, data in chunks
        )

    def _square(self, x: int, y: int, ink: bytes) -> None:
        for across in range(_SCALE):
            for down in range(_SCALE):
                self._put(x + across, y + down, ink, 1.0)

    def _put(self, x: int, y: int, ink: bytes, opacity: float) -> None:
        if not (0 <= x < self._width and 0 <= y < self._height):
            return
        at = 3 * (y * self._width + x)
        for channel in range(3):
            below = self._pixels[at + channel]
            self._pixels[at + channel] = round(below + (ink[channel] - below) * opacity)


def _rgb(color: str) -> bytes:
    return bytes.fromhex(color.removeprefix("#"))


_SCALE = 2
_ROWS = 5
_ADVANCE = 4 * _SCALE
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ,.:%-/"
_SHAPES = (
    "75557262277174771717557117471774757711117575775717"
    "257556565634443655567464774644345535575572227111525565544447577556555525552"
    "656442556365655342167222255557555525577555255552227124700024000020202051245"
    "0070011244"
)
"""Of letters, three by five pixels: a digit for each row, a bit of it for each pixel."""
