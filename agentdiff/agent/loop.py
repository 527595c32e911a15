"""The loop of a run: route → act → route → … → answer.

One generation at a time, the calls of a turn at once. An output that is not what was asked for is
shown its faults and repaired; then the run ends with `OutputInvalid`. An output that does not fit
its budget ends it with `BudgetExceeded`, a model that finds no tool with `OutOfScope`. Nothing ends
in an empty answer, and nothing loops without a limit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from agentdiff.agent.generating import Ask, Generation
from agentdiff.agent.output import OutputT
from agentdiff.agent.routing import (
    NONE,
    arguments_ask,
    call_of,
    choice_ask,
    chosen,
    wants_two,
)
from agentdiff.agent.run import Run
from agentdiff.errors import ModelRetry, OutOfScope, OutputInvalid
from agentdiff.generation import StepKind
from agentdiff.messages import assistant, user


async def loop(run: Run[OutputT], *, has_acted: bool = False) -> OutputT:
    """Call tools until the model answers; gives the answer.

    Args:
        run: The run; its conversation ends with what is to be answered.
        has_acted: Whether a plan has called the tools already, so that only an answer is wanted.

    Raises:
        RunError: It ended without an answer.
        BackendError: The backend failed.
    """
    output = run.config.output
    repairs_left = run.config.max_output_repairs
    # Once the model stops calling tools, a typed output is asked for with its schema.
    must_answer = has_acted or not run.config.tools
    kind: StepKind = "answer" if must_answer else "route"
    while True:
        generation = await _generate(run, kind, must_answer=must_answer)
        if generation.was_cut:
            await run.finish(generation)
            run.too_long(generation)
        if generation.result.reason == "refused":
            await run.finish(generation)
            _refused(run)
        if generation.result.tool_calls:
            await run.act(generation)
            kind = "answer" if must_answer else "route"
            continue
        text = generation.result.text
        try:
            value = await _validated(run, output.parse(text))
        except (OutputInvalid, ModelRetry) as fault:
            invalid = fault if isinstance(fault, OutputInvalid) else OutputInvalid(str(fault))
            await run.finish(generation)
            if isinstance(fault, OutputInvalid) and not must_answer and output.schema:
                must_answer, kind = True, "answer"
                continue
            if repairs_left == 0:
                raise invalid from fault
            repairs_left -= 1
            kind = "repair"
            _show_faults(run, text, invalid)
            continue
        run.messages.append(assistant(text))
        await run.finish(generation, is_output=True)
        return value


async def _generate(run: Run[OutputT], kind: StepKind, *, must_answer: bool) -> Generation:
    ask = Ask(
        number=run.number,
        kind=kind,
        messages=tuple(run.messages),
        tools=() if must_answer else run.config.specs,
        schema=run.config.output.schema if must_answer else None,
    )
    if kind == "route" and _makes_two(run, ask):
        return await _choose(run, ask)
    return await run.generate(ask)


def _makes_two(run: Run[OutputT], ask: Ask) -> bool:
    coming = run.memory.coming()
    return wants_two(run.config, ask) if coming is None else coming.is_choice


async def _choose(run: Run[OutputT], ask: Ask) -> Generation:
    """A name first, then its arguments; where no tool is wanted, or none is named, both at once."""
    choice = await run.generate(choice_ask(ask))
    name = None if choice.was_cut else chosen(choice.result.text, ask.tools)
    await run.finish(choice)
    ask = replace(ask, number=run.number)
    if name is None or name == NONE:
        return await run.generate(ask)
    spec = next(spec for spec in ask.tools if spec.name == name)
    made = await run.generate(arguments_ask(ask, spec))
    if made.was_cut:
        return made
    call = call_of(name, made.result.text)
    return replace(
        made, result=replace(made.result, text="", tool_calls=(call,), reason="tool_calls")
    )


async def _validated(run: Run[OutputT], value: OutputT) -> OutputT:
    for validator in run.config.validators:
        value = await validator(run.context(), value)
    return value


def _refused(run: Run[OutputT]) -> NoReturn:
    what = "found no tool for" if run.config.tools else "declined"
    raise OutOfScope(
        f"the model {what} this request; a larger diffusion model (`--backend local:…`) could answer "
        "in words, and an API backend (`mercury:…`, `openai:…`) could use what it knows"
    )


def _show_faults(run: Run[OutputT], text: str, invalid: OutputInvalid) -> None:
    if text.strip():
        run.messages.append(assistant(text))
    how = "" if run.config.output.schema is None else " with JSON only"
    run.messages.append(user(f"{invalid}. Reply again{how}."))
