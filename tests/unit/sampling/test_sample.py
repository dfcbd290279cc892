"""Sampling: its law, its identities, ties, bad rows, and independence of the rest of the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer import device
from deepinfer.errors import InvalidArgument
from deepinfer.ops import sampling
from deepinfer.registry import pin
from tests.unit.sampling.laws import chi_square

KERNELS = ["portable", "bounded_sort"]


def random_logits(n: int, v: int, seed: int = 0) -> torch.Tensor:
    return torch.randn((n, v), generator=torch.Generator().manual_seed(seed)) * 3


def streams(n: int, first: int = 0) -> dict[str, torch.Tensor]:
    return {"seeds": torch.arange(first, first + n), "positions": torch.full((n,), 11)}


@pytest.mark.parametrize("stage", ["plain", "temperature", "top_k", "top_p", "min_p", "all"])
def test_draws_follow_the_law(stage: str) -> None:
    n, logits = 15_000, random_logits(1, 12, seed=7)
    values: dict[str, torch.Tensor] = {
        "temperature": torch.full((n,), 1.7), "top_k": torch.full((n,), 9), "top_p": torch.full((n,), 0.9),
        "min_p": torch.full((n,), 0.02),
    }
    chosen = values if stage == "all" else {stage: values[stage]} if stage != "plain" else {}
    ids, valid, _ = sampling.sample(logits.expand(n, 12), **streams(n), **chosen, logprobs="none")
    law = sampling.log_probs(logits, **{name: value[:1] for name, value in chosen.items()}).exp()[0]
    counts = torch.bincount(ids, minlength=12)
    assert valid.all()
    statistic, limit = chi_square(counts, law)
    assert statistic < limit, (counts, law * n)
    wrong, limit = chi_square(counts, torch.full((12,), 1 / 12))
    assert wrong > limit  # the test can tell laws apart


def test_positions_of_one_request_are_independent() -> None:
    n = 15_000
    logits = random_logits(1, 4, seed=1).expand(n, 4)
    first, second = (
        sampling.sample(logits, seeds=torch.full((n,), 5), positions=torch.arange(n) * 2 + shift)[0] for shift in (0, 1)
    )
    p = logits[0].softmax(0)
    statistic, limit = chi_square(torch.bincount(first * 4 + second, minlength=16), torch.outer(p, p))
    assert statistic < limit


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("v", [5, 260, 5000])
def test_identities_are_bit_equal(kernel: str, v: int) -> None:
    """C55: top_p = 1, top_k = vocab, min_p = 0, temperature 1, empty penalties change nothing."""
    n, logits = 7, random_logits(7, v)
    off = {
        "top_p": torch.ones(n), "top_k": torch.full((n,), v), "min_p": torch.zeros(n), "temperature": torch.ones(n),
        "bias_ids": torch.full((n, 2), -1), "bias_values": torch.ones(n, 2), "banned_ids": torch.full((n, 3), v),
        "history": torch.randint(0, v, (n, 4)), "repetition_penalty": torch.ones(n),
        "frequency_penalty": torch.zeros(n), "presence_penalty": torch.zeros(n),
        "mask": torch.full((n, -(-v // 32)), -1, dtype=torch.int32),
    }
    with pin(device("cpu"), "sampling.sample", kernel):
        plain = sampling.sample(logits, **streams(n))
        for name, value in off.items():
            extra = {key: off[key] for key in ("bias_values",) if name == "bias_ids"}
            extra |= {"history": off["history"]} if "penalty" in name else {}
            if name == "bias_values":
                continue
            same = sampling.sample(logits, **streams(n), **{name: value, **extra})
            assert all(torch.equal(a, b) for a, b in zip(plain, same, strict=True)), name


@pytest.mark.parametrize("kernel", KERNELS)
def test_top_k_keeps_exactly_k(kernel: str) -> None:
    """C54: [0.4, 0.3, 0.3, 0] with k = 2 keeps two, the lower id of the tie; an all-equal row with k = 1 keeps id 0."""
    with pin(device("cpu"), "sampling.log_probs", kernel):
        logits = torch.tensor([[0.4, 0.3, 0.3, 0.0]]).log()
        kept = sampling.log_probs(logits, top_k=torch.tensor([2])) > -torch.inf
        assert kept.tolist() == [[True, True, False, False]]
        kept = sampling.log_probs(torch.zeros(1, 9), top_k=torch.tensor([1])) > -torch.inf
        assert kept.nonzero().tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("p", "kept"), [(0.5, 1), (0.500001, 2), (0.75, 2), (0.76, 3), (0.0, 1), (1e-9, 1), (0.999, 4)]
)
def test_top_p_is_the_smallest_prefix_that_reaches_p(p: float, kept: int) -> None:
    logits = torch.tensor([[2.0**-3, 2.0**-1, 2.0**-3, 2.0**-2]]).log2()  # exact in float32 at temperature 1/ln 2
    table = sampling.log_probs(logits, temperature=torch.tensor([1.4426950408889634]), top_p=torch.tensor([p]))
    assert int((table > -torch.inf).sum()) == kept
    assert table.exp().sum().item() == pytest.approx(1.0, abs=1e-6)


def test_greedy_ties_go_to_the_lowest_id() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 5.0], [0.0, -0.0, 0.0, -1.0], [-torch.inf, -2.0, -2.0, -torch.inf]])
    for temperature in (0, torch.zeros(3)):
        ids, valid, _ = sampling.sample(logits, temperature=temperature, **streams(3))
        assert ids.tolist() == [1, 0, 1]
        assert valid.all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"top_k": 5}, {"temperature": 0.0}])
def test_a_bad_row_fails_alone(kernel: str, bad: float, options: dict[str, float]) -> None:
    """C56."""
    n, logits = 5, random_logits(5, 40)
    extra = {k: torch.full((n,), v if k != "top_k" else int(v)) for k, v in options.items()}
    with pin(device("cpu"), "sampling.sample", kernel):
        good = sampling.sample(logits, **streams(n), **extra)
        spoiled = logits.clone()
        spoiled[2] = bad
        ids, valid, logprobs = sampling.sample(spoiled, **streams(n), **extra)
    others = [0, 1, 3, 4]
    assert valid.tolist() == [True, True, False, True, True]
    assert ids[2].item() == -1
    assert logprobs[2].isnan()
    assert torch.equal(ids[others], good[0][others])
    assert torch.equal(logprobs[others], good[2][others])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "stage", [{}, {"top_p": (0.3, 0.9, 1.0)}, {"top_k": (4, 0, 300)}, {"temperature": (0.0, 0.7, 2.0)}]
)
@pytest.mark.parametrize("v", [33, 4500])
def test_a_row_depends_on_itself_alone(kernel: str, stage: dict[str, tuple[float, ...]], v: int) -> None:
    """C57: permuted rows, and each row as a batch of one, give the same tokens."""
    n, logits = 6, random_logits(6, v, seed=3)
    rows = {k: torch.tensor(values * 2) for k, values in stage.items()} | streams(n)
    with pin(device("cpu"), "sampling.sample", kernel):
        ids = sampling.sample(logits, **rows)[0]
        order = torch.tensor([4, 2, 0, 5, 1, 3])
        assert torch.equal(sampling.sample(logits[order], **{k: t[order] for k, t in rows.items()})[0], ids[order])
        for i in range(n):
            alone = sampling.sample(logits[i : i + 1], **{k: t[i : i + 1] for k, t in rows.items()})[0]
            assert alone.item() == ids[i].item()
    assert len(set(ids.tolist())) > 1


def test_same_logits_other_seeds_give_other_tokens() -> None:
    ids = sampling.sample(torch.zeros(64, 1000), **streams(64))[0]
    assert len(set(ids.tolist())) > 50


@pytest.mark.parametrize("bad_id", [-1, 260, 2**31, -(2**62), 2**62])
def test_ids_outside_the_vocabulary_are_ignored(bad_id: int) -> None:
    """C60: bias, history, bans with foreign ids; top_k beyond the vocabulary clamps."""
    logits = random_logits(3, 260)
    wanted = sampling.sample(logits, **streams(3))[0]
    ids = torch.full((3, 2), bad_id)
    same = sampling.sample(
        logits, **streams(3), bias_ids=ids, bias_values=torch.full((3, 2), 1e9), banned_ids=ids, history=ids,
        repetition_penalty=torch.full((3,), 9.0), presence_penalty=torch.full((3,), 9.0),
        top_k=torch.tensor([261, 2**31, 2**62]),
    )[0]
    assert torch.equal(same, wanted)


def test_penalties_by_hand() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.5]])
    table = sampling.log_probs(
        logits, history=torch.tensor([[0, 1, 2, 2, -1]]), prompt_lens=torch.tensor([2]),
        repetition_penalty=torch.tensor([2.0]), frequency_penalty=torch.tensor([0.25]),
        presence_penalty=torch.tensor([0.125]),
    )
    wanted = torch.tensor([[1.0, -4.0, 0.5 - 0.5 - 0.125, 0.5]])  # 0, 1: prompt, repetition only; 2: twice generated
    torch.testing.assert_close(table, wanted.log_softmax(1))


def test_processed_and_raw_log_probabilities() -> None:
    logits, top_k = random_logits(4, 50), torch.full((4,), 3)
    ids, _, raw = sampling.sample(logits, **streams(4), top_k=top_k)
    _, _, processed = sampling.sample(logits, **streams(4), top_k=top_k, logprobs="processed")
    torch.testing.assert_close(raw, logits.log_softmax(1).gather(1, ids[:, None])[:, 0])
    torch.testing.assert_close(processed, sampling.log_probs(logits, top_k=top_k).gather(1, ids[:, None])[:, 0])


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
@pytest.mark.parametrize("op", ["sampling.sample", "sampling.log_probs"])
def test_bounded_sort_equals_the_full_sort(p: float, spread: float, op: str) -> None:
    """Flat and peaked rows, so that the few largest tokens do and do not hold the mass."""
    n, v = 4, 3000
    logits = random_logits(n, v, seed=5) / 3 * spread
    options = {"top_p": torch.tensor([p, 0.5, 1.0, 0.99]), "top_k": torch.tensor([0, 7, 2000, 1500])}
    found = []
    for kernel in KERNELS:
        with pin(device("cpu"), op, kernel):
            if op == "sampling.sample":
                found.append(sampling.sample(logits, **streams(n), **options)[0])
            else:
                found.append(sampling.log_probs(logits, **options))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_parameters_give_an_allowed_token_or_an_invalid_row(data: st.DataObject) -> None:
    v = data.draw(st.integers(1, 9))
    real = st.floats(width=32, allow_nan=True, allow_infinity=True)
    logits = torch.tensor([data.draw(st.lists(real, min_size=v, max_size=v))])
    options: dict[str, Any] = {
        name: torch.tensor([data.draw(real)]) for name in ("temperature", "top_p", "min_p") if data.draw(st.booleans())
    }
    options["top_k"] = torch.tensor([data.draw(st.integers(-(2**63), 2**63 - 1))])
    banned = data.draw(st.lists(st.integers(-3, v + 3), max_size=3))
    options["banned_ids"] = torch.tensor([banned], dtype=torch.int64).reshape(1, -1)
    ids, valid, _ = sampling.sample(logits, **streams(1), **options)
    allowed = [t for t in range(v) if t not in banned]
    left = logits[0, allowed]
    sound = bool((left < torch.inf).all()) and bool((left > -torch.inf).any())
    assert valid.item() == sound
    if sound:
        assert ids.item() in allowed
        assert logits[0, ids.item()] > -torch.inf
    else:
        assert ids.item() == -1


@pytest.mark.parametrize("temperature", [-1, float("nan"), "hot", True])
def test_bad_plain_temperature(temperature: Any) -> None:
    with pytest.raises(InvalidArgument, match="temperature"):
        sampling.sample(torch.zeros(2, 4), temperature=temperature, **streams(2))


def test_token_mask_in_place() -> None:
    logits = random_logits(3, 40)
    mask = torch.tensor([[0x0F0F0F0F, 0x55]], dtype=torch.int32)
    wanted = sampling.apply_token_mask(logits, mask, torch.tensor([0, -1, 0]))
    sampling.apply_token_mask(logits, mask, torch.tensor([0, -1, 0]), out=logits)
    assert torch.equal(logits, wanted)
    assert (wanted[0] > -torch.inf).sum() == 20
    assert (wanted[1] > -torch.inf).all()


def test_mask_in_sample_equals_masked_logits() -> None:
    logits, mask = random_logits(4, 100), torch.randint(-(2**31), 2**31, (4, 4)).to(torch.int32)
    a = sampling.sample(logits, **streams(4), mask=mask)[0]
    b = sampling.sample(sampling.apply_token_mask(logits, mask), **streams(4))[0]
    assert torch.equal(a, b)
