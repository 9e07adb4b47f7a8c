"""Every operation of tutti.numpy, on each rank of a job. Started by numpy_test.sh."""

import os
import sys

import numpy as np

import tutti
from tutti.lanes import LaneSum, Sampler, crc32c, lane_seed, lanes_of

comm = tutti.init(timeout=60)
rank, world = comm.rank, comm.world
ranks = range(world)


def expect(what, expected):
    if not np.array_equal(what, expected):
        sys.exit(f"rank {rank}: {what} is not {expected}")


def expect_error(kind, part, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        assert part in str(error), error
    else:
        sys.exit(f"rank {rank}: no {kind.__name__} with '{part}'")


for dtype in ("float16", "float32", "float64", "complex64", "complex128", "int8", "int16", "int32", "int64", "uint8"):
    for count in (0, 1, 5, 70001):
        array = np.full(count, rank + 1).astype(dtype)
        tutti.numpy.all_reduce(comm, array)
        expect(array, np.full(count, world * (world + 1) // 2).astype(dtype))
array = np.array([rank == 0, True])
tutti.numpy.all_reduce(comm, array, "product")
expect(array, [world == 1, True])
for op, whole in (("band", np.bitwise_and), ("bor", np.bitwise_or), ("bxor", np.bitwise_xor)):
    for dtype in ("int8", "int16", "int32", "int64", "uint8"):
        every = np.array([[37 * r + 11 * i for i in range(700)] for r in ranks]).astype(dtype)
        array = every[rank].copy()
        tutti.numpy.all_reduce(comm, array, op)
        expect(array, whole.reduce(every))
    every = np.array([[r % 2 == 0, r == 0, True, False] for r in ranks])
    array = every[rank].copy()
    tutti.numpy.all_reduce(comm, array, op)
    expect(array, whole.reduce(every))
array = np.arange(3.0) + rank
tutti.numpy.all_reduce(comm, array, tutti.Op.MAX)
expect(array, np.arange(3.0) + world - 1)
array = np.array([rank + 1.0])
tutti.numpy.all_reduce(comm, array, "average")
expect(array, [(world + 1) / 2])
array = np.array([rank + 1.0])
tutti.numpy.reduce(comm, array, "min", root=world - 1)
expect(array, [1.0 if rank == world - 1 else rank + 1.0])

array = np.full(4, rank)
tutti.numpy.broadcast(comm, array, root=world - 1)
expect(array, np.full(4, world - 1))
everything = np.empty(2 * world)
tutti.numpy.all_gather(comm, everything, np.array([rank, -rank], dtype=float))
expect(everything, np.array([[r, -r] for r in ranks], dtype=float).ravel())
pieces = [np.empty(r, dtype=np.int32) for r in ranks]
tutti.numpy.all_gather_into(comm, pieces, np.full(rank, rank, dtype=np.int32))
for r in ranks:
    expect(pieces[r], np.full(r, r))
part = np.empty(1)
tutti.numpy.reduce_scatter(comm, part, np.arange(world) * (rank + 1.0))
expect(part, [rank * world * (world + 1) / 2])
received = np.empty(world, dtype=np.int64)
tutti.numpy.all_to_all(comm, received, 10 * rank + np.arange(world))
expect(received, 10 * np.arange(world) + rank)
pieces = [np.empty(r + 1) for r in ranks]
tutti.numpy.all_to_all_into(comm, pieces, [np.full(rank + 1, 10.0 * rank + r) for r in ranks])
for r in ranks:
    expect(pieces[r], np.full(r + 1, 10.0 * r + rank))
gathered = [np.empty(2) for _ in ranks] if rank == 0 else None
tutti.numpy.gather(comm, gathered, np.array([rank, 1.0]))
for r, each in enumerate(gathered or ()):
    expect(each, [r, 1.0])
own = np.empty(1)
tutti.numpy.scatter(comm, own, [np.array([5.0 * r]) for r in ranks] if rank == 0 else None)
expect(own, [5.0 * rank])

# Messages around a ring, with tags that are taken in another order, and from any rank.
if world > 1:
    left, right = (rank - 1) % world, (rank + 1) % world
    works = [tutti.numpy.send(comm, np.array([rank, tag]), right, tag=tag, behind=True) for tag in (1, 2, 3)]
    message = np.empty(2, dtype=np.int64)
    for tag, source in ((3, left), (1, None), (2, left)):
        expect(tutti.numpy.recv(comm, message, source, tag=tag), left)
        expect(message, [left, tag])
    for work in works:
        work.wait()

# Behind, with buffers that nobody else keeps.
works = [tutti.numpy.all_reduce(comm, np.ones(1000), behind=True) for _ in range(10)]
del works
array = np.ones(3)
ended = []
work = tutti.numpy.all_reduce(comm, array, behind=True)
work.then(lambda: ended.append(True))
work.wait()
expect(array, np.full(3, world))
assert work.done()
assert comm.call("tutti_barrier", behind=False) is None
comm.barrier()

if rank % 2 == 0:
    group = comm.group(list(range(0, world, 2)), "even")
    array = np.ones(1)
    tutti.numpy.all_reduce(group, array)
    expect(array, [(world + 1) // 2])
    group.close()


# Sums over lanes, some without data, against the tree in NumPy.
def tree(lanes, begin, size):
    if size == 1:
        return lanes[begin] if begin < len(lanes) else None
    left, right = tree(lanes, begin, size // 2), tree(lanes, begin + size // 2, size // 2)
    return left if right is None else right if left is None else left + right


for count in range(1, 10):
    values = np.sin(np.arange(count * 37).reshape(count, 37) * 1e3).astype("float32")
    room = np.empty(37, "float32")
    total = LaneSum(comm, count, room.ctypes.data, 37, tutti.Type.FLOAT32)
    here = lanes_of(rank, world, count)
    assert sorted(lane for r in ranks for lane in lanes_of(r, world, count)) == list(range(count))
    for step in range(4):
        empty = {lane for lane in range(count) if (lane * 7 + step) % 3 == 0} if step else set()
        for lane in here:
            room[:] = values[lane] if lane not in empty else np.nan
            total.add(has_data=lane not in empty)
        total.finish(3 if step == 2 else 0)
        expected = tree([None if lane in empty else values[lane] for lane in range(count)], 0, 16)
        expected = np.zeros(37, "float32") if expected is None else expected
        expect(room, expected / np.float32(3) if step == 2 else expected)
    if len(here) > 0:
        total.add()
        total.reset()
        if len(here) > 1:
            expect_error(tutti.InvalidArgument, "have to be added", total.finish)
        for _ in here:
            total.add()
        expect_error(tutti.InvalidArgument, "already", total.add)
        total.reset()
sampler = Sampler(23, lanes=3, batch=4, seed=5)
assert sampler.steps_per_epoch == 2
for epoch in range(2):
    drawn = [i for step in (0, 1) for lane in range(3) for i in sampler.examples(2 * epoch + step, lane)]
    assert sorted(drawn) == list(range(23)) and drawn != sorted(drawn)
assert Sampler(23, lanes=3, batch=4, drop_remainder=True).steps_per_epoch == 1
assert Sampler(23, lanes=3, batch=4, shuffle=False).examples(1, 2) == [20, 21, 22]
expect_error(tutti.InvalidArgument, "both must be 1 or more", Sampler, 23, lanes=0, batch=4)
expect_error(tutti.InvalidArgument, "lane 3 of 3", sampler.examples, 0, 3)
assert len({lane_seed(1, step, lane) for step in range(9) for lane in range(9)}) == 81
assert crc32c(b"123456789") == 0xE3069283 and crc32c(b"6789", crc32c(b"12345")) == 0xE3069283

expect_error(tutti.InvalidArgument, "cannot be sent", tutti.numpy.all_reduce, comm, np.array(["text"]))
expect_error(tutti.InvalidArgument, "an array of NumPy, not [1, 2]", tutti.numpy.all_reduce, comm, [1, 2])
expect_error(tutti.InvalidArgument, "no operation 99", tutti.numpy.all_reduce, comm, np.ones(1), 99)
expect_error(tutti.InvalidArgument, "a whole number", tutti.numpy.send, comm, np.ones(1), 0, tag="x")
expect_error(tutti.InvalidArgument, "waits for its message", tutti.numpy.recv, comm, np.ones(1), behind=True)
if rank == 0:
    expect_error(tutti.InvalidArgument, "the root has to pass", tutti.numpy.gather, comm, None, np.ones(1))
    expect_error(tutti.InvalidArgument, "the root has to pass", tutti.numpy.scatter, comm, np.ones(1), None)
expect_error(tutti.InvalidArgument, "not C-contiguous", tutti.numpy.all_reduce, comm, np.ones((4, 4))[:, 1])
expect_error(tutti.InvalidArgument, "there is no operation", tutti.numpy.all_reduce, comm, np.ones(1), "mean")
expect_error(tutti.InvalidArgument, "only those of integers", tutti.numpy.all_reduce, comm, np.ones(1), "bxor")
expect_error(ValueError, "there is no rank 99", tutti.numpy.broadcast, comm, np.ones(1), root=99)
expect_error(tutti.InvalidArgument, "tag is 1099511627776", tutti.numpy.send, comm, np.ones(1), 0, tag=2**40)
expect_error(tutti.InvalidArgument, "source is 4294967296", tutti.numpy.recv, comm, np.ones(1), 2**32)
expect_error(tutti.InvalidArgument, "root is 4294967296", tutti.numpy.broadcast, comm, np.ones(1), 2**32)
expect_error(tutti.InvalidArgument, "no transport 'udp'", tutti.init, transport="udp")
expect_error(tutti.InvalidArgument, "never change", comm.reconfigure)

# A child of this process has no communicator; a closed one is an error.
if os.fork() == 0:
    expect_error(tutti.InvalidArgument, "was closed", comm.barrier)
    sys.exit(0)
assert os.wait()[1] == 0
if world == 1:
    comm.close()
    expect_error(tutti.InvalidArgument, "was closed", comm.barrier)

# A rank that does not come is named, and all have the same error from then on.
if world > 1:
    if rank == world - 1:
        expect_error(tutti.Error, f"worker/{rank}", tutti.numpy.recv, comm, np.ones(1), 0, timeout=60)
    else:
        expect_error(tutti.Timeout, f"worker/{world - 1}", comm.barrier, timeout=0.5)
    expect_error(tutti.Error, f"worker/{world - 1}", comm.barrier)
print("all is well", flush=True)
