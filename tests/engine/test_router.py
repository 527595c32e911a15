"""The router's notation, and what its slots do to what it copies."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentdiff.engine.families.signatures import (
    CONVERSATION,
    NOTHING,
    PARAMETER,
    SIGNATURE,
    TOOL,
    Signatures,
)
from tests.engine.toys import toy_family

CHARACTERS = {chr(code): code for code in range(32, 127)} | {
    "<|tools|>": 1,
    "<|user|>": 2,
    "Ċ": 3,
}
SIGNATURES = Signatures(CHARACTERS)


def ids_of(text):
    text = text.replace("<|tools|>", "\x01").replace("<|user|>", "\x02").replace("\n", "\x03")
    return [ord(character) for character in text]


def test_names_of_tools_and_parameters_are_places():
    text = "<|tools|>mail.send(to,cc?,when:now|later) send, quickly (or not)\nping() hi<|user|>ping(me, you)"
    kinds = SIGNATURES.kinds(ids_of(text))
    shown = text.replace("<|tools|>", "\x01").replace("<|user|>", "\x02")
    found = {kind: [shown[i:][:3] for i, k in enumerate(kinds) if k == kind] for kind in range(5)}
    assert found[TOOL] == ["mai", "pin"]
    assert found[PARAMETER] == ["to,", "cc?", "whe"]
    assert kinds[0] == NOTHING
    assert found[CONVERSATION][1] == "pin"
    assert len(found[CONVERSATION]) == len("\x02ping(me, you)")


def test_a_prompt_without_tools_is_all_conversation():
    assert SIGNATURES.kinds(ids_of("<|user|>a(b)")) == [NOTHING, *[CONVERSATION] * 4]
    assert SIGNATURES.kinds([]) == []


@given(st.lists(st.sampled_from([1, 2, 3, *map(ord, "(),ab")]), max_size=40))
def test_any_tokens_can_be_read(ids):
    kinds = SIGNATURES.kinds(ids)
    assert len(kinds) == len(ids)
    behind = ids.index(2) if 2 in ids else len(ids)
    assert not {SIGNATURE, PARAMETER} & {*kinds[behind:]}


def encoded(text):
    family = toy_family()
    ids = torch.tensor([[2 + ord(c) - 32 for c in text]])
    size = ids.shape[1]
    mask = torch.ones(1, 1, size, size, dtype=torch.bool)
    with torch.inference_mode():
        _, layers = family.run(ids, positions=torch.arange(size)[None], mask=mask, past=())
    return family, layers


def test_slots_are_chances_over_places():
    text = "<get(key,n) get~put(v) put>put 12"
    _, (*_, prompt) = encoded(text)
    _, keys, queries = prompt.keys[0, 0].split(32, -1)
    norms, places, said, tools, refusal = prompt.values[0, 0, :, 1:].unbind(-1)
    scores = (queries @ keys.T / 32**0.5)[:, places > 0] - norms[:, None]
    torch.testing.assert_close(scores.exp().sum(1), torch.ones(len(norms)))
    assert places.sum() == 1 + 2 + 3
    assert "".join(c for c, is_said in zip(text, said, strict=True) if is_said) == ">put 12"
    get, put = 1, text.index("put(")
    assert tools[get:put].exp().sum() == pytest.approx(float((put - get) * tools[get].exp()))
    assert tools[[get, put]].exp().sum() == pytest.approx(1, abs=1e-4)
    assert len(set(refusal.tolist())) == 1


@torch.inference_mode()
def test_what_an_earlier_prompt_left_in_the_cache_changes_nothing():
    family, layers = encoded("<get(key) get>get 12")
    _, others = encoded("<put(v,w) put>put 3 on 4")
    size = layers[0].keys.shape[2]
    ids = torch.zeros(1, 8, dtype=torch.int64)
    positions = torch.arange(size, size + 8)[None]
    mask = torch.ones(1, 1, 8, size + 8, dtype=torch.bool)
    alone = family.head(family.run(ids, positions=positions, mask=mask, past=layers)[0])
    after = [
        type(layer)(*(torch.cat(parts, 2) for parts in zip(layer, other, strict=True)))
        for layer, other in zip(layers, others, strict=True)
    ]
    unseen = torch.zeros(1, 1, 8, others[0].keys.shape[2], dtype=torch.bool)
    wider = torch.cat([mask[..., :size], unseen, mask[..., size:]], -1)
    beside = family.head(family.run(ids, positions=positions, mask=wider, past=after)[0])
    torch.testing.assert_close(alone, beside, atol=1e-4, rtol=1e-4)
