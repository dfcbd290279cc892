"""The tiny-model trainer: what it writes is the model it trained, read by the reference implementation."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
SHIPPED = EXAMPLES / "models" / "tiny-v3"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(model, directory) after a few CPU steps on this repository's own examples."""
    out = tmp_path_factory.mktemp("tiny")
    sources = out / "sources"
    sources.mkdir()
    for index in range(60):  # enough names for the hash to hold some out
        (sources / f"m{index}.py").write_text(f"def f{index}(x):\n    return x + {index}\n" * 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        script = importlib.import_module("train_tiny")
        sizes = importlib.import_module("tiny.config").TinyConfig(
            hidden=64, q_rank=32, kv_rank=96, dense_width=96, expert_width=32, nope=48, rope=16, value=32
        )
        flags = "--steps 12 --batch 2 --sequence 64 --sample-length 4 --device cpu --held-out 500"
        model = script.main([*flags.split(), "--corpus", str(sources), "--out", str(out / "model")], sizes)
        for layer in model.layers[1:]:  # a few steps leave the ranking bias near zero; make it matter
            layer.mlp.gate.e_score_correction_bias.normal_(0, 0.2, generator=torch.Generator().manual_seed(1))
        export = importlib.import_module("tiny.export")
        export.write(model, out / "model")
    return model, out / "model"


def test_logits_equal_those_of_transformers(trained: Any) -> None:
    from transformers import DeepseekV3ForCausalLM

    model, directory = trained
    loaded, info = DeepseekV3ForCausalLM.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    ids = torch.randint(0, 260, (3, 90), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        ours, theirs = model(ids)[0], loaded(ids).logits
    assert ours.std() > 0.1  # the comparison is about something
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("flags", [
    "--steps 0", "--steps -3", "--minutes 0", "--minutes nan", "--batch 0", "--sequence 0", "--sequence 5000",
    "--log-every 0", "--lr nan", "--lr 0", "--held-out 0", "--sample-length -1", "--steps x",
])
def test_numbers_that_make_no_sense_are_refused_at_once(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        script = importlib.import_module("train_tiny")
        with pytest.raises(SystemExit) as caught:
            script.parse([*flags.split(), "--out", "unused"])
    assert caught.value.code == 2
    assert flags.split()[0] in capsys.readouterr().err


def test_training_lowers_the_loss(trained: Any) -> None:
    model, _ = trained
    text = torch.tensor([[256, *(b"def f7(x):\n    return x + 7\n" * 4)]])
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(text[:, :-1])[0][0], text[0, 1:])
    assert loss < 4.8  # log(260) = 5.56 at the start


@pytest.mark.parametrize("text", ["", "def f(x):\n\treturn x", "naïve — “q” 😀 \x00\x7f", "<|end|>"])
def test_tokenizer_round_trip(trained: Any, text: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(trained[1])
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (256, 257, 258)
    ids = tokenizer.encode(text)
    assert ids[0] == 256
    assert ids[1:] == ([257] if text == "<|end|>" else list(text.encode()))
    assert tokenizer.decode(ids[1:], clean_up_tokenization_spaces=False) == text


def test_chat_template(trained: Any) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(trained[1])
    turns = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert text == "<|begin|># user: hi\n# assistant:"


def test_shipped_model_has_the_shipped_sizes_and_learned_python() -> None:
    """The directory in examples/models is what this script writes today, and it predicts Python far above chance."""
    from transformers import DeepseekV3ForCausalLM

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        wanted = importlib.import_module("tiny.config").TinyConfig().to_hugging_face()
        corpus = importlib.import_module("tiny.corpus")
    assert json.loads((SHIPPED / "config.json").read_text()) == wanted
    loaded, info = DeepseekV3ForCausalLM.from_pretrained(SHIPPED, dtype=torch.float32, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    held_out = [text for name, text in corpus.documents() if corpus.is_held_out(name) and len(text) >= 4096]
    ids = torch.tensor([list(text[2048 : 2048 + 1024]) for text in held_out[:8]])
    with torch.no_grad():
        logits = loaded(ids[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    assert loss / math.log(2) < 2.5  # bits per byte inside documents it never saw; 8 is chance


def test_shipped_directory_is_small() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= 8_000_000


def test_directory_is_complete(trained: Any) -> None:
    names = {path.name for path in trained[1].iterdir()}
    assert names >= {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
