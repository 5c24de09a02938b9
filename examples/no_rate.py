"""Train without a learning rate, on one device, and see which rates were found.

python examples/no_rate.py
"""

import torch
from torch import nn

import hdet

NUM_STEPS = 600

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
model.to(device)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = hdet.AutoLR(optimizer, total_steps=NUM_STEPS)

for step in range(NUM_STEPS):
    x = torch.randn(64, 16, device=device)
    y = x[:, :1] * x[:, 1:2] + 0.1 * torch.randn(64, 1, device=device)
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    if step % 60 == 59:
        print(f"step {step + 1}: rate {scheduler.get_last_lr()[0]:.2e}, loss {loss:.4f}")
