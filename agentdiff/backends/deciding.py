"""A decision by a server's own way: its endpoint for typed decisions, or the first token's probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentdiff.backends import decisions

if TYPE_CHECKING:
    from agentdiff.backends.profiles import EngineProfile
    from agentdiff.backends.service import Service
    from agentdiff.generation import Decision, Question


async def own_decision(
    question: Question,
    *,
    service: Service,
    profile: EngineProfile,
    backend: str,
    model: str,
    deadline: float,
) -> Decision | None:
    """The server's decision; None where it has no way of its own.

    Args:
        question: With its options.
        service: The server.
        profile: Of the server.
        backend: The name that errors bear.
        model: The model that writes; another may decide.
        deadline: By anyio's clock.

    Raises:
        BackendError: The server could not be reached, failed or refused, or answered something else.
    """
    hidden = tuple(message.content for message in question.messages)
    if profile.decisions:
        is_list = profile.decision_wire == "questions"
        make = decisions.questions_body if is_list else decisions.state_body
        read = decisions.questions_answer if is_list else decisions.state_answer
        body = await service.fetch(
            "POST",
            profile.decisions,
            make(question, model=profile.decision_model or model),
            prompt=hidden,
            deadline=deadline,
        )
        return read(body, question, backend=backend)
    if profile.logprobs and len(question.options) <= decisions.TOP_LOGPROBS:
        asked = decisions.labels_body(question, model=model, length_field=profile.length_field)
        body = await service.fetch(
            "POST", "/chat/completions", asked, prompt=hidden, deadline=deadline
        )
        return decisions.labels_answer(body, question)
    return None
