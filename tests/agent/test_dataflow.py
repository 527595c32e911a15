import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentdiff.agent.dataflow import Returned, dataflow, execute
from agentdiff.agent.plan import Plan


def plan(*steps):
    return Plan.model_validate(
        {
            "steps": [
                {"id": id, "tool": "t", "arguments": {"uses": uses}, **rest}
                for id, uses, rest in steps
            ]
        }
    )


class Desk:
    """Calls that end when they are told to."""

    def __init__(self, failing=()):
        self.begun = []
        self.got = {}
        self.failing = failing
        self.gates = {}
        self.busy = self.most = 0

    def gate(self, id):
        return self.gates.setdefault(id, anyio.Event())

    async def __call__(self, step, arguments):
        self.begun.append(step.id)
        self.got[step.id] = arguments["uses"]
        self.busy += 1
        self.most = max(self.most, self.busy)
        await self.gate(step.id).wait()
        self.busy -= 1
        if step.id in self.failing:
            return Returned(error="broken")
        return Returned(result=f"r{step.id}")

    def open(self, *ids):
        for id in ids:
            self.gate(id).set()


async def settled():
    await anyio.wait_all_tasks_blocked()


async def test_a_step_begins_when_what_it_needs_is_there_and_not_by_levels():
    desk = Desk()
    steps = plan(("a", "", {}), ("b", "", {}), ("c", "$a", {}), ("d", ["$b", "$c"], {}))
    async with dataflow(desk) as flow:
        for step in steps.steps:
            flow.start(step)
        await settled()
        assert sorted(desk.begun) == ["a", "b"]
        desk.open("a")
        await settled()
        assert desk.begun[-1] == "c"  # although b, of the same level as a, still runs
        desk.open("b", "c", "d")
    run = flow.finished()
    assert run.results == {"a": "ra", "b": "rb", "c": "rc", "d": "rd"}
    assert desk.got["d"] == ["rb", "rc"]
    assert [o.step.id for o in run.outcomes] == ["a", "b", "c", "d"]


async def test_a_step_may_be_started_before_the_one_it_needs():
    desk = Desk()
    desk.open("a", "b")
    steps = plan(("b", "$a", {}), ("a", "", {}))
    async with dataflow(desk) as flow:
        flow.start(steps.steps[0])
        await settled()
        assert desk.begun == []
        flow.start(steps.steps[1])
    assert flow.finished().results == {"a": "ra", "b": "rb"}


async def test_what_needs_a_failed_step_is_skipped_and_the_rest_goes_on():
    desk = Desk(failing={"a"})
    desk.open("a", "b", "c", "d")
    run = await execute(plan(("a", "", {}), ("b", "$a", {}), ("c", "$b", {}), ("d", "", {})), desk)
    assert [o.status for o in run.outcomes] == ["failed", "skipped", "skipped", "done"]
    assert run.failed[0].error == "broken"
    assert run.outcomes[2].error == "`b` has no result"


async def test_a_step_that_must_not_fail_stops_everything():
    desk = Desk(failing={"a"})
    async with dataflow(desk) as flow:
        for step in plan(("a", "", {"on_error": "fail"}), ("b", "", {})).steps:
            flow.start(step)
        await settled()
        desk.open("a")
    assert [(o.step.id, o.status) for o in flow.finished().outcomes] == [("a", "failed")]


async def test_a_part_that_a_result_lacks_fails_the_step_before_its_call():
    desk = Desk()
    desk.open("a", "b")
    run = await execute(plan(("a", "", {}), ("b", "$a.name", {})), desk)
    assert desk.begun == ["a"]
    assert run.outcomes[1].error == "`$a` has no part 'name' (wanted by `$a.name`)"


async def test_what_a_call_raises_ends_the_plan_as_it_is():
    async def call(step, arguments):
        raise ZeroDivisionError(step.id)

    with pytest.raises(ZeroDivisionError, match="a"):
        await execute(plan(("a", "", {}), ("b", "$a", {})), call)


async def test_steps_that_are_done_do_not_run_again():
    desk = Desk()
    desk.open("b")
    run = await execute(plan(("b", "$a", {})), desk, done={"a": 5})
    assert desk.got == {"b": 5}
    assert run.results == {"b": "rb"}


async def test_only_so_many_calls_run_at_once():
    desk = Desk()
    async with dataflow(desk, max_concurrency=2) as flow:
        for step in plan(*((f"x{n}", "", {}) for n in range(5))).steps:
            flow.start(step)
        await settled()
        assert desk.busy == 2
        desk.open(*(f"x{n}" for n in range(5)))
    assert desk.most == 2


async def test_the_gain_is_the_sum_over_the_time_it_took():
    async def call(step, arguments):
        await anyio.sleep(0.02)
        return Returned(result=1)

    run = await execute(plan(("a", "", {}), ("b", "", {}), ("c", ["$a", "$b"], {})), call)
    assert run.critical_path_ms < run.sum_ms
    assert run.critical_path_ms <= run.wall_ms * 1.01
    assert run.parallel_gain == pytest.approx(run.sum_ms / run.wall_ms)


@st.composite
def dags(draw):
    steps = []
    for number in range(draw(st.integers(1, 7))):
        needs = draw(st.lists(st.sampled_from(range(number)), unique=True)) if number else []
        steps.append((f"x{number}", [f"$x{n}" for n in needs], {}))
    return draw(st.permutations(steps)), draw(st.sets(st.integers(0, 6)))


@settings(max_examples=60, deadline=None)
@given(dags())
def test_every_step_runs_once_after_what_it_needs_or_is_skipped(drawn):
    steps, failing = drawn
    over = []

    async def call(step, arguments):
        await anyio.lowlevel.checkpoint()
        over.append(step.id)
        failed = int(step.id[1:]) in failing
        return Returned(error="no" if failed else None, result=step.id)

    run = anyio.run(execute, plan(*steps), call)
    assert len(over) == len(set(over))
    for outcome in run.outcomes:
        statuses = {o.step.id: o.status for o in run.outcomes}
        if outcome.status == "skipped":
            assert any(statuses[need] != "done" for need in outcome.step.needs)
            assert outcome.step.id not in over
        else:
            assert all(over.index(n) < over.index(outcome.step.id) for n in outcome.step.needs)
    assert len(run.outcomes) == len(steps)
