"""Several processes that share one job, started by `torchrun` (or anything that sets its variables).

Every process runs the same code on its own share; what must be whole is exchanged through a gloo group, which
works on any machine. Only rank 0 writes results.
"""

from __future__ import annotations

import atexit
import os
from datetime import timedelta
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist


class World(NamedTuple):
    """This process and how many there are."""

    rank: int
    size: int


def world() -> World:
    """Which process this is; joins the others on the first call when there are several."""
    if not dist.is_available():
        return World(0, 1)
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
            return World(0, 1)
        # Shares differ in length, and waiting for the longest is no failure.
        dist.init_process_group("gloo", timeout=timedelta(weeks=4))
        atexit.register(_leave)
    return World(dist.get_rank(), dist.get_world_size())


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def barrier() -> None:
    """Wait for all processes."""
    if world().size > 1:
        # A sum also works on a group of NCCL, should the caller have started one.
        dist.all_reduce(_exchanged(torch.zeros(1)))


def broadcast(tensor: Tensor, source: int) -> Tensor:
    """`tensor` of the process `source`, on every process; the others pass one of the same shape and dtype."""
    if world().size == 1:
        return tensor
    shared = _exchanged(tensor)
    dist.broadcast(shared, source)
    return shared.to(tensor.device)


def broadcast_text(text: str, source: int = 0) -> str:
    """`text` of the process `source`, on every process."""
    if world().size == 1:
        return text
    content = torch.frombuffer(bytearray(text.encode() or b"\0"), dtype=torch.uint8)
    length = int(broadcast(torch.tensor([len(content)]), source))
    padded = torch.zeros(length, dtype=torch.uint8)
    if world().rank == source:
        padded[:] = content
    return bytes(broadcast(padded, source).tolist()).decode().rstrip("\0")


def gather(tensor: Tensor) -> Tensor:
    """The tensors of all processes, equal in shape, one after the other along the first dimension."""
    own = _exchanged(torch.atleast_1d(tensor))
    parts = [torch.empty_like(own) for _ in range(world().size)]
    if len(parts) == 1:
        return own
    dist.all_gather(parts, own)
    return torch.cat(parts).to(tensor.device)


def _exchanged(tensor: Tensor) -> Tensor:
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    return tensor.contiguous().to(device)
