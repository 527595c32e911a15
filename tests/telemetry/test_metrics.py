"""Metrics: what many runs add up to, and nothing where nobody collects."""

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from agentdiff.backends.scripted import Scripted
from agentdiff.errors import Unavailable
from agentdiff.generation import Budget, Commit, Finish, Request, generate
from agentdiff.messages import Usage, user
from agentdiff.telemetry import execute_tool, invoke_agent, metrics

ASK = Request(messages=(user("a question"),), budget=Budget(target=4, ceiling=8))
Points = dict[str, list[tuple[dict[str, Any], Any]]]


def _value(point: Any) -> float:
    return point.value if isinstance(point, NumberDataPoint) else point.sum


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Points]:
    """Gives, by the name of the instrument, the attributes and the value of each point."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    made = metrics.instruments_of(provider.get_meter("test"))
    monkeypatch.setattr(metrics, "_instruments", lambda: made)

    def collect() -> Points:
        data = reader.get_metrics_data()
        points: Points = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    points[metric.name] = [
                        (dict(p.attributes or {}), _value(p)) for p in metric.data.data_points
                    ]
        return points

    return collect


async def test_a_generation_counts_its_tokens_its_time_and_how_it_filled_its_budget(collected):
    await generate(Scripted(["sixteen letters!"]), ASK)
    points = collected()
    tokens = {a["gen_ai.token.type"]: value for a, value in points["gen_ai.client.token.usage"]}
    assert tokens == {"input": 3, "output": 4}
    ((labels, fill),) = points["agentdiff.budget.fill"]
    assert fill == 1.0
    assert labels["agentdiff.step.kind"] == "answer"
    assert labels["agentdiff.backend"] == "scripted"
    ((_, seconds),) = points["gen_ai.client.operation.duration"]
    ((_, first),) = points["agentdiff.time_to_first_commit"]
    assert 0 < first <= seconds
    assert "agentdiff.truncations" not in points


async def test_a_cut_generation_is_counted(collected):
    finish = Finish(reason="length", usage=Usage(output_tokens=8))
    await generate(Scripted([[Commit("half"), finish]]), ASK)
    points = collected()
    assert [value for _, value in points["agentdiff.truncations"]] == [1]
    assert [value for _, value in points["agentdiff.budget.fill"]] == [2.0]


async def test_a_failure_is_counted_by_its_class(collected):
    with pytest.raises(Unavailable):
        await generate(Scripted([Unavailable("gone")]), ASK)
    ((labels, _),) = collected()["gen_ai.client.operation.duration"]
    assert labels["error.type"] == "Unavailable"


def test_runs_and_tool_calls_are_timed(collected):
    with invoke_agent(agent="a", model="m"):
        with execute_tool(tool="t", call_id="1") as span:
            span.fail(ValueError())
        with execute_tool(tool="t", call_id="2"):
            pass
    with pytest.raises(KeyError), invoke_agent(agent="a", model="m"):
        raise KeyError
    points = collected()
    errors = [labels.get("error.type") for labels, _ in points["agentdiff.tool.duration"]]
    assert sorted(errors, key=str) == [None, "ValueError"]
    assert len(points["agentdiff.run.duration"]) == 2


async def test_without_a_provider_nothing_happens():
    await generate(Scripted(["fine"]), ASK)
