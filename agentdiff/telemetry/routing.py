"""The span around a routed generation: who was chosen, why, and who was not.

It is no `chat` span: the generations inside it are, one for each backend that was tried, so that no
token is counted twice. Like those it is the current span only while code runs, never while a stream
rests between two events.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind

from agentdiff.generation import StepKind
from agentdiff.telemetry import names
from agentdiff.telemetry.spans import cancel, current, current_tracer, error_type, fail


class RouteSpan:
    """The span of a routed generation."""

    __slots__ = ("_span", "is_done")

    def __init__(self, span: Span) -> None:
        self._span = span
        self.is_done = False
        """Whether the outcome is known; leaving after that is no giving up."""

    def current(self) -> AbstractContextManager[None]:
        """Make it the parent of the spans that are started in the block."""
        return current(self._span)

    def chose(self, backend: str, *, attempt: int, reason: str, rejected: Sequence[str]) -> None:
        """Note a decision: who, the reason, and `name: objection` of each who was not."""
        if self._span.is_recording():
            values = {
                names.BACKEND: backend,
                names.ROUTE_ATTEMPT: attempt,
                names.ROUTE_REASON: reason,
                names.ROUTE_REJECTED: list(rejected) or None,
            }
            self._span.add_event("agentdiff.route", names.spelled(values))

    def gave_up(self, backend: str, *, attempt: int, why: str | BaseException) -> None:
        """Note that an attempt did not bring the answer: an error's class, or `in doubt`."""
        if self._span.is_recording():
            values = {
                names.BACKEND: backend,
                names.ROUTE_ATTEMPT: attempt,
                names.ERROR_TYPE: error_type(why),
            }
            self._span.add_event("agentdiff.route.failed", names.spelled(values))

    def hedged(self, backend: str, *, winner: str) -> None:
        """Note that a second backend was asked as well, and which answer came first."""
        values = {names.HEDGE: backend, names.HEDGE_WINNER: winner}
        self._span.set_attributes(names.spelled(values))

    def finish(self, backend: str, *, attempts: int) -> None:
        """Record who answered."""
        self.is_done = True
        values = {names.BACKEND: backend, names.ATTEMPTS: attempts}
        self._span.set_attributes(names.spelled(values))


@contextmanager
def routing(router: str, kind: StepKind, candidates: Sequence[str]) -> Generator[RouteSpan]:
    """A span `route {kind}`, which ends with the block and is not made the current one.

    Raises:
        ConfigurationError: `AGENTDIFF_SEMCONV` is not one of its modes.
    """
    values = {
        names.ROUTER: router,
        names.STEP_KIND: kind,
        names.ROUTE_CANDIDATES: list(candidates),
    }
    span = current_tracer().start_span(
        f"route {kind}", kind=SpanKind.INTERNAL, attributes=names.spelled(values)
    )
    made = RouteSpan(span)
    try:
        yield made
    except Exception as error:
        fail(span, error)
        raise
    except BaseException:
        if not made.is_done:
            cancel(span, by_error=False)
        raise
    finally:
        span.end()


def repairing(backend: str, *, attempt: int, faults: int) -> None:
    """Note on the current span that an invalid output is shown its faults and asked for again."""
    span = trace.get_current_span()
    if span.is_recording():
        values = {
            names.BACKEND: backend,
            names.ROUTE_ATTEMPT: attempt,
            names.FAULTS: faults,
        }
        span.add_event("agentdiff.repair", names.spelled(values))
