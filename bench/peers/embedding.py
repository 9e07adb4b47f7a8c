"""Lookups in sharded tables on two ranks over Gloo, one thread each; prints milliseconds of the lookup and of a
whole step with Adagrad, the medians of rank 0.

    python3 embedding.py hand|rowwise|tablewise|bags TABLES ROWS [WORKERS]

hand: written by hand with torch.distributed: one exchange of ids, one of rows, and one of gradients, for all
tables. The others are TorchRec's: an EmbeddingCollection that is sharded by rows or by tables, and an
EmbeddingBagCollection, whose lists have one id each.
"""
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

DIM = 32
IDS = 65536
BATCHES = 8
STEPS = 30
WARM_UP = 3


def batches(rank, tables, rows):
    torch.manual_seed(rank)
    each = IDS // tables
    return [[(rows * torch.rand(each, dtype=torch.double) ** 4).long() for _ in range(tables)] for _ in range(BATCHES)]


def median_ms(body):
    times = []
    for step in range(WARM_UP + STEPS):
        dist.barrier()
        begin = time.perf_counter()
        body(step % BATCHES)
        times.append((time.perf_counter() - begin) * 1000)
    return statistics.median(times[WARM_UP:])


class ByHand:
    """Row i of all tables together is on rank i mod W."""

    def __init__(self, rank, world, tables, rows):
        self.world = world
        self.all = [torch.cat([ids + table * rows for table, ids in enumerate(batch)]) for batch in batches(rank, tables, rows)]
        self.rows = torch.empty((tables * rows + world - 1) // world, DIM).uniform_(-0.05, 0.05)
        self.sums = torch.zeros_like(self.rows)
        self.gradient = torch.rand(len(self.all[0]), DIM)

    def look_up(self, batch):
        ids = self.all[batch]
        unique, self.inverse = torch.unique(ids, return_inverse=True)
        owner = unique % self.world
        self.order = torch.argsort(owner, stable=True)
        self.counts = torch.bincount(owner, minlength=self.world)
        theirs = torch.empty_like(self.counts)
        dist.all_to_all_single(theirs, self.counts)
        self.sent, self.received = self.counts.tolist(), theirs.tolist()
        self.asked = torch.empty(sum(self.received), dtype=torch.long)
        dist.all_to_all_single(self.asked, unique[self.order] // self.world, self.received, self.sent)
        found = torch.empty(len(unique), DIM)
        dist.all_to_all_single(found, self.rows.index_select(0, self.asked), self.sent, self.received)
        in_order = torch.empty_like(found)
        in_order[self.order] = found
        return in_order.index_select(0, self.inverse)

    def step(self, batch):
        self.look_up(batch)
        sums = torch.zeros(sum(self.sent), DIM).index_add_(0, self.inverse, self.gradient)
        received = torch.empty(len(self.asked), DIM)
        dist.all_to_all_single(received, sums[self.order], self.received, self.sent)
        touched, inverse = torch.unique(self.asked, return_inverse=True)
        gradient = torch.zeros(len(touched), DIM).index_add_(0, inverse, received) / (IDS * self.world)
        squares = self.sums.index_select(0, touched) + gradient * gradient
        self.sums.index_copy_(0, touched, squares)
        self.rows.index_add_(0, touched, gradient / (squares.sqrt() + 1e-10), alpha=-0.01)


class ByTorchRec:
    def __init__(self, kind, rank, world, tables, rows):
        import torchrec
        from torchrec.distributed.embedding_types import EmbeddingComputeKernel
        from torchrec.distributed.model_parallel import DistributedModelParallel
        from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
        from torchrec.distributed.planner.types import ParameterConstraints
        from torchrec.distributed.types import ShardingType
        from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

        names = [f"id{table}" for table in range(tables)]
        if kind == "bags":
            module = torchrec.EmbeddingBagCollection(device=torch.device("meta"), tables=[
                torchrec.EmbeddingBagConfig(name=f"table_{name}", embedding_dim=DIM, num_embeddings=rows, feature_names=[name])
                for name in names])
        else:
            module = torchrec.EmbeddingCollection(device=torch.device("meta"), tables=[
                torchrec.EmbeddingConfig(name=f"table_{name}", embedding_dim=DIM, num_embeddings=rows, feature_names=[name])
                for name in names])
        apply_optimizer_in_backward(torch.optim.Adagrad, module.parameters(), {"lr": 0.01})
        sharding = ShardingType.ROW_WISE if kind == "rowwise" else ShardingType.TABLE_WISE
        constraints = {f"table_{name}": ParameterConstraints(sharding_types=[sharding.value],
                                                            compute_kernels=[EmbeddingComputeKernel.FUSED.value])
                       for name in names}
        planner = EmbeddingShardingPlanner(topology=Topology(world_size=world, compute_device="cpu"), constraints=constraints)
        from torchrec.distributed.embedding import EmbeddingCollectionSharder
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        sharders = [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]
        plan = planner.collective_plan(module, sharders, dist.group.WORLD)
        self.model = DistributedModelParallel(module, device=torch.device("cpu"), plan=plan, sharders=sharders)
        self.batches = []
        for batch in batches(rank, tables, rows):
            self.batches.append(torchrec.KeyedJaggedTensor.from_lengths_sync(
                keys=names, values=torch.cat(batch), lengths=torch.ones(len(batch) * len(batch[0]), dtype=torch.int32)))

    def look_up(self, batch):
        result = self.model(self.batches[batch])
        result = result.wait() if hasattr(result, "wait") else result
        if hasattr(result, "values") and not callable(result.values):
            return [result.values]
        return [result.values()] if not isinstance(result, dict) else [jagged.values() for jagged in result.values()]

    def step(self, batch):
        found = self.look_up(batch)
        if getattr(self, "gradients", None) is None:
            self.gradients = [torch.rand_like(one) for one in found]
        torch.autograd.backward(found, self.gradients)


def work(rank, world, meeting, kind, tables, rows):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=world)
    side = ByHand(rank, world, tables, rows) if kind == "hand" else ByTorchRec(kind, rank, world, tables, rows)
    with torch.no_grad() if kind == "hand" else torch.enable_grad():
        lookup = median_ms(side.look_up)
        step = median_ms(side.step)
    if rank == 0:
        print(f"{lookup:.3f} {step:.3f}", flush=True)
    dist.barrier()
    os._exit(0)  # TorchRec's threads may keep the process alive


if __name__ == "__main__":
    kind, tables, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    world = int(sys.argv[4]) if len(sys.argv) > 4 else 2
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (world, os.path.join(folder, "meeting"), kind, tables, rows), nprocs=world)
