"""`ByteModel` over stacked parameters: C models in one forward pass.

Legend: C lanes, B windows, T bytes of each, N = B * T, W width, O outputs of a layer, V = 256.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import functional

NUM_HEADS = 4
"""As `ByteModel` has them."""

Params = Mapping[str, torch.Tensor]


def stacked_losses(params: Params, windows: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of each lane on the same windows ``[B, T + 1]``, in nats a byte: ``[C]``.

    Args:
        params: `ByteModel`'s, by its names, each with a leading dimension of C.
        windows: bytes as int64.
    """
    inputs, targets = windows[:, :-1], windows[:, 1:]
    batch, length = inputs.shape
    table_CVW = params["embedding.weight"]
    num_lanes, vocabulary, width = table_CVW.shape
    offsets = vocabulary * torch.arange(num_lanes, device=windows.device)
    rows_CBT = inputs + offsets[:, None, None]
    hidden = functional.embedding(rows_CBT, table_CVW.flatten(0, 1))
    hidden = hidden + params["position"][:, None, :length]
    hidden = hidden.reshape(num_lanes, batch * length, width)
    num_layers = sum(name.endswith("qkv.weight") for name in params)
    for layer in range(num_layers):
        hidden = _block(params, f"blocks.{layer}.", hidden, batch)
    logits = _linear(params, "head", _norm(params, "norm", hidden)).flatten(0, 1).float()
    wanted = targets.reshape(1, -1).expand(num_lanes, -1).reshape(-1)
    losses: torch.Tensor = functional.cross_entropy(logits, wanted, reduction="none")
    return losses.view(num_lanes, -1).mean(dim=1)


def _block(params: Params, prefix: str, hidden: torch.Tensor, batch: int) -> torch.Tensor:
    num_lanes, total, width = hidden.shape
    mixed = _linear(params, f"{prefix}qkv", _norm(params, f"{prefix}norm_1", hidden))
    split = (num_lanes * batch, total // batch, 3, NUM_HEADS, width // NUM_HEADS)
    query, key, value = mixed.view(split).permute(2, 0, 3, 1, 4)
    mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    mixed = mixed.transpose(1, 2).reshape(num_lanes, total, width)
    hidden = hidden + _linear(params, f"{prefix}out", mixed)
    inner = _linear(params, f"{prefix}mlp.0", _norm(params, f"{prefix}norm_2", hidden))
    return hidden + _linear(params, f"{prefix}mlp.2", functional.gelu(inner))


def _norm(params: Params, name: str, hidden_CNW: torch.Tensor) -> torch.Tensor:
    normed = functional.layer_norm(hidden_CNW, hidden_CNW.shape[-1:])
    return normed * params[f"{name}.weight"][:, None] + params[f"{name}.bias"][:, None]


def _linear(params: Params, name: str, inputs_CNW: torch.Tensor) -> torch.Tensor:
    out_CNO = torch.bmm(inputs_CNW, params[f"{name}.weight"].transpose(1, 2))
    if f"{name}.bias" not in params:
        return out_CNO
    # Added apart, and not by baddbmm, so that a compiler can fuse it with what comes next.
    return out_CNO + params[f"{name}.bias"][:, None].to(out_CNO.dtype)
