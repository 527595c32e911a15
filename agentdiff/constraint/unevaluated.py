"""`unevaluatedProperties` and `unevaluatedItems` made plain: claims about all other keys and items."""

from __future__ import annotations

from dataclasses import replace

from agentdiff.constraint.facts import ALWAYS, Arrays, Claim, ItemLayer, KeyLayer, Objects


def other_keys(objects: Objects, claim: Claim, scope: str, around: frozenset[str]) -> Objects:
    """Return objects whose other keys meet a claim: those that no part within the scope speaks for.

    Args:
        objects: What is said of the object.
        claim: `unevaluatedProperties`.
        scope: The schema that it stands in.
        around: The scopes that this one is itself within.
    """
    within = [layer for layer in objects.layers if scope in layer.scopes]
    if any(layer.rest is not None for layer in within):
        return objects  # everything has been spoken for
    layer = KeyLayer(
        {name: ALWAYS for layer in within for name in layer.properties},
        tuple((text, ALWAYS) for layer in within for text, _ in layer.patterns),
        claim,
        around,
    )
    return replace(objects, layers=(*objects.layers, layer))


def other_items(arrays: Arrays, claim: Claim, scope: str, around: frozenset[str]) -> Arrays:
    """Return the same for lists and `unevaluatedItems`."""
    within = [layer for layer in arrays.layers if scope in layer.scopes]
    if any(layer.rest is not None for layer in within):
        return arrays
    spoken_for = max((len(layer.first) for layer in within), default=0)
    layer = ItemLayer((ALWAYS,) * spoken_for, claim, around)
    return replace(arrays, layers=(*arrays.layers, layer))
