"""What a router is made of: rules, policies, the circuit breaker, and what is known of times."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentdiff.backends.breaker import Breaker, BreakerSettings
from agentdiff.backends.latency import ENOUGH, KEPT, Latencies, Taken
from agentdiff.backends.models import Price
from agentdiff.backends.policies import (
    Attempt,
    ByKind,
    ByLength,
    Capable,
    CostCeiling,
    Escalate,
    Fastest,
    InTime,
    RouteContext,
    Weighted,
)
from agentdiff.backends.router import Router
from agentdiff.backends.scripted import FunctionBackend
from agentdiff.errors import ConfigurationError, RateLimited, Rejected, Unavailable
from agentdiff.generation import Backend, Budget, Capabilities, Request, Sampling
from agentdiff.messages import ToolSpec, user

DOWN = Unavailable("down", backend="a")
ASK = Request(messages=(user("hello"),))


def named(name: str, **capabilities: Any) -> FunctionBackend:
    return FunctionBackend(
        lambda request: name, name=name, capabilities=Capabilities(**capabilities)
    )


A, B = named("a"), named("b")


def context(*backends: Backend, **fields: Any) -> RouteContext:
    asked: dict[str, Any] = {"request": ASK, "candidates": backends or (A, B)}
    return RouteContext(**(asked | fields))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


# --- rules ---


@pytest.mark.parametrize(
    ("claimed", "request_", "reason"),
    [
        ({"tools": False}, replace(ASK, tools=(ToolSpec(name="t"),)), "calls no tools"),
        (
            {"max_tools": 1},
            replace(ASK, tools=(ToolSpec(name="t"), ToolSpec(name="u"))),
            "takes 1 tools, not 2",
        ),
        ({"context_tokens": 8}, Request(messages=(user("word " * 20),)), "holds 8 tokens"),
        ({"enforcement": "validated"}, replace(ASK, schema={}), "enforces validated, not native"),
        ({"enforcement": "in_block"}, replace(ASK, schema={}), None),
        ({}, ASK, None),
    ],
)
def test_capability_is_looked_at(claimed: Any, request_: Request, reason: str | None) -> None:
    backend = named("a", **claimed)
    found = Capable(enforcement="native").objection(context(backend, request=request_), backend)
    assert (found is None) == (reason is None)
    assert found is None or found.reason.startswith(reason or "")


def test_a_backend_that_is_too_slow_is_a_bad_sign_only() -> None:
    latencies = Latencies()
    for _ in range(ENOUGH):
        latencies.observe("a", "answer", Taken(total_s=2.0))
    late = context(left_s=1.0, latencies=latencies)
    found = InTime().objection(late, A)
    assert found is not None
    assert not found.is_final
    assert found.reason == "takes 2.00 s, and 1.00 s are left"
    assert InTime().objection(late, B) is None
    assert InTime().objection(replace(late, left_s=None), A) is None
    assert Router([A, B], rules=[InTime()]).select(late) is B
    assert Router([A], rules=[InTime()]).select(replace(late, candidates=(A,))) is A


def test_a_call_has_a_ceiling_of_cost() -> None:
    dear = CostCeiling(usd=0.001, prices={"a": Price(input=1.0, output=10.0)})
    short = context(request=replace(ASK, budget=Budget(target=8, ceiling=50)))
    long = context(request=replace(ASK, budget=Budget(target=8, ceiling=500)))
    assert dear.objection(short, A) is None
    found = dear.objection(long, A)
    assert found is not None
    assert found.reason == "may cost $0.005001, more than $0.001"
    assert dear.objection(long, B) is None
    mercury = named("mercury:mercury-2")
    assert CostCeiling(usd=1e-9).objection(context(mercury), mercury) is not None


# --- policies ---


def test_kinds_of_step_have_their_backends() -> None:
    policy = ByKind({"route": "b", "answer": A})
    assert policy.select(context(request=replace(ASK, kind="route"))) is B
    assert policy.select(context()) is A
    assert policy.select(context(request=replace(ASK, kind="plan"))) is None
    assert policy.select(context(B)) is None


def test_long_outputs_go_elsewhere() -> None:
    policy = ByLength(short="a", long="b", over=100)
    assert policy.select(context()) is None
    assert policy.select(context(request=replace(ASK, budget=Budget(target=100, ceiling=900)))) is A
    assert policy.select(context(request=replace(ASK, budget=Budget(target=101, ceiling=900)))) is B
    assert policy.select(context(request=replace(ASK, budget=Budget.off()))) is None


def test_hard_calls_go_to_the_stronger_one() -> None:
    policy = Escalate(to="b")
    assert policy.select(context()) is None
    assert policy.select(context(request=replace(ASK, sampling=Sampling(effort="quality")))) is B
    doubted = Attempt(backend=A, why="in doubt", seconds=0.1)
    assert policy.select(context(B, attempts=(doubted,))) is B
    assert policy.select(context(attempts=(replace(doubted, why=DOWN),))) is None


def test_a_canary_gets_its_share_and_the_same_seed_the_same_calls() -> None:
    def drawn(seed: int) -> list[str]:
        policy = Weighted({"a": 9, "b": 1}, seed=seed)
        return [b.name for _ in range(500) if (b := policy.select(context())) is not None]

    assert drawn(1) == drawn(1) != drawn(2)
    assert 25 <= Counter(drawn(1))["b"] <= 75
    only_routes = Weighted({"b": 1}, kinds=["route"])
    assert only_routes.select(context()) is None
    assert only_routes.select(context(A, request=replace(ASK, kind="route"))) is None
    for weights in ({}, {"a": 0}, {"a": -1, "b": 2}):
        with pytest.raises(ConfigurationError):
            Weighted(weights)


def test_the_fastest_is_learned_and_the_unknown_comes_first() -> None:
    latencies = Latencies()
    for _ in range(ENOUGH):
        latencies.observe("a", "answer", Taken(total_s=0.2, first_s=0.1))
    assert Fastest().select(context(latencies=latencies)) is B
    for _ in range(ENOUGH):
        latencies.observe("b", "answer", Taken(total_s=0.1, first_s=0.1 + 0.05))
    assert Fastest().select(context(latencies=latencies)) is B
    assert Fastest(to_first_text=True).select(context(latencies=latencies)) is A


def test_policies_are_asked_in_order_and_the_first_opinion_counts() -> None:
    router = Router([A, B], policy=[ByKind({"plan": "a"}), ByKind({"answer": "b"})])
    assert router.select(context()) is B
    assert router.select(context(request=replace(ASK, kind="route"))) is A
    assert router.select(context(request=ASK, candidates=())) is None


def test_two_backends_of_one_name_are_told_apart() -> None:
    twin = named("a")
    router = Router([A, twin], policy=ByKind({"answer": "a (2)"}))
    assert router.capabilities.model == "a, a (2)"


# --- times ---


@given(st.lists(st.floats(0.001, 10), min_size=ENOUGH, max_size=2 * KEPT))
def test_a_quantile_is_one_of_the_newest_times(times: list[float]) -> None:
    latencies = Latencies()
    for seconds in times:
        latencies.observe("a", "answer", Taken(total_s=seconds))
    newest = sorted(times[-KEPT:])
    median = latencies.total_s("a", "answer")
    assert median in newest
    assert latencies.total_s("a", "answer", share=1.0) == newest[-1]
    assert latencies.count("a", "answer") == len(newest)
    assert sum(t <= (median or 0) for t in newest) * 2 >= len(newest)


def test_too_few_calls_say_nothing_and_other_kinds_speak_for_a_new_one() -> None:
    latencies = Latencies()
    latencies.observe("a", "answer", Taken(total_s=1.0))
    assert latencies.total_s("a", "answer") is None
    for _ in range(ENOUGH):
        latencies.observe("a", "answer", Taken(total_s=1.0, first_s=0.5))
    assert latencies.total_s("a", "route") == 1.0
    assert latencies.total_s("b", "route") is None
    assert latencies.table() == {("a", "answer"): (ENOUGH + 1, 0.5, 1.0)}


# --- the circuit ---


def test_the_circuit_opens_probes_and_closes() -> None:
    clock = Clock()
    breaker = Breaker(BreakerSettings(failures=2, rest_s=10), clock=clock)
    breaker.failed(DOWN)
    assert (breaker.state, breaker.objection()) == ("closed", None)
    breaker.failed(DOWN)
    assert breaker.state == "open"
    assert breaker.objection() == "it failed 2 times in a row; tried again in 10.0 s"
    clock.now = 10.0
    assert (breaker.state, breaker.objection()) == ("half_open", None)
    breaker.begin()
    assert breaker.objection() == "another call is finding out whether it is back"
    breaker.failed(DOWN)
    assert (breaker.state, breaker.wait_s) == ("open", 20.0)
    clock.now = 30.0
    breaker.begin()
    breaker.succeeded()
    assert (breaker.state, breaker.objection()) == ("closed", None)
    breaker.failed(DOWN)
    assert breaker.state == "closed"


def test_a_probe_that_is_given_up_leaves_the_place_to_the_next() -> None:
    clock = Clock()
    breaker = Breaker(BreakerSettings(failures=1, rest_s=10), clock=clock)
    breaker.failed(DOWN)
    clock.now = 11.0
    breaker.begin()
    breaker.left()
    assert breaker.objection() is None


def test_a_refusal_says_that_the_backend_is_there() -> None:
    breaker = Breaker(BreakerSettings(failures=2, rest_s=10), clock=Clock())
    for _ in range(3):
        breaker.failed(DOWN)
        breaker.failed(Rejected("no"))
    assert breaker.state == "closed"


def test_a_backend_that_is_busy_says_itself_when_to_come_again() -> None:
    clock = Clock()
    breaker = Breaker(BreakerSettings(), clock=clock)
    breaker.failed(RateLimited("busy", retry_after_s=7))
    assert (breaker.state, breaker.objection()) == ("closed", "it asked to wait 7.0 s")
    clock.now = 7.0
    assert breaker.objection() is None
    breaker.failed(RateLimited("busy", retry_after_s=float("inf")))
    assert breaker.wait_s == BreakerSettings().longest_rest_s


@pytest.mark.parametrize("settings", [{"failures": 0}, {"rest_s": 0}, {"rest_s": 999}])
def test_a_breaker_has_sensible_settings(settings: Any) -> None:
    with pytest.raises(ConfigurationError):
        BreakerSettings(**settings)


@given(st.lists(st.sampled_from(["fail", "succeed", "leave", "wait"]), max_size=60))
def test_a_circuit_is_never_closed_for_good(steps: list[str]) -> None:
    clock = Clock()
    settings = BreakerSettings(failures=2, rest_s=1, longest_rest_s=4)
    breaker = Breaker(settings, clock=clock)
    for step in steps:
        if step == "wait":
            clock.now += 1
        elif breaker.objection() is None:
            breaker.begin()
            match step:
                case "fail":
                    breaker.failed(DOWN)
                case "succeed":
                    breaker.succeeded()
                case _:
                    breaker.left()
        assert breaker.wait_s <= settings.longest_rest_s
    clock.now += settings.longest_rest_s
    assert breaker.objection() is None
