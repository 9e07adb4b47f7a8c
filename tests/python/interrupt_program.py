"""A rank that waits for another one is interrupted as by Ctrl-C; the ranks meet at a store of their own."""

import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

import tutti


class Folder:
    """A store of files."""

    def __init__(self, path):
        self.path = pathlib.Path(path)

    def set(self, key, value):
        part = self.path / f"{key.replace('/', '_')}.part"
        part.write_text(value)
        part.rename(part.with_suffix(""))

    def get(self, key, timeout):
        file = self.path / key.replace("/", "_")
        end = time.monotonic() + timeout
        while not file.exists():
            if time.monotonic() > end:
                raise TimeoutError(key)
            time.sleep(0.002)
        return file.read_text()


def run_rank(rank, folder):
    comm = tutti.init(store=Folder(folder), rank=rank, world=2)
    if rank == 1:
        sys.stdin.readline()
        try:
            comm.barrier()
        except tutti.PeerLost as error:
            print(error)
        return

    def say_when_it_waits():
        while not comm.waits:
            time.sleep(0.001)
        print("waits", flush=True)

    threading.Thread(target=say_when_it_waits).start()
    try:
        tutti.numpy.all_reduce(comm, np.ones(3))
    except KeyboardInterrupt:
        print("interrupted", flush=True)


def main():
    if len(sys.argv) > 1:
        return run_rank(int(sys.argv[1]), sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        first, second = (
            subprocess.Popen(
                [sys.executable, __file__, str(rank), folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for rank in (0, 1)
        )
        assert first.stdout.readline() == "waits\n"
        first.send_signal(signal.SIGINT)
        assert first.stdout.readline() == "interrupted\n"
        output, _ = second.communicate("go\n", timeout=60)
        assert "worker/0" in output or "rank 0 was interrupted" in output, output
        assert first.wait(60) == 0 and second.returncode == 0


if __name__ == "__main__":
    main()
