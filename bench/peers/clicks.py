"""The click model: 26 tables of 384,615 rows of 16 floats, 13 numbers, two hidden layers of 64, Adagrad, batches of
4,096 per rank that are in memory before; prints the examples per second of all ranks, and the peak of memory in MiB.

    python3 clicks.py torchrec|sparse|ddp-sparse|ddp-dense WORKERS THREADS

torchrec: tables sharded as TorchRec's planner chooses. sparse: one process with nn.EmbeddingBag(sparse=True).
ddp-sparse, ddp-dense: DistributedDataParallel over Gloo, with sparse and with dense gradients of the tables.
"""
import os
import resource
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

TABLES, ROWS, DIM, NUMBERS, BATCH = 26, 384615, 16, 13, 4096
BATCHES, WARM_UP, RATE = 8, 3, 0.05
NAMES = [f"id{table}" for table in range(TABLES)]


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(TABLES * DIM + NUMBERS, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                                    nn.Linear(64, 1))

    def forward(self, numbers, rows):
        return self.layers(torch.cat([numbers, *rows], 1)).squeeze(1)


class Plain(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=sparse) for _ in NAMES)
        self.dense = Dense()

    def forward(self, numbers, ids):
        offsets = torch.arange(len(numbers))
        return self.dense(numbers, [table(one, offsets) for table, one in zip(self.tables, ids)])


class Recommended(nn.Module):
    def __init__(self):
        super().__init__()
        import torchrec
        from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

        self.tables = torchrec.EmbeddingBagCollection(device=torch.device("meta"), tables=[
            torchrec.EmbeddingBagConfig(name=f"table_{name}", embedding_dim=DIM, num_embeddings=ROWS, feature_names=[name])
            for name in NAMES])
        apply_optimizer_in_backward(torch.optim.Adagrad, self.tables.parameters(), {"lr": RATE})
        self.dense = Dense()

    def forward(self, numbers, ids):
        return self.dense(numbers, [self.tables(ids).values()])


def model_of(kind):
    """Returns the model and the optimizer of what does not update itself."""
    if kind != "torchrec":
        model = Plain(sparse=kind.endswith("sparse"))
        if kind.startswith("ddp"):
            model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        return model, torch.optim.Adagrad(model.parameters(), RATE)
    from torchrec.distributed.model_parallel import DistributedModelParallel

    model = DistributedModelParallel(Recommended(), device=torch.device("cpu"))
    dense = [value for name, value in model.named_parameters() if "table_" not in name]
    return model, torch.optim.Adagrad(dense, RATE)


def batches(kind, rank):
    torch.manual_seed(rank)
    for _ in range(BATCHES):
        ids = [(ROWS * torch.rand(BATCH, dtype=torch.double) ** 4).long() for _ in NAMES]
        if kind == "torchrec":
            import torchrec

            ids = torchrec.KeyedJaggedTensor.from_lengths_sync(
                keys=NAMES, values=torch.cat(ids), lengths=torch.ones(TABLES * BATCH, dtype=torch.int32))
        yield torch.rand(BATCH, NUMBERS), ids, (torch.rand(BATCH) < 0.3).float()


def work(rank, workers, meeting, kind, threads):
    cores = sorted(os.sched_getaffinity(0))
    if threads == 1:
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=workers)
    data = list(batches(kind, rank))
    model, optimizer = model_of(kind)
    steps = 6 if kind == "ddp-dense" else 30
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            dist.barrier()
            begin = time.perf_counter()
        numbers, ids, clicks = data[step % BATCHES]
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(numbers, ids), clicks)
        loss.backward()
        optimizer.step()
        loss.item()
    seconds = time.perf_counter() - begin
    if rank == 0:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{workers * steps * BATCH / seconds:.1f} {peak:.1f}", flush=True)
    dist.barrier()
    os._exit(0)  # TorchRec's threads may keep the process alive


if __name__ == "__main__":
    kind, workers, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (workers, os.path.join(folder, "meeting"), kind, threads), nprocs=workers)
