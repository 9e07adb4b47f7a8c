"""What of PyTorch runs on the backend "tutti" unchanged, on each rank of a job started by torchrun: each training is
compared with one process that computes the same."""

import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import tutti.torch  # noqa: F401
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.torch_version import TorchVersion

dist.init_process_group("tutti")
rank, world = dist.get_rank(), dist.get_world_size()


def network():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4))


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8 * world, 12, generator=generator), torch.randn(8 * world, 4, generator=generator)


def own(values):
    return values.chunk(world)[rank]


def train(model, optimizer, part, steps=3):
    for step in range(steps):
        inputs, targets = (part(values) for values in batch(step))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()


def expect_close(model, what):
    for name, value in model.items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if not torch.allclose(whole, expected[name], rtol=1e-4, atol=1e-6):
            sys.exit(f"rank {rank}: {what}: {name} differs by {(whole - expected[name]).abs().max()}")


alone = network()
train(alone, torch.optim.Adam(alone.parameters(), 0.01), lambda values: values)
expected = {name: value.detach() for name, value in alone.state_dict().items()}
mesh = init_device_mesh("cpu", (world,))

for options in ({}, {"static_graph": True}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}):
    model = network()
    ddp = DistributedDataParallel(model, **options)
    train(ddp, torch.optim.Adam(ddp.parameters(), 0.01), own)
    expect_close(model.state_dict(), f"DDP {options}")

model = network()
ddp = DistributedDataParallel(model)
train(ddp, ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.01), own)
expect_close(model.state_dict(), "ZeroRedundancyOptimizer")

model = network()
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
train(model, torch.optim.Adam(model.parameters(), 0.01), own)
expect_close(get_model_state_dict(model), "FSDP2")

folder = [tempfile.mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(folder)
dcp.save(get_model_state_dict(model), checkpoint_id=folder[0])
restored = network()
fully_shard(restored, mesh=mesh)
state = get_model_state_dict(restored)
dcp.load(state, checkpoint_id=folder[0])
set_model_state_dict(restored, state)
expect_close(get_model_state_dict(restored), "torch.distributed.checkpoint")

model = network()
parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
train(model, torch.optim.Adam(model.parameters(), 0.01), lambda values: values)
expect_close(model.state_dict(), "tensor parallel")
matrix = torch.arange(4.0 * world * world).reshape(2 * world, 2 * world)
product = distribute_tensor(matrix, mesh, [Shard(0)]) @ distribute_tensor(matrix, mesh, [Shard(1)])
assert torch.equal(product.full_tensor(), matrix @ matrix)

# The stages of PyTorch 2.9 greet each other with 8 bytes where they expect 4, which ends the process with Gloo.
if world > 1 and TorchVersion(torch.__version__) >= "2.10":
    stages = [nn.Linear(6, 6) for _ in range(world)]
    generator = torch.Generator().manual_seed(3)
    for parameter in nn.ModuleList(stages).parameters():
        nn.init.normal_(parameter, generator=generator)
    inputs = torch.randn(8, 6, generator=generator)
    stage = PipelineStage(stages[rank], rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4)
    output = schedule.step(inputs) if rank == 0 else schedule.step()
    if rank == world - 1:
        assert torch.allclose(output, nn.Sequential(*stages)(inputs), rtol=1e-4, atol=1e-5)

batch_norm = nn.BatchNorm1d(5)
torch.manual_seed(1)
values = torch.randn(6 * world, 5)
normed = batch_norm(values)
# SyncBatchNorm is for GPUs in PyTorch; its statistics over all ranks are these sums.
sums = torch.stack([own(values).sum(0), own(values).square().sum(0)])
dist.all_reduce(sums)
mean, square = sums / len(values)
assert torch.allclose((values - mean) / (square - mean**2 + 1e-5).sqrt(), normed, atol=1e-5)

# Every reduction, of plain, transposed and lazily conjugated tensors.
for name, whole in (("BAND", "bitwise_and"), ("BOR", "bitwise_or"), ("BXOR", "bitwise_xor")):
    for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        every = [torch.randint(2 if dtype == torch.bool else 100, (6, 5)).to(dtype) for _ in range(world)]
        expected_bits = every[0]
        for each in every[1:]:
            expected_bits = getattr(torch, whole)(expected_bits, each)
        values = every[rank].t().contiguous().t()
        dist.all_reduce(values, getattr(dist.ReduceOp, name))
        assert torch.equal(values, expected_bits)
for factor in (2.5, torch.tensor(2.5)):
    premultiplied_sum = torch._C._distributed_c10d._make_nccl_premul_sum(factor)
    values = torch.full((3,), rank + 1.0)
    dist.all_reduce(values, premultiplied_sum)
    assert torch.equal(values, torch.full((3,), 2.5 * world * (world + 1) / 2))
    part, values = torch.empty(2), torch.full((2 * world,), rank + 1.0)
    dist.reduce_scatter_tensor(part, values, premultiplied_sum)
    assert torch.equal(part, torch.full((2,), 2.5 * world * (world + 1) / 2)) and values[0] == rank + 1
    values = torch.full((3,), rank + 1.0)
    dist.reduce(values, 0, premultiplied_sum)
    assert values[0] == (2.5 * world * (world + 1) / 2 if rank == 0 else rank + 1)
group = dist.group.WORLD
base = torch.complex(torch.full((4,), rank + 1.0), torch.full((4,), 2.0))
group.allreduce([base.conj()]).wait()
assert torch.equal(base, torch.full((4,), world * (world + 1) / 2 + 2j * world))
imaginary = torch.full((4,), 1j * (rank + 1)).conj().imag  # lazily negated
dist.all_reduce(imaginary)
assert torch.equal(imaginary, torch.full((4,), -world * (world + 1) / 2))

objects = [None] * world
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": r} for r in range(world)]
if TorchVersion(torch.__version__) >= "2.15":  # before, split_group() is for accelerators
    backwards = dist.split_group(split_ranks=[list(range(world))[::-1]])
    assert dist.get_rank(backwards) == world - 1 - rank
    objects = [None] * world
    dist.all_gather_object(objects, rank, group=backwards)
    assert objects == list(range(world))[::-1]
    first = dist.split_group(split_ranks=[[0]])
    assert (first == dist.GroupMember.NON_GROUP_MEMBER) == (rank > 0)
with ddp.no_sync():
    ddp(own(batch(0)[0])).sum().backward()
ddp(own(batch(0)[0])).sum().backward()

# Ranks with different numbers of batches.
model = network()
ddp = DistributedDataParallel(model)
with ddp.join():
    for _ in range(rank + 1):
        ddp(torch.ones(2, 12)).sum().backward()
dist.barrier()
dist.destroy_process_group()

# Again, with the same store: that of torchrun.
dist.init_process_group("tutti")
values = torch.ones(3)
dist.all_reduce(values)
assert torch.equal(values, torch.full((3,), float(world)))
dist.barrier()
if rank == 0:
    print("all is well", flush=True)
dist.destroy_process_group()
