"""The input of one model step, in the form the ops want: flat tokens of all requests, and where their cache rows lie.

Invariants: requests that decode (exactly one token each) come first, `decodes` of them; the others follow with their
prompt chunks. All tensors are on the model's device and integer; none is read back by the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class StepInput:
    """One batch.

    Attributes:
        tokens: [T] token ids.
        positions: [T] position of each token in its request.
        slots: [T] flat cache slot (block * page + offset) that each token's row is written to.
        block_table: [b, n] cache blocks of each request, in order.
        seq_lens: [b] tokens of each request including this step's.
        cu_q: [b - decodes + 1] prefix sums of the chunk lengths of the requests behind the decoding ones, from 0.
        decodes: number of leading requests with one token each.
        rows: [n] rows of the step whose logits are wanted, or None for all.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    cu_q: torch.Tensor
    decodes: int
    rows: torch.Tensor | None
