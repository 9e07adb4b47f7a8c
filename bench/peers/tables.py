"""Tables of TSV to tensors with what Python has for it, on one core.

    python3 tables.py pandas|polars|arrow parse|join ROOT
"""
import glob
import os
import resource
import sys
import time

os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
os.environ["POLARS_MAX_THREADS"] = "1"
import numpy as np

peer, side, root = sys.argv[1:]
size = sum(os.path.getsize(path) for path in glob.glob(root + "/*/*")) / 1e6


def read_pandas(path):
    import pandas as pd

    table = pd.read_csv(path, sep="\t", dtype={"ID": str}, engine="c").set_index("ID")
    return table, lambda ids: (table if ids is None else table.loc[ids.index]).to_numpy(np.float32)


def read_polars(path):
    import polars as pl

    table = pl.read_csv(path, separator="\t", schema_overrides={"ID": pl.String})

    def numbers(ids):
        ordered = table if ids is None else ids.select("ID").join(table, on="ID", how="left", maintain_order="left")
        return ordered.drop("ID").to_numpy().astype(np.float32, copy=False)

    return table, numbers


def read_arrow(path):
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    pa.set_cpu_count(1)
    table = csv.read_csv(
        path,
        csv.ReadOptions(use_threads=False),
        csv.ParseOptions(delimiter="\t"),
        csv.ConvertOptions(column_types={"ID": pa.string()}),
    )

    def numbers(ids):
        ordered = table if ids is None else table.take(pc.index_in(ids["ID"], table["ID"]))
        columns = [ordered[name].to_numpy().astype(np.float32) for name in ordered.column_names if name != "ID"]
        return np.column_stack(columns)

    return table, numbers


read = {"pandas": read_pandas, "polars": read_polars, "arrow": read_arrow}[peer]
[shard] = glob.glob(root + "/*")
begin = time.perf_counter()
descriptors, numbers = read(shard + "/descriptors.tsv")
x = numbers(None)
if side == "join":
    y = read(shard + "/targets.tsv")[1](descriptors)
    order = np.random.permutation(len(x))
    rows = 0
    for first in range(0, len(order), 100):
        picked = order[first : first + 100]
        rows += len(x[picked]) + 0 * len(y[picked])
    assert rows == len(x)
seconds = time.perf_counter() - begin
print(size / seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
