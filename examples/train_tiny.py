"""Train the tiny deepseek_v3-class model on the Python standard library and write a Hugging Face directory.

    python3 examples/train_tiny.py --minutes 4 --batch 48 --sequence 1024 --compile --out OUT  # one H200, as shipped
    python3 examples/train_tiny.py --steps 20 --batch 2 --sequence 128 --held-out 4096 --out OUT # a look on a CPU

Needs torch, safetensors and tokenizers, nothing from deepinfer. The clock starts after the first step (compilation is
not counted), and the learning rate follows a cosine over the time or the steps given. At the end the weights are
rounded to bf16, and held-out bits per byte and samples are computed with the rounded weights.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from tiny import corpus, evaluate, export, optimiser
from tiny.config import TinyConfig
from tiny.network import TinyModel

PROMPTS = ("def ", "class ", '"""Return ', "import ", "The ", "    def __init__(self")
BALANCE_RATE = 1e-3
SIZE_LIMIT = 8_000_000


def learning_rate(progress: float, peak: float) -> float:
    """Linear warm-up over the first 2 %, then a cosine to zero; progress runs from 0 to 1."""
    if progress < 0.02:
        return peak * (progress + 1e-3) / 0.021
    return peak * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


class Clock:
    """Share of the training done, by steps if a number is given, else by the time since the first step."""

    def __init__(self, minutes: float, steps: int | None) -> None:
        self.minutes, self.steps, self.step, self.started = minutes, steps, 0, 0.0

    def tick(self) -> None:
        self.step += 1
        if self.step == 1:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.started = time.monotonic()

    def progress(self) -> float:
        if self.steps is not None:
            return self.step / self.steps
        return (time.monotonic() - self.started) / (60 * self.minutes) if self.step else 0.0


def train(model: TinyModel, stream: torch.Tensor, held_out: torch.Tensor, args: argparse.Namespace) -> int:
    """Train in place; returns the number of steps. The streams hold token ids on the model's device."""
    device = stream.device
    forward = torch.compile(model, dynamic=False) if args.compile else model
    optimisers = optimiser.build(model, args.lr)
    autocast = torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
    offsets = torch.arange(args.sequence + 1, device=device)
    clock = Clock(args.minutes, args.steps)
    while (progress := clock.progress()) < 1.0:
        starts = torch.randint(stream.numel() - args.sequence, (args.batch, 1), device=device)
        tokens = stream[starts + offsets].long()
        with autocast:
            logits, loads = forward(tokens[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        for each in optimisers:
            share = 1.0 if isinstance(each, optimiser.Muon) else 0.15
            each.param_groups[0]["lr"] = learning_rate(progress, args.lr) * share
            each.step()
            each.zero_grad(set_to_none=True)
        model.balance(loads, BALANCE_RATE * (1 - progress))
        if clock.step % args.log_every == 0:
            # Reading the loss waits for the device, so that the host cannot run minutes ahead of it.
            spread = (loads.amax(-1) / loads.mean(-1)).tolist()
            line = f"step {clock.step} progress {progress:.3f} loss {loss.item():.4f}"
            print(line, "max/mean load", " ".join(f"{value:.2f}" for value in spread), flush=True)
        if clock.step % (20 * args.log_every) == 0:
            bits = evaluate.bits_per_byte(model, held_out, args.sequence, limit=args.held_out // 8)
            print(f"step {clock.step} held-out bits per byte {bits:.4f} (on an eighth)", flush=True)
        clock.tick()
    return clock.step


def report(model: TinyModel, held_out: torch.Tensor, args: argparse.Namespace, steps: int) -> None:
    """Round, write, measure, show."""
    export.round_weights(model)
    size = export.write(model, args.out)
    if size > SIZE_LIMIT:
        raise SystemExit(f"{args.out}: {size} bytes, must be <= {SIZE_LIMIT}; lower dense_width or experts")
    bits = evaluate.bits_per_byte(model, held_out, args.sequence, limit=args.held_out)
    lines = [f"steps {steps}", f"tokens {steps * args.batch * args.sequence}", f"directory bytes {size}"]
    lines.append(f"held-out bits per byte {bits:.4f}")
    for text in evaluate.sample(model, PROMPTS, args.sample_length, 0.7, args.seed):
        lines += ["-" * 60, text]
    print("\n".join(lines), flush=True)
    (args.out / "training.txt").write_text("\n".join(lines) + "\n")


def at_least(low: int) -> Callable[[str], int]:
    """A type for argparse: an integer that is not below `low`."""

    def integer(text: str) -> int:
        if int(text) < low:
            raise argparse.ArgumentTypeError(f"got {text}, must be >= {low}")
        return int(text)

    return integer


def positive(text: str) -> float:
    """A type for argparse: a positive finite number."""
    if not 0 < float(text) < math.inf:
        raise argparse.ArgumentTypeError(f"got {text}, must be positive and finite")
    return float(text)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--minutes", type=positive, default=4.0, help="training time; ignored with --steps")
    parser.add_argument("--steps", type=at_least(1), help="number of steps instead of a time")
    parser.add_argument("--batch", type=at_least(1), default=96, help="sequences a step")
    parser.add_argument("--sequence", type=at_least(1), default=512, help="tokens a sequence")
    parser.add_argument("--lr", type=positive, default=0.02, help="peak learning rate of the matrices")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", type=Path, help="directory of *.py files instead of the standard library")
    parser.add_argument("--sample-length", type=at_least(0), default=400, help="bytes per sample at the end")
    parser.add_argument("--held-out", type=at_least(16), default=1 << 20, help="most tokens to measure on")
    parser.add_argument("--log-every", type=at_least(1), default=100, help="steps between two lines of progress")
    parser.add_argument("--compile", action="store_true", help="torch.compile the network")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    if args.sequence > TinyConfig.positions:
        parser.error(f"--sequence: got {args.sequence}, must be <= {TinyConfig.positions}")
    return args


def main(argv: Sequence[str] | None = None, config: TinyConfig | None = None) -> TinyModel:
    """Run the script; `config` replaces the shipped sizes (tests train smaller ones)."""
    args = parse(argv)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    text = corpus.build(args.corpus)
    if text.train.numel() <= args.sequence:
        raise SystemExit(f"--sequence: got {args.sequence}, must be < {text.train.numel()}, the training text's tokens")
    args.out.mkdir(parents=True, exist_ok=True)  # what cannot be written is better known before training than after
    model = TinyModel(config or TinyConfig()).to(args.device)
    parameters = sum(param.numel() for param in model.parameters())
    print(f"{text.documents} documents, {text.train.numel()} + {text.held_out.numel()} tokens; {parameters} parameters")
    # uint16 has no index kernels on every device.
    train_stream, held_out = text.train.int().to(args.device), text.held_out.int().to(args.device)
    steps = train(model, train_stream, held_out, args)
    report(model, held_out, args, steps)
    return model


if __name__ == "__main__":
    main()
