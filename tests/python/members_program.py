"""Ranks that go on when one is killed, and take it in again when it comes back (`tutti run --min`). The first of rank 1
that finds no file MARK makes it, and kills itself."""

import os
import pathlib
import signal
import sys

import numpy as np

import tutti

mark = pathlib.Path(sys.argv[1])
comm = tutti.init()
step = 0
while True:
    # One that has come later learns how far the others are.
    common = np.array([comm.change_is_due(), mark.exists(), step])
    ones = np.ones(1000)
    try:
        tutti.numpy.all_reduce(comm, common, "max")
        if common[0]:
            comm.reconfigure()
            continue
        tutti.numpy.all_reduce(comm, ones)
    except tutti.PeerLost as error:
        print(f"lost: {error}", flush=True)
        comm.reconfigure()
        continue
    assert ones[0] == comm.world
    step = int(common[2]) + 1
    if step >= 100 and common[1] and comm.world == 3:
        break
    if step == 20 and comm.rank == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
print(f"all is well: epoch {comm.epoch}", flush=True)
