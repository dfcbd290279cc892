"""The network in plain torch, written for training speed; the same function as transformers' DeepseekV3.

Invariants: parameter names and shapes follow the checkpoint's, except that the experts of a layer are stacked in
`w13` [E, 2I, H] (gate rows, then up rows) and `w2` [E, H, I]. All experts are computed for every token and weighted by
the router (zero when not chosen): at 8 experts two large products beat any gather. Attention is un-absorbed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiny.config import TinyConfig


class RmsNorm(nn.Module):
    """x / rms(x) * weight over the last dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)


def linear(inputs: int, outputs: int, zero: bool = False) -> nn.Linear:
    """A bias-free layer; residual branches end in a zero one, so that every layer starts as the identity."""
    layer = nn.Linear(inputs, outputs, bias=False)
    if zero:
        nn.init.zeros_(layer.weight)
    return layer


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (x0, x1), (x2, x3), ... of x [b, h, t, r] by the angles of cos, sin [t, r/2]."""
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2).to(x.dtype)


class Attention(nn.Module):
    """Multi-head latent attention: queries and keys through low-rank latents, one rotary key shared by all heads."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        head = config.nope + config.rope
        self.q_a_proj = linear(config.hidden, config.q_rank)
        # The class fixes eps = 1e-6 for the two latent norms whatever rms_norm_eps says.
        self.q_a_layernorm = RmsNorm(config.q_rank, 1e-6)
        self.q_b_proj = linear(config.q_rank, config.heads * head)
        self.kv_a_proj_with_mqa = linear(config.hidden, config.kv_rank + config.rope)
        self.kv_a_layernorm = RmsNorm(config.kv_rank, 1e-6)
        self.kv_b_proj = linear(config.kv_rank, config.heads * (config.nope + config.value))
        self.o_proj = linear(config.heads * config.value, config.hidden, zero=True)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        c, (b, t, _) = self.config, x.shape
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(b, t, c.heads, -1).transpose(1, 2)
        q_nope, q_rope = q.split((c.nope, c.rope), -1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split((c.kv_rank, c.rope), -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(b, t, c.heads, -1).transpose(1, 2)
        k_nope, v = kv.split((c.nope, c.value), -1)
        k_rope = rotate(k_rope[:, None], cos, sin).expand(b, c.heads, t, c.rope)
        q = torch.cat((q_nope, rotate(q_rope, cos, sin)), -1)
        k = torch.cat((k_nope, k_rope), -1)
        # Flash kernels want one width for q, k and v; the padded channels come out zero and are cut off.
        out = F.scaled_dot_product_attention(q, k, F.pad(v, (0, q.shape[-1] - c.value)), is_causal=True)
        return self.o_proj(out[..., : c.value].transpose(1, 2).reshape(b, t, -1))


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linear(hidden, width), linear(hidden, width)
        self.down_proj = linear(width, hidden, zero=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Router(nn.Module):
    """Sigmoid gate: the bias ranks, the scores weigh."""

    e_score_correction_bias: Tensor

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.randn(config.experts, config.hidden) * config.hidden**-0.5)
        self.register_buffer("e_score_correction_bias", torch.zeros(config.experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [b, t, H] -> (weight of every expert, zero when not chosen, f32 [b, t, E]; tokens per expert [E])."""
        with torch.autocast(x.device.type, enabled=False):
            scores = F.linear(x.float(), self.weight.float()).sigmoid()
        chosen = (scores.detach() + self.e_score_correction_bias).topk(self.config.top_k, -1).indices
        mask = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
        kept = scores * mask
        weights = kept / (kept.sum(-1, keepdim=True) + 1e-20) * self.config.routed_scale
        return weights, mask.sum((0, 1))


class Moe(nn.Module):
    """Routed experts plus one shared expert."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        e, h, i = config.experts, config.hidden, config.expert_width
        self.gate = Router(config)
        self.w13 = nn.Parameter((torch.rand(e, 2 * i, h) * 2 - 1) * h**-0.5)
        self.w2 = nn.Parameter(torch.zeros(e, h, i))
        self.shared_experts = Mlp(h, i)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        e, h, i = self.w2.shape
        weights, load = self.gate(x)
        gate, up = F.linear(x, self.w13.reshape(-1, h)).view(*x.shape[:-1], e, 2, i).unbind(-2)
        hidden = F.silu(gate) * up * weights.to(gate.dtype)[..., None]
        routed = F.linear(hidden.flatten(-2), self.w2.transpose(0, 1).reshape(h, e * i))
        return routed + self.shared_experts(x), load


class Layer(nn.Module):
    """Pre-norm attention and feed-forward blocks on one residual stream."""

    def __init__(self, config: TinyConfig, index: int) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden, config.eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RmsNorm(config.hidden, config.eps)
        self.mlp: Mlp | Moe = Moe(config) if index >= config.dense_layers else Mlp(config.hidden, config.dense_width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor | None]:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        y, load = self.post_attention_layernorm(x), None
        if isinstance(self.mlp, Moe):
            y, load = self.mlp(y)
        else:
            y = self.mlp(y)
        return x + y, load


class TinyModel(nn.Module):
    """Token ids [b, t] -> logits [b, t, vocab] and the load of every mixture layer [layers, E]."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden)
        nn.init.normal_(self.embed_tokens.weight, std=0.5)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.layers))
        self.norm = RmsNorm(config.hidden, config.eps)
        self.lm_head = linear(config.hidden, config.vocab, zero=True)
        frequencies = config.theta ** (-torch.arange(0, config.rope, 2).float() / config.rope)
        angles = torch.outer(torch.arange(config.positions).float(), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed_tokens(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        loads = []
        for layer in self.layers:
            x, load = layer(x, cos, sin)
            if load is not None:
                loads.append(load)
        return self.lm_head(self.norm(x)), torch.stack(loads)

    @torch.no_grad()
    def balance(self, loads: Tensor, rate: float) -> None:
        """Raise the ranking bias of experts that got fewer tokens than the mean, lower it for the others."""
        routers = [layer.mlp.gate for layer in self.layers if isinstance(layer.mlp, Moe)]
        for router, load in zip(routers, loads, strict=True):
            router.e_score_correction_bias += rate * (load.mean() - load).sign()
