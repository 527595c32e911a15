"""Checkpoints of every family with a tokenizer: golden weights, single bytes, the tags that their templates write."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

GOLDENS = Path(__file__).parent.parent / "goldens"

HERMES = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool.function.name }} {% endfor %}<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>user
{{ m.content }}<|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{- '\\n' + m.content if m.content or not m.tool_calls }}
{%- for call in m.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""As Qwen's and Ling's write them."""
LISTED = """\
{%- for tool in tools or [] %}{{ tool.function.name }}{% endfor %}
{%- for m in messages %}<{{ m.role }}>
{%- if m.tool_calls %}[TOOL_CALLS] [{% for call in m.tool_calls %}{"name":"{{ call.function.name }}","arguments":
{{- '{' }}{% for k, v in call.function.arguments.items() %}"{{ k }}":"{{ v }}"{{ ',' if not loop.last }}{% endfor %}}}
{{- ',' if not loop.last }}{% endfor %}]{% else %}{{ m.content }}{% endif %}<|im_end|>
{%- endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""
"""Calls in one list, without a tag of its own, with compact JSON."""
_BARE = """\
{%- macro value(it) -%}
{%- if it is none -%}null
{%- elif it is boolean -%}{{ 'true' if it else 'false' }}
{%- elif it is string -%}{{ '<|"|>' ~ it ~ '<|"|>' }}
{%- elif it is mapping -%}{{ '{' }}{{ members(it) }}{{ '}' }}
{%- elif it is iterable -%}[{% for one in it %}{{ value(one) }}{{ ',' if not loop.last }}{% endfor %}]
{%- else -%}{{ it }}
{%- endif -%}
{%- endmacro -%}
{%- macro members(them) -%}
{%- for k, v in them | dictsort -%}{{ k }}:{{ value(v) }}{{ ',' if not loop.last }}{%- endfor -%}
{%- endmacro -%}
{%- macro calls(m) -%}
{%- for call in m.tool_calls or [] -%}
{{- '<|tool_call>call:' ~ call.function.name ~ '{' ~ members(call.function.arguments) ~ '}<tool_call|>' -}}
{%- endfor -%}
{%- endmacro -%}
{%- if tools or enable_thinking -%}<|turn>system
{{ '<|think|>' if enable_thinking }}
{%- for tool in tools or [] -%}
<|tool>declaration:{{ tool.function.name ~ '{' ~ members(tool.function.parameters) ~ '}' }}<tool|>
{%- endfor -%}
<turn|>
{% endif -%}
"""
GEMMA = (
    _BARE
    + """\
{%- for m in messages -%}
<|turn>{{ 'model' if m.role == 'assistant' else m.role }}
{{ calls(m) ~ m.content }}<turn|>
{% endfor -%}
{%- if add_generation_prompt -%}<|turn>model
{{ '<|channel>thought\\n<channel|>' if not enable_thinking }}
{%- endif -%}"""
)
"""As Gemma 4's first templates write them: results have a turn, and a reply begins behind an empty thought."""
GEMMA_ONE_TURN = (
    _BARE
    + """\
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
<|tool_response>response:{{ m.name ~ '{value:' ~ value(m.content) ~ '}' }}<tool_response|>
{%- else -%}
<|turn>{{ 'model' if m.role == 'assistant' else m.role }}
{{ calls(m) ~ m.content }}
{%- if not m.tool_calls -%}<turn|>
{% elif loop.last -%}<|tool_response>
{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and messages[-1].role != 'tool' -%}<|turn>model
{% endif -%}"""
)
"""As its later ones do: results stand in the turn of the calls, and a token asks for them."""
NO_TOOLS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|im_end|>{% endfor %}<assistant>"


def write_tokenizer(
    folder: Path, *, size: int, special: dict[str, int], tags: dict[str, int], template: str | None
) -> None:
    """A byte-level tokenizer of `size` ids, whose special tokens and tags have the ids given."""
    named = {index: token for token, index in (special | tags).items()}
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*letters, '{"', '":', '"}', "Ġ{", "\n"]
    vocabulary: dict[str, int] = {}
    free = iter([*dict.fromkeys(pieces), *(f"piece{n}" for n in range(size))])
    for index in range(size):
        vocabulary[named[index] if index in named else next(free)] = index
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in [*tags, "\n"]])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)


HERMES_TAGS = {"<tool_call>": 301, "</tool_call>": 302}
GEMMA_TAGS = {"<|tool_call>": 301, "<tool_call|>": 302, '<|"|>': 303, "<|tool_response>": 304}


def write_family(folder: Path, family: str, *, template: str | None = HERMES) -> Path:
    """A golden checkpoint with a tokenizer of its own vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in (GOLDENS / family).iterdir():
        if file.suffix in (".json", ".safetensors") and file.name not in (
            "meta.json",
            "trace.json",
        ):
            shutil.copy(file, folder / file.name)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    size = text.get("embedding_size", text["vocab_size"])
    ends = text.get("eos_token_id", 0)
    end = ends[0] if isinstance(ends, list) else ends
    is_gemma = template in (GEMMA, GEMMA_ONE_TURN)
    special = {"<turn|>" if is_gemma else "<|im_end|>": end, "<|im_start|>": 300}
    if "mask_token_id" in config:
        special["<|mask|>"] = config["mask_token_id"]
    for key in ("max_position_embeddings", "max_sequence_length"):
        if key in text:
            text[key] = 1024
    (folder / "config.json").write_text(json.dumps(config))
    tags = GEMMA_TAGS if is_gemma else HERMES_TAGS
    write_tokenizer(folder, size=size, special=special, tags=tags, template=template)
    return folder
