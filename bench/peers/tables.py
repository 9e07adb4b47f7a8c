"""Tables of TSV to tensors with pandas' C reader, on one core.

    python3 tables.py parse|join ROOT
"""
import glob
import os
import resource
import sys
import time

os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
import numpy as np
import pandas as pd
import torch

torch.set_num_threads(1)
side, root = sys.argv[1:]
size = sum(os.path.getsize(path) for path in glob.glob(root + "/*/*")) / 1e6


def read(name):
    shards = sorted(glob.glob(f"{root}/*/{name}"))
    tables = [pd.read_csv(path, sep="\t", dtype={"ID": str}, engine="c").set_index("ID") for path in shards]
    return tables[0] if len(tables) == 1 else pd.concat(tables)


begin = time.perf_counter()
descriptors = read("descriptors.tsv")
x = torch.from_numpy(descriptors.to_numpy(np.float32))
if side == "join":
    y = torch.from_numpy(read("targets.tsv").loc[descriptors.index].to_numpy(np.float32))
    order = torch.randperm(len(x))
    rows = 0
    for first in range(0, len(order), 100):
        picked = order[first : first + 100]
        rows += len(x[picked]) + 0 * len(y[picked])
    assert rows == len(x)
seconds = time.perf_counter() - begin
print(size / seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
