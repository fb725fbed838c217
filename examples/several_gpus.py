"""Training on several devices: one process each, torch's DDP or FSDP adds up the gradients, and Weft computes
under both as it does under one. With GPUs a process has one of them (NCCL); else two share the CPU (gloo).

    python examples/several_gpus.py [ddp] [fsdp]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
import weft.torch
from torch import nn

F = nn.functional
STEPS, BATCH = 3, 8


class Model(nn.Module):
    """A convolution, a norm, attention over positions, and classes."""

    def __init__(self, synchronised: bool) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16)
        # torch has batch norm with statistics of all processes on GPUs alone.
        self.batch_norm = nn.SyncBatchNorm(16) if synchronised else nn.Identity()
        self.qkv, self.classes = nn.Linear(16, 48), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As torch calls it."""
        rows = self.batch_norm(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(rows).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        rows = rows + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.classes(rows.mean(1))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """All batches of images, and their classes."""
    torch.manual_seed(11)
    return torch.randn(STEPS, BATCH, 3, 6, 6), torch.randint(10, (STEPS, BATCH))


def train(model: nn.Module, rank: int, world: int, device: torch.device) -> None:
    """Each process takes its share of every batch."""
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    for x, labels in zip(*data(), strict=True):
        mine = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
        loss = F.cross_entropy(model(x[mine].to(device)), labels[mine].to(device))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def train_by(kind: str, rank: int, world: int, device: torch.device) -> dict[str, Any]:
    """What has been learnt, and what Weft has served."""
    torch.manual_seed(0)
    model: nn.Module = Model(synchronised=device.type == "cuda").to(device)
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    else:
        model = nn.parallel.DistributedDataParallel(model)
    with weft.torch.enable() as weft_under:
        train(model, rank, world, device)
    values = ((name.removeprefix("module."), value) for name, value in model.state_dict().items())
    state = {name: (v.full_tensor() if hasattr(v, "full_tensor") else v).cpu() for name, v in values}
    return {"state": state, "report": dict(weft_under.report())}


def work(rank: int, world: int, meeting: str, kinds: Sequence[str], results: str) -> None:
    """One process; the first writes the results. meeting: a file through which they find each other."""
    gpus = torch.cuda.is_available()
    device = torch.device("cuda", rank) if gpus else torch.device("cpu")
    torch.set_num_threads(1)
    if gpus:
        torch.cuda.set_device(rank)
    backend, place = "nccl" if gpus else "gloo", f"file://{meeting}"
    dist.init_process_group(backend, init_method=place, rank=rank, world_size=world)
    found = {kind: train_by(kind, rank, world, device) for kind in kinds}
    if rank == 0:
        torch.save(found, results)
    dist.destroy_process_group()


def main(*kinds: str, results: str = "several_gpus.pt") -> None:
    """Starts the processes, and waits for them."""
    world = max(torch.cuda.device_count(), 1) if torch.cuda.is_available() else 2
    # Forked from a server, a process leaves at once when its work is done. Spawned, it takes Python down
    # first, and torch's threads of gloo, which outlive their group, can abort it there.
    with tempfile.TemporaryDirectory() as folder:
        arguments = world, f"{folder}/meeting", kinds or ("ddp",), results
        processes.start_processes(work, arguments, nprocs=world, start_method="forkserver")


if __name__ == "__main__":
    main(*sys.argv[1:])
    print("what has been learnt is in several_gpus.pt")
