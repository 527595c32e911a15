"""What may be written: from a JSON Schema to what may stand at each masked position.

`compile_schema` makes a `Grammar` for a `Vocabulary`, and so do `compile_tool_calls`,
`compile_regex`, `compile_choice` and `compile_text`; `Grammar.start(budget)` makes a `Matcher`; at
each denoising step `Matcher.propose` turns the model's log-probabilities into a complete valid fill
of the block, with a confidence per position.

Knows bytes and token ids; no model, no tokenizer class, no torch.
"""

from agentdiff.constraint.cache import GrammarCache
from agentdiff.constraint.matcher import Grammar, Matcher, Proposal, compile_schema
from agentdiff.constraint.notation import Style
from agentdiff.constraint.parts import Parts
from agentdiff.constraint.schema import KeyOrder
from agentdiff.constraint.step_scores import StepScores, Sums
from agentdiff.constraint.texts import compile_choice, compile_regex, compile_text
from agentdiff.constraint.tools import ToolSyntax, compile_tool_calls
from agentdiff.constraint.vocabulary import Vocabulary

__all__ = [
    "Grammar",
    "GrammarCache",
    "KeyOrder",
    "Matcher",
    "Parts",
    "Proposal",
    "StepScores",
    "Style",
    "Sums",
    "ToolSyntax",
    "Vocabulary",
    "compile_choice",
    "compile_regex",
    "compile_schema",
    "compile_text",
    "compile_tool_calls",
]
