"""Training on several devices: one process each; torch's DDP or FSDP reduces the gradients, and Weft computes
under both as it does on one device. With GPUs, each process has its own (NCCL); otherwise two processes share
the CPU (gloo).

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
    """A convolution, a norm, attention over positions, and a classifier."""

    def __init__(self, synchronised: bool) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16)
        # torch implements batch norm synchronized between processes only on GPUs.
        self.batch_norm = nn.SyncBatchNorm(16) if synchronised else nn.Identity()
        self.qkv, self.classes = nn.Linear(16, 48), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Forward pass."""
        rows = self.batch_norm(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(rows).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        rows = rows + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.classes(rows.mean(1))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """All batches of images and their classes."""
    torch.manual_seed(11)
    return torch.randn(STEPS, BATCH, 3, 6, 6), torch.randint(10, (STEPS, BATCH))


def train(model: nn.Module, rank: int, world: int, device: torch.device) -> None:
    """Trains; each process handles its share of every batch."""
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    for x, labels in zip(*data(), strict=True):
        mine = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
        loss = F.cross_entropy(model(x[mine].to(device)), labels[mine].to(device))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def train_by(kind: str, rank: int, world: int, device: torch.device) -> dict[str, Any]:
    """The training results, and the operators that Weft ran."""
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
    """Runs one process; the first one writes the results. `meeting` is the file through which the processes
    find each other."""
    gpus = torch.cuda.is_available()
    device = torch.device("cuda", rank) if gpus else torch.device("cpu")
    torch.set_num_threads(1)
    if gpus:
        torch.cuda.set_device(rank)
    backend, location = "nccl" if gpus else "gloo", f"file://{meeting}"
    dist.init_process_group(backend, init_method=location, rank=rank, world_size=world)
    values = {kind: train_by(kind, rank, world, device) for kind in kinds}
    if rank == 0:
        torch.save(values, results)
    dist.destroy_process_group()


def main(*kinds: str, results: str = "several_gpus.pt") -> None:
    """Starts the processes and waits for them."""
    world = max(torch.cuda.device_count(), 1) if torch.cuda.is_available() else 2
    # A process forked from a server exits as soon as its work is done. A spawned one finalizes Python first,
    # where torch's gloo threads, which outlive their group, can abort it.
    with tempfile.TemporaryDirectory() as folder:
        arguments = world, f"{folder}/meeting", kinds or ("ddp",), results
        processes.start_processes(work, arguments, nprocs=world, start_method="forkserver")


if __name__ == "__main__":
    main(*sys.argv[1:])
    print("what has been learnt is in several_gpus.pt")
