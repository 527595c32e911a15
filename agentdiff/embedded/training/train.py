"""Train the embedded router: `python -m agentdiff.embedded.training.train --out RUN --steps N`.

Seeded, resumable (`--resume`), scheduled by steps (warm-up, constant, linear decay to zero), with a checkpoint every
few minutes and one JSON line of metrics per report. Muon on the matrices, AdamW on the rest. Runs on whatever device
torch finds; the shipped weights were trained on two CPU cores (`weights/training.json`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from agentdiff.embedded.training import lexicon as lexicons
from agentdiff.embedded.training.batches import Batch, Stream
from agentdiff.embedded.training.slots import slot_loss
from agentdiff.embedded.training.tokenizer import WEIGHTS
from agentdiff.engine.families.lexicon import Lexicon
from agentdiff.engine.families.router_model import RouterModel, RouterShape
from agentdiff.engine.weights import read_weights

ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "8589934592",
    "MALLOC_TRIM_THRESHOLD_": "34359738368",
    "MALLOC_TOP_PAD_": "268435456",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""glibc gives freed tensors back to the kernel by default, and most of a CPU step goes into page faults; keep them."""


def loss_of(model: RouterModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Weighted cross-entropy of the masked positions, and that of the prompt's slots (scalars)."""
    prompt = model.encode(batch.shown, batch.prompt_valid, batch.words, batch.kinds)
    prompt = prompt._replace(ids=batch.prompt)
    assert prompt.slots is not None
    hidden, _ = model.decode(
        batch.response,
        batch.positions,
        batch.mask,
        prompt.layers,
        block_len=batch.block_len,
        refusal=prompt.slots.refusal[:, 0],
    )
    log_probs = model.log_probs(hidden[:, batch.clean_len :], prompt)
    losses = F.nll_loss(
        log_probs.flatten(0, 1), batch.targets.flatten(), reduction="none", ignore_index=-100
    )
    weights = batch.weights.flatten()
    return (losses * weights).sum() / weights.sum(), slot_loss(prompt.slots, batch.slots)


def learning_rate(step: int, *, steps: int, warmup: int, decay: float) -> float:
    """The factor of the peak rate at `step`: warm-up, constant, then linear to zero over the last `decay` share."""
    if step < warmup:
        return (step + 1) / warmup
    left = (steps - step) / max(1.0, steps * decay)
    return min(1.0, max(0.0, left))


def optimizers(
    model: RouterModel, *, muon_lr: float, adam_lr: float
) -> list[tuple[torch.optim.Optimizer, float]]:
    """Muon for the hidden matrices, AdamW for embeddings, gates and vectors; each with its peak rate."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim == 2 and not name.startswith(("embed", "pointer_gate", "shift"))
        (matrices if is_matrix else rest).append(parameter)
    muon = torch.optim.Muon(
        matrices, lr=muon_lr, momentum=0.95, weight_decay=0.01, adjust_lr_fn="original"
    )
    adam = torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.98), weight_decay=0.0)
    return [(muon, muon_lr), (adam, adam_lr)]


def train(args: argparse.Namespace) -> list[float]:
    """Train until `args.steps`; returns the reported mean losses."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(Path(args.tokenizer) / "tokenizer.json"))
    lexicon = Lexicon.load(Path(args.tokenizer)) if args.lexicon else None
    vectors = lexicons.read(Path(args.tokenizer)) if args.lexicon else None
    shape = RouterShape(
        lexicon_size=0 if vectors is None else vectors.shape[0],
        lexicon_width=100 if vectors is None else vectors.shape[1],
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        intermediate_size=args.inner,
        slots=True,
    )
    model = RouterModel(shape)
    model.reset_parameters()
    if vectors is not None:
        model.lexicon.copy_(vectors)
    if args.start_from:
        model.load_state_dict(read_weights(Path(args.start_from)))
    device = torch.device(args.device)
    model.to(device)
    pairs = optimizers(model, muon_lr=args.muon_lr, adam_lr=args.adam_lr)
    done, examples, seen, spent = 0, 0, 0, 0.0
    if args.resume:
        state = torch.load(args.resume, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        for (optimizer, _), saved in zip(pairs, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        done, examples = state["step"], state["examples"]
        seen, spent = state["tokens"], state["cpu_s"]
    stream = iter(
        Stream(
            tokenizer,
            seed=args.seed * 1_000_003 + done,
            batch_size=args.batch,
            copies=args.copies,
            few=args.few,
            lexicon=lexicon,
            related=lexicons.related(Path(args.tokenizer)) if args.lexicon else None,
        )
    )
    log = (out / "metrics.jsonl").open("a", encoding="utf-8")
    losses: list[float] = []
    slot_losses: list[float] = []
    reports: list[float] = []
    saved_at, started, cpu = time.monotonic(), time.monotonic(), time.process_time()

    def save(step: int, name: str) -> None:
        state = {
            "model": model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer, _ in pairs],
            "shape": asdict(shape),
            "step": step,
            "examples": examples + (step - done) * args.batch,
            "tokens": seen,
            "cpu_s": spent + time.process_time() - cpu,
        }
        torch.save(state, out / "unfinished.pt")
        os.replace(out / "unfinished.pt", out / name)

    for step in range(done, args.steps):
        factor = learning_rate(step, steps=args.steps, warmup=args.warmup, decay=args.decay)
        batch = to_device(next(stream), device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=args.bf16):
            loss, of_slots = loss_of(model, batch)
        (loss + args.slots * of_slots).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, peak in pairs:
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        slot_losses.append(of_slots.item())
        seen += batch.tokens
        if (step + 1) % args.report == 0:
            reports.append(sum(losses) / len(losses))
            lesson = sum(slot_losses) / len(slot_losses)
            losses.clear()
            slot_losses.clear()
            row = {
                "step": step + 1,
                "loss": round(reports[-1], 4),
                "slots": round(lesson, 4),
                "rate": round(factor, 4),
                "examples": examples + (step + 1 - done) * args.batch,
                "tokens": seen,
                "minutes": round((time.monotonic() - started) / 60, 1),
                "cpu_s": round(spent + time.process_time() - cpu),
            }
            print(json.dumps(row), flush=True)
            log.write(json.dumps(row) + "\n")
            log.flush()
        if time.monotonic() - saved_at > args.checkpoint_s:
            save(step + 1, "last.pt")
            saved_at = time.monotonic()
        if args.keep_before_decay and step + 1 == round(args.steps * (1 - args.decay)):
            save(step + 1, "before-decay.pt")
    save(args.steps, "last.pt")
    log.close()
    return reports


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The same batch on `device`."""
    if device.type == "cpu":
        return batch
    values = {name: getattr(batch, name) for name in Batch.__dataclass_fields__}
    return replace(
        batch, **{name: v.to(device) for name, v in values.items() if isinstance(v, Tensor)}
    )


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train the embedded router.")
    parser.add_argument("--out", required=True, help="folder for checkpoints and metrics")
    parser.add_argument("--tokenizer", default=str(WEIGHTS), help="folder with tokenizer.json")
    parser.add_argument(
        "--lexicon",
        action="store_true",
        help="use the word vectors in the tokenizer's folder (made by `training.lexicon`)",
    )
    parser.add_argument("--resume", default="", help="checkpoint to go on from")
    parser.add_argument(
        "--start-from", default="", help="folder of weights to begin with, as the shipped ones"
    )
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--copies", type=int, default=3)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--inner", type=int, default=704)
    parser.add_argument("--muon-lr", type=float, default=0.01)
    parser.add_argument("--adam-lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=60)
    parser.add_argument(
        "--decay",
        type=float,
        default=0.4,
        help="share of the steps over which the rate falls to zero",
    )
    parser.add_argument(
        "--few", type=float, default=0.0, help="share of examples with at most five tools"
    )
    parser.add_argument(
        "--slots", type=float, default=0.5, help="weight of the second lesson (`training.slots`)"
    )
    parser.add_argument("--report", type=int, default=50)
    parser.add_argument("--checkpoint-s", type=float, default=180.0)
    parser.add_argument("--keep-before-decay", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True)
    return parser


if __name__ == "__main__":
    if sys.platform == "linux" and any(os.environ.get(k) != v for k, v in ALLOCATOR.items()):
        os.execve(
            sys.executable,
            [sys.executable, "-m", "agentdiff.embedded.training.train", *sys.argv[1:]],
            os.environ | ALLOCATOR,
        )
    train(arguments().parse_args())
