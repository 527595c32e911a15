"""What one run has made so far, in this life and in those before it.

A run that was paused or broken off goes on by the same steps as a new one: what an earlier life made
is handed out here instead of being made again, and what is new is kept, in the journal too, before
the run goes on.
"""

from __future__ import annotations

from dataclasses import replace

from agentdiff.agent.events import CallRecord
from agentdiff.agent.generating import Generation
from agentdiff.agent.journal import JournaledRun
from agentdiff.agent.state import RunState
from agentdiff.messages import ToolCall


class Memory:
    """The generations of a run and the records of its tool calls."""

    def __init__(self, past: RunState, journal: JournaledRun | None) -> None:
        """Nothing is handed out yet.

        Args:
            past: What earlier lives have made.
            journal: Where what is new is written down.
        """
        self.generations: list[Generation] = []
        """Those of this life so far: handed out, or made."""
        self.calls: dict[str, CallRecord] = {}
        """The same of tool calls, by their `place_of`."""
        self.past = past
        self._journal = journal

    @property
    def has_journal(self) -> bool:
        """Whether what is made is written down."""
        return self._journal is not None

    @property
    def resumed(self) -> int:
        """Generations that were handed out."""
        return min(len(self.past.generations), len(self.generations))

    def coming(self) -> Generation | None:
        """The generation that an earlier life made at this point; it stays there."""
        number = len(self.generations)
        return self.past.generations[number] if number < len(self.past.generations) else None

    def hand_out(self) -> Generation | None:
        """The generation that an earlier life made at this point."""
        generation = self.coming()
        if generation is not None:
            self.generations.append(generation)
        return generation

    async def keep(self, generation: Generation) -> None:
        """Keep a generation that was made."""
        if self._journal is not None:
            await self._journal.keep_generation(len(self.generations), generation)
        self.generations.append(generation)

    def hand_out_call(self, place: str) -> CallRecord | None:
        """The record that an earlier life has of a call."""
        record = self.past.calls.get(place)
        if record is not None:
            self.calls[place] = record
        return record

    async def keep_call(self, place: str, record: CallRecord) -> None:
        """Keep the record of a call that was made."""
        self.calls[place] = record
        if self._journal is not None:
            await self._journal.keep_call(place, record)

    def state(self, pending: tuple[ToolCall, ...]) -> RunState:
        """All of it, for another life; `pending` are the calls that wait for a person."""
        return replace(
            self.past,
            generations=tuple(self.generations),
            calls=dict(self.calls),
            pending=pending,
        )
