"""The dial of diffusion, measured: what each way to unmask costs the embedded model, and what it gets right.

The same requests are decoded under every setting, through the real backend: prompts, grammars and budgets are those of
a run, and only the policy differs.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from agentdiff.backends.actions import ReplyFormat
from agentdiff.backends.local import EMBEDDED, LocalBackend, load_tokenizer
from agentdiff.embedded.bench import SETS, cases_of, judge
from agentdiff.engine import (
    DecodeParams,
    EarlyCommit,
    Effort,
    Engine,
    EntropyBound,
    Factor,
    FamilyTraits,
    LookAhead,
    Quota,
    Renoise,
    Revision,
    Speculation,
    Threshold,
    UnmaskPolicy,
    load_family,
    preset,
)

if TYPE_CHECKING:
    from agentdiff.constraint import Matcher
    from agentdiff.embedded.bench import Case, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way to decode."""

    policy: UnmaskPolicy | Renoise
    revision: Revision | None = None
    speculation: Speculation | None = None
    kind: str
    """The policy in a word; settings of a kind differ in `dial`."""
    dial: float
    """Its threshold, factor, bound or number of steps."""
    effort: Effort | None = None
    """The word that a request has for it."""

    @property
    def name(self) -> str:
        """For people: `threshold 0.9`."""
        return f"{self.kind} {self.dial:g}"


class SetEngine(Engine):
    """Decodes everything under one setting, whatever a request asks for, and remembers no prompt."""

    setting: Setting | None = None
    """What everything is decoded under; None leaves it to the request."""

    def add(
        self, prompt: Sequence[int], params: DecodeParams, matcher: Matcher | None = None
    ) -> int:
        """See `Engine.add`."""
        if self.setting is not None:
            setting = self.setting
            params = replace(
                params,
                policy=setting.policy,
                revision=setting.revision,
                speculation=setting.speculation,
            )
        return super().add(prompt, params, matcher)


def load() -> tuple[LocalBackend, SetEngine]:
    """The embedded model as a backend, and the engine in it, whose setting can be changed."""
    engine = SetEngine(load_family(EMBEDDED), prefix_bytes=0)
    declared = json.loads((EMBEDDED / "config.json").read_text("utf-8"))["agentdiff"]
    backend = LocalBackend(
        engine,
        load_tokenizer(EMBEDDED),
        name="embedded",
        model="embedded",
        format=ReplyFormat(**declared),
    )
    return backend, engine


def efforts(traits: FamilyTraits) -> list[Setting]:
    """What `effort` means for a model."""
    settings: list[Setting] = []
    for effort in get_args(Effort):
        policy, revision = preset(traits, effort)
        kind, dial = "effort", float(len(settings))
        if isinstance(policy, Threshold) and revision is None:
            kind, dial = "threshold", policy.threshold
        settings.append(
            Setting(policy=policy, revision=revision, kind=kind, dial=dial, effort=effort)
        )
    return settings


def every_setting(traits: FamilyTraits) -> list[Setting]:
    """The efforts, and each policy over the range of its dial.

    Without revocation and self-verification: their shadow positions have no neighbours, which the embedded model's
    token shift needs. Looking ahead gives what its policy gives, in fewer passes over more positions.
    """
    others = [
        *(
            Setting(kind="threshold", dial=dial, policy=Threshold(dial))
            for dial in (0.3, 0.5, 0.7, 0.8, 0.9, 0.97, 0.99)
        ),
        *(Setting(kind="factor", dial=dial, policy=Factor(dial)) for dial in (0.1, 0.3, 1.0, 3.0)),
        *(
            Setting(kind="entropy bound", dial=dial, policy=EntropyBound(dial))
            for dial in (0.01, 0.1, 0.5, 2.0)
        ),
        *(
            Setting(kind="quota", dial=steps, policy=Quota(steps=steps))
            for steps in (1, 2, 4, 8, 16)
        ),
        *(
            Setting(kind="margin quota", dial=steps, policy=Quota(steps=steps, score="margin"))
            for steps in (2, 4, 8)
        ),
        *(
            Setting(
                kind="early commit", dial=dial, policy=EarlyCommit(policy=Threshold(dial), steps=4)
            )
            for dial in (0.7, 0.9)
        ),
        *(
            Setting(
                kind="look ahead",
                dial=steps,
                policy=Threshold(0.9),
                speculation=LookAhead(steps=steps),
            )
            for steps in (1, 3)
        ),
    ]
    words = efforts(traits)
    known = [(setting.policy, setting.revision, None) for setting in words]
    new = [s for s in others if (s.policy, s.revision, s.speculation) not in known]
    order = list(dict.fromkeys(setting.kind for setting in [*words, *others]))
    return sorted([*words, *new], key=lambda setting: (order.index(setting.kind), setting.dial))


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What a setting gave."""

    setting: Setting
    exact: float
    """Share of exact replies."""
    tokens_per_forward: float
    forwards: float
    """For each request, prefill and block stores included."""
    positions: float
    """Token positions pushed through the model, for each request."""
    cpu_ms: float
    """Processor time of a request."""

    @classmethod
    def of(cls, setting: Setting, score: Score) -> Point:
        """A setting and its counts."""
        return cls(
            setting=setting,
            exact=score.accuracy,
            tokens_per_forward=score.tokens_per_forward,
            forwards=score.forwards / max(1, score.rows),
            positions=score.positions / max(1, score.rows),
            cpu_ms=score.cpu_ms,
        )


async def sample(root: Path, *, size: int, seed: int) -> list[Case]:
    """About `size` cases, as many from each evaluation set. `root` is an empty folder for first steps of chains."""
    chosen: list[Case] = []
    source = random.Random(seed)
    each = -(-size // len(SETS))
    for file, _ in SETS.values():
        cases = await cases_of(file, root)
        chosen += source.sample(cases, min(each, len(cases)))
    return chosen


async def measure(
    backend: LocalBackend, engine: SetEngine, setting: Setting, cases: Sequence[Case]
) -> Point:
    """Decode all cases under a setting, one at a time; `backend` and `engine` as `load` gives them."""
    engine.setting = setting
    return Point.of(setting, await judge(backend, setting.name, cases))
