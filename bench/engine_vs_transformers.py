"""Decode speed side by side: deepinfer.LLM and transformers generate, same checkpoint, same prompts, same process.

    python bench/engine_vs_transformers.py [MODEL_DIR] [--out rows.jsonl] [--check]

Greedy decode of a fixed number of tokens at batch 1 and 8. Each side decodes NEW_TOKENS and, in a second run, one
token; the difference of the two times is decoding alone. Rounds of both sides alternate, so a change in the machine's
load hits both; medians are compared. --check exits with 1 when batch 8 is below 5x or batch 1 below 2x.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

import deepinfer
from deepinfer.bench.rows import commit

ROOT = Path(__file__).resolve().parents[1]
NEW_TOKENS, PROMPT_TOKENS = 64, 64
TARGETS = {1: 2.0, 8: 5.0}
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
Generate = Callable[[int], Sequence[Sequence[int]]]


def prompts(batch: int, vocab: int) -> list[list[int]]:
    """Distinct prompts of byte tokens; token 0..249 exist in every byte-level vocabulary."""
    return [[(31 * row + 7 * i * i + i) % min(vocab, 250) for i in range(PROMPT_TOKENS)] for row in range(batch)]


def ours(model: Path, dtype: str, batch: int) -> Generate:
    """deepinfer.LLM on the cpu backend."""
    llm = deepinfer.LLM(model, device="cpu", dtype=dtype, enable_prefix_caching=False)
    inputs = prompts(batch, llm.vocab_size)

    def generate(count: int) -> Sequence[Sequence[int]]:
        params = deepinfer.SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        return [output.outputs[0].token_ids for output in llm.generate(inputs, params, use_tqdm=False)]

    return generate


def theirs(model: Path, dtype: str, batch: int) -> Generate:
    """transformers generate with its own KV cache."""
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=DTYPES[dtype]).eval()
    inputs = torch.tensor(prompts(batch, loaded.config.vocab_size))

    def generate(count: int) -> Sequence[Sequence[int]]:
        with torch.inference_mode():
            full = loaded.generate(
                inputs, attention_mask=torch.ones_like(inputs), do_sample=False, max_new_tokens=count,
                min_new_tokens=count, pad_token_id=0, eos_token_id=None,
            )
        new: list[list[int]] = full[:, PROMPT_TOKENS:].tolist()
        return new

    return generate


def seconds(generate: Generate, count: int) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    generate(count)
    return time.perf_counter() - start


def decode_seconds(generate: Generate) -> float:
    """Time of NEW_TOKENS - 1 decode steps."""
    return max(seconds(generate, NEW_TOKENS) - seconds(generate, 1), 1e-9)


def measure(model: Path, dtype: str, batch: int, rounds: int) -> dict[str, Any]:
    """One row: tokens per second of both sides at this batch, their ratio, and whether the tokens agree."""
    sides = {"deepinfer": ours(model, dtype, batch), "transformers": theirs(model, dtype, batch)}
    tokens = {name: [list(row) for row in generate(NEW_TOKENS)] for name, generate in sides.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, generate in sides.items():
            times[name].append(decode_seconds(generate))
    rate = {name: batch * (NEW_TOKENS - 1) / statistics.median(found) for name, found in times.items()}
    pairs = zip(tokens["deepinfer"], tokens["transformers"], strict=True)
    equal = sum(mine == other for mine, other in pairs)
    return {
        "bench": "engine_vs_transformers", "model": model.name, "dtype": dtype, "batch": batch,
        "new_tokens": NEW_TOKENS, "prompt_tokens": PROMPT_TOKENS, "rounds": rounds,
        "deepinfer_tps": round(rate["deepinfer"], 2), "transformers_tps": round(rate["transformers"], 2),
        "ratio": round(rate["deepinfer"] / rate["transformers"], 3), "target": TARGETS[batch],
        "equal_rows": equal, "threads": torch.get_num_threads(), "device": platform.machine(), "commit": commit(),
        "versions": {
            "deepinfer": deepinfer.__version__, "torch": torch.__version__, "transformers": transformers.__version__,
        },
    }


def main() -> int:
    """Measure, print, append."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=ROOT / "examples" / "models" / "tiny-v3")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16")
    parser.add_argument("--batch", type=int, action="append", choices=sorted(TARGETS), help="default: 1 and 8")
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds per side (default 5)")
    parser.add_argument("--out", type=Path, help="append the rows to this JSONL file")
    parser.add_argument("--check", action="store_true", help="exit 1 when a ratio is below its target")
    options = parser.parse_args()
    found = []
    for batch in options.batch or sorted(TARGETS):
        row = measure(options.model, options.dtype, batch, max(options.rounds, 1))
        found.append(row)
        print(
            f"batch {batch}: deepinfer {row['deepinfer_tps']}, transformers {row['transformers_tps']} tokens/s, "
            f"ratio {row['ratio']} (target {row['target']}), equal rows {row['equal_rows']}/{batch}",
            flush=True,
        )
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    return 1 if options.check and any(row["ratio"] < row["target"] for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
