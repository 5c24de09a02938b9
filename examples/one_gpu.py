"""Eight virtual replicas on one device: gradient accumulation with a spread.

python examples/one_gpu.py
"""

import torch
from torch import nn

import hdet

NUM_STEPS = 200

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = hdet.OneCycleLR(
    optimizer,
    max_lr=1e-2,
    total_steps=NUM_STEPS,
    spread_ratio=1 / 9,
    cycle_steps=20,
    replicas=hdet.VirtualReplicas(8),
    model=model,  # BatchNorm's statistics are averaged too
)
ensemble = scheduler.ensemble

for step in range(NUM_STEPS):
    x = torch.randn(64, 16, device=device)
    batch = {"x": x, "y": x[:, :1] * x[:, 1:2]}
    losses = []
    for _, part in ensemble.fan_out(batch):  # each replica's parameters, its part of the batch
        loss = nn.functional.mse_loss(model(part["x"]), part["y"])
        losses.append(loss.detach())
        (loss / ensemble.num_replicas).backward()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step(torch.stack(losses))
    if step % 50 == 49:
        print(f"step {step + 1}: loss {torch.stack(losses).mean():.4f}")

scheduler.converge()
