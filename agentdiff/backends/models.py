"""What a service says of its models: room, prices, what they can do.

Prices are in US dollars for a million tokens. A service that lists them is believed; `KNOWN` is for
when it cannot be asked, and says of which day it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agentdiff.backends.loose import a_count, a_list, a_number, a_string, an_object
from agentdiff.messages import Json, Usage

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars for a million tokens."""

    input: float
    output: float
    cached_input: float | None = None
    date: str = ""
    """The day the price was noted, as `YYYY-MM-DD`; empty where the service itself said it just now."""

    def of(self, usage: Usage) -> float | None:
        """What `usage` costs, cached input at full price; None where a count is unknown."""
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        return (usage.input_tokens * self.input + usage.output_tokens * self.output) / _MILLION


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """One model, as its service lists it. What is not said is None or empty."""

    id: str
    context_tokens: int | None = None
    max_output_tokens: int | None = None
    price: Price | None = None
    endpoints: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    owner: str = ""


def cards(listed: Json) -> tuple[ModelCard, ...]:
    """The models of a `/v1/models` body; entries without an id are passed over."""
    found = (_card(an_object(entry)) for entry in a_list(an_object(listed).get("data")))
    return tuple(card for card in found if card.id)


def _card(entry: Mapping[str, Json]) -> ModelCard:
    return ModelCard(
        id=a_string(entry.get("id")),
        # Inception and OpenRouter, then vLLM.
        context_tokens=a_count(entry.get("context_length")) or a_count(entry.get("max_model_len")),
        max_output_tokens=a_count(entry.get("max_output_length")),
        price=_price(an_object(entry.get("pricing"))),
        endpoints=_strings(entry.get("supported_endpoints")),
        features=_strings(entry.get("supported_features")),
        owner=a_string(entry.get("owned_by")),
    )


def _price(said: Mapping[str, Json]) -> Price | None:
    of_input, of_output = a_number(said.get("prompt")), a_number(said.get("completion"))
    if of_input is None or of_output is None:
        return None
    cached = a_number(said.get("input_cache_reads"))
    return Price(
        input=of_input * _MILLION,
        output=of_output * _MILLION,
        cached_input=None if cached is None else cached * _MILLION,
    )


def _strings(value: Json) -> tuple[str, ...]:
    return tuple(filter(None, map(a_string, a_list(value))))


_NOTED: Final = "2026-10-16"


def _known(
    id: str, context: int, most: int | None, prices: tuple[float, float | None, float]
) -> ModelCard:
    of_input, cached, of_output = prices
    return ModelCard(
        id=id,
        context_tokens=context,
        max_output_tokens=most,
        price=Price(input=of_input, cached_input=cached, output=of_output, date=_NOTED),
    )


KNOWN: Final[Mapping[str, ModelCard]] = {
    card.id: card
    for card in (
        _known("mercury-3", 1_000_000, 131_072, (0.10, 0.01, 0.35)),
        _known("mercury-2.5", 260_000, 65_536, (0.20, 0.02, 0.75)),
        _known("mercury-2", 128_000, 50_000, (0.25, 0.025, 0.75)),
        _known("mercury-edit-2", 32_000, 8_192, (0.25, 0.025, 0.75)),
        _known("mercury-decide", 66_000, None, (0.02, None, 0.0)),
    )
}
"""Inception's models, as gateways listed them on the day in `Price.date`; some prices are promotional."""
