"""A run may be cancelled at any moment: nothing goes on unseen, and nothing that was done is lost."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from agentdiff.agent import Agent, Journal, RunFinished, tool
from tests.agent.doubles import Double, calls, says

TURN = (("work", {"n": 1}), ("work", {"n": 2}), ("alone", {"n": 3}))
OUTPUT = "done"


class Shop:
    """Tools that know which of their calls run now, and which have ended well."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.done: list[int] = []
        self.moments: dict[tuple[int, str], Callable[[], None]] = {}
        """What to do once, when a call is begun or done."""

        @tool
        async def work(n: int) -> int:
            return await self._do(n)

        @tool(sequential=True)
        async def alone(n: int) -> int:
            return await self._do(n)

        self.tools = [work, alone]

    async def _do(self, n: int) -> int:
        assert n not in self.running
        self.running.add(n)
        try:
            self.moments.pop((n, "begun"), lambda: None)()
            for _ in range(n):
                await anyio.lowlevel.checkpoint()
            self.done.append(n)
            self.moments.pop((n, "done"), lambda: None)()
            return n
        finally:
            self.running.remove(n)


def double() -> Double:
    return Double(calls(*TURN), calls(("work", {"n": 4})), says(OUTPUT))


async def cancelled_after(ticks: int, agent: Agent[str]) -> bool:
    """Run and cancel after so many turns of the event loop; whether it ended before that."""
    ended = False

    async def run() -> None:
        nonlocal ended
        async with agent.run_events("Go") as events:
            async for event in events:
                ended = ended or isinstance(event, RunFinished)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        for _ in range(ticks):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    return ended


async def test_a_run_that_is_cancelled_at_any_moment_leaves_nothing_open() -> None:
    ticks, moments = 0, set[tuple[int, ...]]()
    while True:
        shop, backend = Shop(), double()
        ended = await cancelled_after(ticks, Agent(backend, tools=shop.tools))
        assert (backend.open, shop.running) == (0, set())
        moments.add(tuple(sorted(shop.done)))
        if ended:
            break
        ticks += 1
        assert ticks < 1000
    assert shop.done == [1, 2, 3, 4]
    assert len(moments) >= 4  # it was cancelled between the calls too


@pytest.mark.parametrize("at", ["begun", "done"])
@pytest.mark.parametrize("call", [1, 2, 3, 4])
async def test_what_was_done_before_a_cancel_is_not_done_again(
    call: int, at: str, tmp_path: Path
) -> None:
    journal, shop = Journal(tmp_path / "runs.sqlite"), Shop()
    with anyio.CancelScope() as scope:
        shop.moments[call, at] = scope.cancel
        await Agent(double(), tools=shop.tools).run("Go", journal=journal.run("r"))
    assert scope.cancelled_caught
    assert shop.running == set()
    assert (call in shop.done) == (at == "done")
    backend = double()
    backend.replies = backend.replies[len(journal.run("r").state().generations) :]
    result = await Agent(backend, tools=shop.tools).run("Go", journal=journal.run("r"))
    assert result.output == OUTPUT
    assert sorted(shop.done) == [1, 2, 3, 4]
    assert [each.result for step in result.steps for each in step.calls] == [1, 2, 3, 4]
    journal.close()
