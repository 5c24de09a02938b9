"""A DDP script with one changed line.

torchrun --nproc-per-node 4 examples/ddp.py
"""

import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hdet

NUM_STEPS = 105

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank = dist.get_rank()
device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)

torch.manual_seed(0)


def train() -> None:
    """The whole script; what it builds is gone when it returns."""
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    # Before: torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=NUM_STEPS)
    scheduler = hdet.OneCycleLR(
        optimizer, 1e-2, total_steps=NUM_STEPS, spread_ratio=1 / 9, cycle_steps=20
    )

    data = torch.Generator(device).manual_seed(rank)  # every replica reads its own data
    for _ in range(NUM_STEPS):
        x = torch.randn(16, 16, device=device, generator=data)
        loss = nn.functional.mse_loss(ddp(x), x[:, :1] * x[:, 1:2])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step(loss)

    scheduler.converge()  # 105 steps are no multiple of 20
    if rank == 0:
        print(f"loss {loss.item():.4f}, base rate {scheduler.ensemble.base_values['lr/0']:.1e}")


train()
gc.collect()  # where DDP is still alive, torch with gloo may abort at exit, with hdet or without
dist.destroy_process_group()
