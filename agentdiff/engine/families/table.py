"""Which diffusion language models can be loaded, and what each one is: the stock class behind it and how it differs.

One row for each kind of checkpoint. `verified` rows compute what the reference code computes, on golden numbers of a
small checkpoint in the published format (`tests/goldens`); the others are mapped from published code and configs, and
loading one says so once. Values in a row are what published checkpoints leave out; what a checkpoint says itself wins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agentdiff.engine.families.base import Attention, PromptBlocks, Shift
from agentdiff.engine.families.configs import (
    Fields,
    Reading,
    decoder,
    experts,
    llada,
    llada2,
    llada_moe,
    ministral3,
    stock,
)
from agentdiff.engine.families.keys import Renames
from agentdiff.engine.unmask import Quota, Threshold, UnmaskPolicy

STOCK = "agentdiff.engine.families.stock:StockFamily"


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySpec:
    """One kind of checkpoint."""

    name: str
    published: str
    """Checkpoints of this kind."""
    architectures: tuple[str, ...] = ()
    """In `config.json`; what no row claims goes by `model_types`."""
    model_types: tuple[str, ...] = ()
    source: str = ""
    """A regular expression: the row is only for checkpoints whose folder or hub id has it in it, in small letters.
    Their config is that of another kind."""
    adapter: str = STOCK
    native: str = ""
    """The transformers class."""
    config: Callable[[Reading], Fields] = decoder
    renames: Renames = ()
    attention: Attention = "bidirectional"
    block_causal_source: str = ""
    """A checkpoint whose folder or hub id has this in it is block-causal instead."""
    shift: Shift = "none"
    prompt_blocks: PromptBlocks = "from_start"
    block_len: int = 32
    """For bidirectional models the length that their authors decode in, or 32 where they use none."""
    sub_block_len: int | None = None
    block_key: str = "block_size"
    """Where the config says otherwise."""
    mask_id: int | None = None
    """None: the checkpoint has to name it, or its tokenizer."""
    ordinary_mask: bool = False
    """The mask id is not one of the tokenizer's special tokens, on purpose."""
    padded_vocabulary: str = ""
    """A stored embedding that may have more rows than the config's vocabulary; they count."""
    eos_ids: tuple[int, ...] = ()
    """End a reply as well as those that the checkpoint names, where they lie in its vocabulary."""
    edits: bool = False
    """See `FamilyTraits.edits`."""
    policy: UnmaskPolicy = field(default_factory=Quota)
    """How its authors unmask."""
    verified: bool = False


_LLADA_KEYS: Renames = (
    (r"^model\.transformer\.wte\.", "model.embed_tokens."),
    (r"^model\.transformer\.ln_f\.", "model.norm."),
    (r"^model\.transformer\.ff_out\.", "lm_head."),
    (r"^model\.transformer\.blocks\.", "model.layers."),
    (r"\.([qkv]_proj)\.", r".self_attn.\1."),
    (r"\.attn_out\.", ".self_attn.o_proj."),
    (r"\.attn_norm\.", ".input_layernorm."),
    (r"\.ff_norm\.", ".post_attention_layernorm."),
    (r"\.ff_proj\.", ".mlp.gate_proj."),
    (r"\.up_proj\.", ".mlp.up_proj."),
    (r"\.ff_out\.", ".mlp.down_proj."),
)
_LLADA2_KEYS: Renames = (
    (r"^model\.word_embeddings\.", "model.embed_tokens."),
    (r"\.attention\.query_key_value\.", ".self_attn.qkv_proj."),
    (r"\.attention\.dense\.", ".self_attn.o_proj."),
    (r"\.attention\.query_layernorm\.", ".self_attn.q_norm."),
    (r"\.attention\.key_layernorm\.", ".self_attn.k_norm."),
    (r"\.mlp\.gate\.expert_bias$", ".mlp.gate.e_score_correction_bias"),
)
_DIFFUGPT_KEYS: Renames = (
    (r"^embed_tokens\.", "transformer.wte."),
    (r"^denoise_model\.", "transformer."),
    (r"^.*\.attn\.(masked_)?bias$", ""),
)
_DIFFULLAMA_KEYS: Renames = (
    (r"^embed_tokens\.", "model.embed_tokens."),
    (r"^denoise_model\.", "model."),
    (r"^.*\.rotary_emb\.inv_freq$", ""),
)
_NEMOTRON_KEYS: Renames = (
    (r"^encoder\.", "model."),
    (r"^diffusion_head\.", "lm_head."),
)
_QWEN_ENDS = (151645, 151643)
"""`<|im_end|>`, `<|endoftext|>`."""

FAMILIES: tuple[FamilySpec, ...] = (
    FamilySpec(
        name="router",
        published="the model that ships with agentdiff",
        architectures=("AgentdiffRouter",),
        model_types=("agentdiff_router",),
        adapter="agentdiff.engine.families.router:RouterFamily",
        attention="block_causal",
        verified=True,
    ),
    FamilySpec(
        name="illada",
        published="GSAI-ML/iLLaDA-8B-Base, -Instruct",
        architectures=("LLaDAModelLM",),
        source="illada",
        native="LlamaForCausalLM",
        config=llada,
        renames=_LLADA_KEYS,
        mask_id=5,
        ordinary_mask=True,
    ),
    FamilySpec(
        name="llada",
        published="GSAI-ML/LLaDA-8B-Base, -Instruct, LLaDA-1.5",
        architectures=("LLaDAModelLM",),
        model_types=("llada",),
        native="LlamaForCausalLM",
        config=llada,
        renames=_LLADA_KEYS,
        mask_id=126336,
        eos_ids=(126081, 126348),
        verified=True,
    ),
    FamilySpec(
        name="llada_moe",
        published="inclusionAI/LLaDA-MoE-7B-A1B-Base, -Instruct",
        architectures=("LLaDAMoEModelLM",),
        native="Qwen3MoeForCausalLM",
        config=llada_moe,
        mask_id=156895,
        eos_ids=(156892,),
        verified=True,
    ),
    FamilySpec(
        name="llada21",
        published="inclusionAI/LLaDA2.1-mini, -flash",
        adapter="agentdiff.engine.families.llada2:Llada2Family",
        architectures=("LLaDA2MoeModelLM",),
        model_types=("llada21_moe",),
        source=r"llada-?2\.?1",
        native="Glm4MoeForCausalLM",
        config=llada2,
        renames=_LLADA2_KEYS,
        attention="block_causal",
        mask_id=156895,
        eos_ids=(156892,),
        edits=True,
        policy=Threshold(0.95, quota=Quota()),
        verified=True,
    ),
    FamilySpec(
        name="llada22",
        published="inclusionAI/LLaDA2.2-flash",
        adapter="agentdiff.engine.families.llada2:Llada2Family",
        architectures=("LLaDA2MoeModelLM",),
        source=r"llada-?2\.?2",
        native="Glm4MoeForCausalLM",
        config=llada2,
        renames=_LLADA2_KEYS,
        attention="block_causal",
        mask_id=156895,
        eos_ids=(156892,),
        edits=True,
        policy=Threshold(0.5),
    ),
    FamilySpec(
        name="llada2",
        published="inclusionAI/LLaDA2.0-mini, -flash, -CAP, Zigeng/DMax-*",
        adapter="agentdiff.engine.families.llada2:Llada2Family",
        architectures=("LLaDA2MoeModelLM",),
        model_types=("llada2_moe",),
        native="Glm4MoeForCausalLM",
        config=llada2,
        renames=_LLADA2_KEYS,
        attention="block_causal",
        mask_id=156895,
        eos_ids=(156892,),
        policy=Threshold(0.95, quota=Quota()),
        verified=True,
    ),
    FamilySpec(
        name="dream",
        published="Dream-org/Dream-v0-*-7B, Dream-Coder-v0-*, apple/DiffuCoder-7B-*",
        architectures=("DreamModel",),
        model_types=("Dream",),
        native="Qwen2ForCausalLM",
        shift="previous",
        mask_id=151666,
        eos_ids=_QWEN_ENDS,
        policy=Quota(score="entropy", schedule="linear"),
        verified=True,
    ),
    FamilySpec(
        name="diffullama",
        published="diffusionfamily/diffullama",
        architectures=("LlamaForCausalLM",),
        source="diffullama",
        native="LlamaForCausalLM",
        renames=_DIFFULLAMA_KEYS,
        shift="previous",
        mask_id=811,
        ordinary_mask=True,
    ),
    FamilySpec(
        name="diffugpt",
        published="diffusionfamily/diffugpt-s, -m",
        architectures=("GPT2LMHeadModel", "DiscreteDiffusionModel"),
        source="diffugpt",
        native="GPT2LMHeadModel",
        config=stock,
        renames=_DIFFUGPT_KEYS,
        padded_vocabulary="embed_tokens.weight",
        shift="previous",
        mask_id=10541,
        ordinary_mask=True,
    ),
    FamilySpec(
        name="a2d_qwen3",
        published="dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1, -bd3lm-v0.1",
        architectures=("A2DQwen3LMHeadModel",),
        model_types=("a2d-qwen3",),
        native="Qwen3ForCausalLM",
        eos_ids=_QWEN_ENDS,
        block_causal_source="bd3lm",
        prompt_blocks="to_end",
        policy=Quota(schedule="linear_rounded"),
        verified=True,
    ),
    FamilySpec(
        name="a2d_qwen2",
        published="dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-mdlm-v0.1, -bd3lm-v0.1",
        architectures=("A2DQwen2LMHeadModel",),
        model_types=("a2d-qwen2",),
        native="Qwen2ForCausalLM",
        eos_ids=_QWEN_ENDS,
        block_causal_source="bd3lm",
        prompt_blocks="to_end",
        policy=Quota(schedule="linear_rounded"),
    ),
    FamilySpec(
        name="a2d_llama",
        published="Llama checkpoints adapted with dllm",
        architectures=("A2DLlamaLMHeadModel",),
        model_types=("a2d-llama",),
        native="LlamaForCausalLM",
        block_causal_source="bd3lm",
        prompt_blocks="to_end",
        policy=Quota(schedule="linear_rounded"),
    ),
    FamilySpec(
        name="modernbert",
        published="dllm-hub/ModernBERT-base-chat-v0.1, -large-chat-v0.1",
        architectures=("ModernBertForMaskedLM",),
        model_types=("modernbert",),
        adapter="agentdiff.engine.families.modernbert:ModernBertFamily",
        native="ModernBertForMaskedLM",
        config=stock,
        mask_id=50284,
        eos_ids=(50282,),
        policy=Quota(schedule="linear_rounded"),
    ),
    FamilySpec(
        name="sdar",
        published="JetLM/SDAR-*-Chat, Gen-Verse/TraDo-*",
        architectures=("SDARForCausalLM",),
        model_types=("sdar",),
        native="Qwen3ForCausalLM",
        attention="block_causal",
        block_len=4,
        mask_id=151669,
        eos_ids=_QWEN_ENDS,
        policy=Threshold(0.85, quota=Quota()),
        verified=True,
    ),
    FamilySpec(
        name="sdar_moe",
        published="JetLM/SDAR-30B-A3B-*",
        architectures=("SDARMoeForCausalLM",),
        model_types=("sdar_moe",),
        native="Qwen3MoeForCausalLM",
        config=experts,
        attention="block_causal",
        block_len=4,
        mask_id=151669,
        eos_ids=_QWEN_ENDS,
        policy=Threshold(0.85, quota=Quota()),
    ),
    FamilySpec(
        name="fast_dllm_v2",
        published="Efficient-Large-Model/Fast_dLLM_v2_7B",
        architectures=("Fast_dLLM_QwenForCausalLM",),
        model_types=("Fast_dLLM_Qwen",),
        native="Qwen2ForCausalLM",
        attention="block_causal",
        shift="within_block",
        sub_block_len=8,
        block_key="bd_size",
        mask_id=151665,
        eos_ids=(151645,),
        policy=Threshold(0.9),
        verified=True,
    ),
    FamilySpec(
        name="stable_diffcoder",
        published="ByteDance-Seed/Stable-DiffCoder-8B-Base, -Instruct",
        architectures=("StableDiffcoderForCausalLM",),
        native="LlamaForCausalLM",
        attention="block_causal",
        block_len=4,
    ),
    FamilySpec(
        name="nemotron",
        published="nvidia/Nemotron-Labs-Diffusion-3B, -8B, -14B",
        architectures=("NemotronLabsDiffusionModel",),
        model_types=("nemotron_labs_diffusion",),
        native="Ministral3ForCausalLM",
        config=ministral3,
        renames=_NEMOTRON_KEYS,
        attention="block_causal",
        block_len=64,
        mask_id=100,
        ordinary_mask=True,
        policy=Threshold(0.9),
    ),
    FamilySpec(
        name="bd3lm",
        published="kuleshov-group/bd3lm-owt-block_size4, 8, 16",
        architectures=("BD3LM",),
        model_types=("bd3lm",),
        adapter="agentdiff.engine.families.dit:DitFamily",
        attention="block_causal",
        prompt_blocks="to_end",
        eos_ids=(50256,),
        verified=True,
    ),
    FamilySpec(
        name="mdlm",
        published="kuleshov-group/mdlm-owt",
        architectures=("MDLM",),
        model_types=("mdlm",),
        adapter="agentdiff.engine.families.dit:DitFamily",
        eos_ids=(50256,),
    ),
    FamilySpec(
        name="diffusion_gemma",
        published="google/diffusiongemma-26B-A4B-it",
        architectures=("DiffusionGemmaForBlockDiffusion",),
        model_types=("diffusion_gemma",),
        adapter="agentdiff.engine.families.gemma:DiffusionGemmaFamily",
        native="DiffusionGemmaForBlockDiffusion",
        attention="canvas",
        verified=True,
    ),
)
