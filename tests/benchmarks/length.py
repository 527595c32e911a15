"""Length budgets: the goals on recorded steps, and the saving in a real decode.

    python -m tests.benchmarks.length replay STEPS.jsonl.gz
    python -m tests.benchmarks.length live [CASES]
    python -m tests.benchmarks.length router

`replay` prints what the predictor and simpler rules would have allocated for recorded steps, and
what a step costs the processor. `live` lets the embedded model do tasks of its evaluation sets on
canvases that are decoded to their end, as models without early stop do: fixed ones, the p95 of what
was seen, and the predictor's; what is cut is done again on twice the canvas. The last two rows stop
where the reply is whole, as the embedded model does when nobody asks it not to.
"""

import gzip
import json
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from agentdiff.generation import Budget
from agentdiff.length import (
    CanvasCost,
    LengthPredictor,
    StepContext,
    open_store,
    predictor,
    schema_bounds,
)
from agentdiff.length.cost import LARGEST
from agentdiff.length.make_prior import make_prior
from agentdiff.length.replay import Policy, figures, measure, play

QUANTUM = 32
CANVASES = (64, 128, 256)


class Fixed:
    """The same budget for every step."""

    def __init__(self, budget):
        self._budget = budget

    def predict(self, context, cost):
        size = -(-self._budget // cost.quantum) * cost.quantum
        return Budget(target=size, ceiling=size)

    def observe(self, context, budget, used, truncated):
        pass


class ToolP95:
    """The p95 of the newest 500 lengths of this agent's tool, once there are five."""

    def __init__(self, first=512):
        self._first = first
        self._seen = {}

    def predict(self, context, cost):
        seen = sorted(self._seen.get((context.agent, context.kind, context.tool), [])[-500:])
        size = seen[min(len(seen) - 1, int(0.95 * len(seen)))] if len(seen) >= 5 else self._first
        size = -(-size // cost.quantum) * cost.quantum
        return Budget(target=size, ceiling=size)

    def observe(self, context, budget, used, truncated):
        name = (context.agent, context.kind, context.tool)
        self._seen.setdefault(name, []).append(used)


class Naive(LengthPredictor):
    """Takes a cut output for one that ended there."""

    def observe(self, context, budget, used, truncated):
        super().observe(context, budget, used - truncated, truncated=False)


def router():
    """Lengths of what the embedded model is trained to write, as rows for its prior."""
    from random import Random

    from tokenizers import Tokenizer

    from agentdiff import embedded
    from agentdiff.embedded.training.examples import sample

    weights = Path(embedded.__file__).parent / "weights"
    tokenizer = Tokenizer.from_file(str(weights / "tokenizer.json"))
    rng = Random(7)
    for number in range(4000):
        example = sample(rng)
        schemas = [tool.spec["function"]["parameters"] for tool in example.tools]
        row = {
            "src": "router",
            "ep": str(number),
            "t": 0,
            "agent": "router",
            "kind": "route",
            "model": f"agentdiff-router:{tokenizer.get_vocab_size()}",
            "prompt": 0,
            "last": len(tokenizer.encode(example.request).ids),
            "out": len(tokenizer.encode(example.target, add_special_tokens=False).ids),
            "min": min(schema_bounds(schema).min_tokens for schema in schemas),
        }
        print(json.dumps(row))


def replayed(path):
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    naive = partial(Naive, target_miss=0.03, ceiling=LARGEST)
    runs: dict[str, dict[str, Any]] = {
        "fixed 256": {"new_policy": lambda: Fixed(256)},
        "fixed 512": {"new_policy": lambda: Fixed(512)},
        "per-tool p95": {"new_policy": ToolP95},
        "predictor, 97 %": {},
        "predictor, 98 %": {"target": 0.98},
        "predictor, 95 %": {"target": 0.95},
        "order 8": {"seed": 8},
        "order 9": {"seed": 9},
        "told of cuts only": {"reports": "cut"},
        "told of nothing": {"reports": "squeezed"},
        "cuts taken as ends": {"reports": "cut", "new_policy": naive},
    }
    print(f"{'':19} {'coverage':>9} {'overshoot':>9} {'lin':>6} {'calls':>6} {'wasted':>7}", end="")
    print("   worst source      first sight   first 60")
    for name, how in runs.items():
        report = measure(play(rows, quantum=QUANTUM, **how))
        total, by_source = report["total"], report["by_source"]
        worst = min(by_source, key=lambda source: by_source[source]["coverage"])
        print(
            f"{name:19} {total['coverage']:9.1%} {total['overshoot']:9.2f} {total['lin']:6.2f}"
            f" {total['calls']:6.3f} {total['wasted']:7.0f}   {by_source[worst]['coverage']:.1%}"
            f" {worst:12} {report['first_sight'].get('coverage', 0):.1%}"
            f" {report['first_sight'].get('overshoot', 0):4.2f}x"
            f"  {report['beginning'].get('coverage', 0):.1%}",
            flush=True,
        )
    held_out(rows)
    switched(rows)
    timed(rows)


def held_out(rows):
    """Each family of sources with a prior made of the others, and with inputs that never recur."""
    families = sorted({row["src"].split("_")[0] for row in rows})
    for name in ("prior of other sources", "no input comes again"):
        played = []
        for seed in (7, 8, 9):
            for family in families:
                own = [row for row in rows if row["src"].split("_")[0] == family]
                others = [row for row in rows if row["src"].split("_")[0] != family]
                if name == "no input comes again":
                    own = [{**row, "prompt": row["prompt"] + n} for n, row in enumerate(own)]
                with changed_prior(make_prior(others)):
                    played += play(own, quantum=QUANTUM, seed=seed)
        total = figures([step for step in played if not step.is_derived])
        print(
            f"{name}, three orders: {total['coverage']:.1%} fit,"
            f" overshoot {total['overshoot']:.2f}, lin {total['lin']:.2f}",
            flush=True,
        )


@contextmanager
def changed_prior(prior):
    """Predictors made here begin with `prior`."""
    shipped = predictor.shipped_prior
    setattr(predictor, "shipped_prior", lambda: prior)  # noqa: B010
    try:
        yield
    finally:
        setattr(predictor, "shipped_prior", shipped)  # noqa: B010


def switched(rows):
    """Under the same name another model that writes 2.3 times as much, in each large source."""
    changed = []
    for source in {row["src"] for row in rows}:
        own = [row for row in rows if row["src"] == source and not row.get("derived")]
        if len(own) < 800:
            continue
        changed += [{**row, "ep": f"{number:06}", "t": 0} for number, row in enumerate(own)]
        changed += [
            {**row, "ep": "later", "t": number, "out": int(2.3 * row["out"]), "max": None}
            for number, row in enumerate(own)
        ]
    after = [step for step in play(changed) if step.context.episode == "later"]
    starts = {}
    for step in after:
        starts[step.source] = min(starts.get(step.source, step.number), step.number)
    soon = [step for step in after if step.number < starts[step.source] + 300]
    print(
        f"after a switch to 2.3 times the length: {figures(after)['coverage']:.1%} of"
        f" {len(after):,} steps fit, {figures(soon)['coverage']:.1%} of the first 300"
    )


def timed(rows):
    played = play(rows[:3000], new_policy=lambda: Fixed(256))
    for name in ("in memory", "with a store"):
        with tempfile.TemporaryDirectory() as folder:
            store = open_store(Path(folder) / "lengths.db") if name == "with a store" else None
            asked = LengthPredictor(store)
            before = time.process_time()
            for step in played:
                budget = asked.predict(step.context, CanvasCost(QUANTUM))
                asked.observe(step.context, budget, used=step.length, truncated=False)
            spent = (time.process_time() - before) / len(played)
            print(f"predict and observe, {name}: {1e3 * spent:.2f} ms of CPU", flush=True)
            if store is not None:
                store.close()


@dataclass
class Tally:
    """What a policy cost."""

    steps: int = 0
    exact: int = 0
    cut: int = 0
    positions: int = 0
    forwards: int = 0
    cpu_s: float = 0.0
    asked: list = field(default_factory=list)


def live(count):
    import anyio

    from agentdiff.backends import connect, local
    from agentdiff.embedded.bench import EVALUATION, SETS, load_cases, machine, use_threads
    from agentdiff.embedded.tools import shipped_tools
    from agentdiff.engine import engine, outcome
    from agentdiff.engine.sequence import Sequence

    use_threads(1)
    early = local.DecodeParams, engine.forced_end
    prefilled = []
    whole = Sequence.output

    def output(sequence, tokens, *, is_complete):
        prefilled.append(len(sequence.prompt) - sequence.reused_tokens)
        return whole(sequence, tokens, is_complete=is_complete)

    setattr(Sequence, "output", output)  # noqa: B010
    backend = connect("embedded")
    assert isinstance(backend, local.LocalBackend)
    prompting = backend._prompting
    prompting.format = replace(prompting.format, max_reply=None)
    quantum = backend.capabilities.quantum
    with tempfile.TemporaryDirectory() as root:
        tools = {tool.name: tool for tool in shipped_tools(Path(root))}
        specs = {name: tool.spec for name, tool in tools.items()}

        def run(name, arguments):
            try:
                return str(anyio.run(tools[name].call, arguments))
            except Exception as error:
                return f"error: {error}"

        sets = [load_cases(EVALUATION / file, specs, run) for file, _ in SETS.values()]
    share = max(1, count // len(sets))
    cases = [case for number in range(share) for cases in sets for case in cases[number::share][:1]]
    # The largest first: the others are compared with it.
    policies: dict[str, Policy] = {f"fixed {size}": Fixed(size) for size in reversed(CANVASES)}
    policies["p95 of the seen"] = ToolP95(first=256)
    policies["predictor"] = LengthPredictor()
    policies["256, stopped"] = Fixed(256)
    policies["stopped"] = LengthPredictor()
    print(f"{len(cases)} tasks, one thread of {machine()}")
    print(
        f"{'':16} {'exact':>6} {'cut':>4} {'canvas':>7} {'of replies':>16} {'of all':>16} {'CPU':>15}"
    )
    fixed = None
    for name, policy in policies.items():
        prefilled.clear()
        # A canvas is decoded to its end, as by a model that cannot stop early: no reply is shorter
        # because its grammar is complete. The last two end there, as the embedded model does.
        stops = name.endswith("stopped")
        params = early[0] if stops else partial(early[0], eos_stop="ceiling")
        setattr(local, "DecodeParams", params)  # noqa: B010
        engine.forced_end = outcome.forced_end = early[1] if stops else lambda matcher, room: None
        tally = anyio.run(decode, backend, cases, policy, quantum)
        costs = (tally.positions - sum(prefilled), tally.positions, tally.cpu_s)
        fixed = costs if name == "fixed 256" else fixed
        against = [f" {cost / most:.2f}x" for cost, most in zip(costs, fixed or costs, strict=True)]
        print(
            f"{name:16} {tally.exact / tally.steps:6.1%} {tally.cut:4}"
            f" {sum(tally.asked) / tally.steps:7.0f} {costs[0]:10,}{against[0]}"
            f" {costs[1]:10,}{against[1]} {costs[2]:7.1f} s{against[2]}",
            flush=True,
        )


async def decode(backend, cases, policy, quantum):
    from agentdiff.embedded.bench import is_exact
    from agentdiff.errors import BudgetTooSmall
    from agentdiff.generation import generate

    tally = Tally()
    for case in cases:
        request = case.request
        shortest = min(schema_bounds(tool.parameters).min_tokens for tool in request.tools)
        context = StepContext(
            "bench",
            "route",
            model=backend.capabilities.tokenizer,
            schema_min=shortest,
            prompt_tokens=sum(len(message.content) for message in request.messages) // 4,
            last_tokens=len(request.messages[-1].content) // 4,
        )
        first = policy.predict(context, CanvasCost(quantum))
        size, before, result = first.target, time.process_time(), None
        while result is None and size <= 1024:
            budget = Budget(target=size, ceiling=size)
            try:
                result = await generate(backend, replace(request, budget=budget))
            except BudgetTooSmall:
                tally.cut += 1
                size *= 2
                continue
            tally.positions += result.stats.positions or 0
            tally.forwards += result.stats.forwards or 0
            if result.reason == "length":
                tally.cut += 1
                size *= 2
                result = None
        tally.cpu_s += time.process_time() - before
        tally.steps += 1
        tally.asked.append(first.target)
        if result is None:
            continue
        tally.exact += is_exact(case, result)
        policy.observe(context, first, (result.usage.output_tokens or 0) + 1, False)
    return tally


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["replay", path]:
            replayed(path)
        case ["router"]:
            router()
        case ["live", *rest]:
            live(int(rest[0]) if rest else 240)
        case _:
            sys.exit(__doc__)
