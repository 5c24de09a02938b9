"""The demo's task: a small transformer on Python's own library sources, byte by byte.

The data is on every machine that runs Python, so the first command needs no download.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import nn

from hdet.errors import UsageError

VALIDATION_PART = 0.1


def corpus(max_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Training and validation bytes (uint8), from different files, the same at every call."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for path in folder.glob("*.py") if path.is_file())
    chunks: list[bytes] = []
    size = 0
    for path in files:
        if size >= max_bytes:
            break
        chunks.append(path.read_bytes())
        size += len(chunks[-1])
    if len(chunks) < 2:
        raise UsageError(
            f"the demo needs Python's library sources, found {len(chunks)} files in {folder}; "
            "install the interpreter with its .py files"
        )
    held_out = max(int(len(chunks) * VALIDATION_PART), 1)
    train, validation = b"".join(chunks[:-held_out]), b"".join(chunks[-held_out:])
    return (
        torch.frombuffer(bytearray(train), dtype=torch.uint8),
        torch.frombuffer(bytearray(validation), dtype=torch.uint8),
    )


def draw(data: torch.Tensor, num_sequences: int, length: int, seed: int) -> torch.Tensor:
    """Random windows ``[num_sequences, length + 1]``, a function of the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(data) - length, (num_sequences, 1), generator=generator)
    return data[starts + torch.arange(length + 1)].long()


class ByteModel(nn.Module):
    """A pre-norm transformer over bytes."""

    def __init__(
        self, *, width: int = 64, num_layers: int = 2, length: int = 64, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(_Block(width, dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of each next byte, in nats."""
        inputs, targets = sequences[:, :-1], sequences[:, 1:]
        hidden = self.embedding(inputs) + self.position[: inputs.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(self.norm(hidden))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class _Block(nn.Module):
    def __init__(self, width: int, dropout: float, num_heads: int = 4) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.num_heads = num_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        split = (batch, length, 3, self.num_heads, width // self.num_heads)
        query, key, value = self.qkv(self.norm_1(hidden)).view(split).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(batch, length, width)
        hidden = hidden + self.dropout(self.out(mixed))
        out: torch.Tensor = hidden + self.dropout(self.mlp(self.norm_2(hidden)))
        return out
