"""The interface of Horovod, on each rank of a job: every name of it against a plain computation."""

import contextlib
import os
import warnings

import torch
import tutti.torch.hvd as hvd  # noqa: PLR0402 - the line that programs change
from torch import nn

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def expect(value, expected, what=""):
    if isinstance(expected, torch.Tensor):
        same = isinstance(value, torch.Tensor) and value.dtype == expected.dtype and value.shape == expected.shape
        if same and torch.equal(value, expected):
            return
    elif value == expected:
        return
    raise AssertionError(f"rank {rank} of {world}: {what}: got {value}, expected {expected}")


def expect_close(value, expected, what=""):
    if not torch.allclose(value, expected, rtol=1e-5, atol=1e-6):
        raise AssertionError(f"rank {rank} of {world}: {what}: got {value}, expected {expected}")


@contextlib.contextmanager
def expect_error(kind, text):
    try:
        yield
    except kind as error:
        if text not in str(error) or not isinstance(error, hvd.HorovodInternalError):
            raise AssertionError(f"rank {rank}: the error is {error!r}; expected '{text}'") from error
        return
    raise AssertionError(f"rank {rank}: no error; expected '{text}'")


rank = world = -1
for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "is_homogeneous", "barrier"):
    with expect_error(ValueError, "call hvd.init() first"):
        getattr(hvd, name)()
assert not hvd.is_initialized()
given = hvd.ProcessSet([0])
started = os.environ.get("WORLD_SIZE") or os.environ.get("OMPI_COMM_WORLD_SIZE") or "1"
hvd.init(process_sets=[given] if int(started) > 1 else "dynamic")
hvd.init()  # nothing happens
hvd.init(list(range(hvd.size())))
rank, world = hvd.rank(), hvd.size()
ranks = range(world)
several = world > 1


def check_ranks():
    assert hvd.is_initialized() and 0 <= rank < world
    expect((hvd.local_rank(), hvd.local_size()), (rank, world))  # on one host
    expect((hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()), (0, 1, True))
    for built in ("gloo_built", "gloo_enabled", "ddl_built", "ccl_built", "cuda_built", "rocm_built"):
        expect(getattr(hvd, built)(), False, built)
    expect(hvd.nccl_built(), 0)
    assert isinstance(hvd.mpi_built(), bool)
    if hvd.mpi_enabled():
        assert hvd.mpi_built() and isinstance(hvd.mpi_threads_supported(), bool)
    else:
        with expect_error(ValueError, "not connected by MPI"):
            hvd.mpi_threads_supported()
    with expect_error(NotImplementedError, "torch.profiler"):
        hvd.start_timeline("file")
    with expect_error(NotImplementedError, "torch.profiler"):
        hvd.stop_timeline()
    with expect_error(NotImplementedError, "reconfigure()"):
        _ = hvd.elastic
    assert not hasattr(hvd, "no_such_name")


# Sums.


def own(dtype, count=5):
    return (torch.arange(count) + rank + 1).to(dtype)


def all_own(dtype, count=5):
    return [(torch.arange(count) + r + 1).to(dtype) for r in ranks]


def check_types():
    for dtype in (*FLOATS, *INTEGERS, torch.complex64, torch.complex128):
        inputs = torch.stack(all_own(dtype))
        total = inputs.sum(0, dtype=torch.int64 if dtype in INTEGERS else dtype).to(dtype)
        mean = torch.div(total, world, rounding_mode="trunc") if dtype in INTEGERS else total / world
        expect(hvd.allreduce(own(dtype), op=hvd.Sum), total, f"sum of {dtype}")
        result = hvd.allreduce(own(dtype))
        assert result.dtype == dtype and torch.allclose(result, mean, rtol=1e-2), (dtype, result, mean)
        expect(hvd.allreduce(own(dtype), op=hvd.Product), inputs.prod(0).to(dtype), f"product of {dtype}")
        if not dtype.is_complex:
            expect(hvd.allreduce(own(dtype), op=hvd.Min), inputs.amin(0), f"minimum of {dtype}")
            expect(hvd.allreduce(own(dtype), op=hvd.Max), inputs.amax(0), f"maximum of {dtype}")
            scaled = hvd.allreduce(own(dtype), op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5)
            expect(scaled, total, f"factors of {dtype}")
            half = hvd.allreduce(own(dtype), op=hvd.Average, postscale_factor=0.5)
            expect(half, (total.double() / world / 2).to(dtype), f"factor of {dtype}")
    booleans = torch.tensor([rank == 0, True, False])
    expect(hvd.allreduce(booleans, op=hvd.Sum), torch.tensor([True, True, False]))
    expect(hvd.allreduce(booleans, op=hvd.Product), torch.tensor([not several, True, False]))
    expect(hvd.allreduce(torch.tensor(-7 - rank)), torch.tensor(int(sum(-7 - r for r in ranks) / world)))
    expect(hvd.allgather(booleans[:1]), torch.tensor([r == 0 for r in ranks]))
    moved = torch.tensor([rank], dtype=torch.uint16)  # cannot be added, but moved
    expect(hvd.allgather(moved).tolist(), list(ranks))
    expect(hvd.broadcast(moved, world - 1).tolist(), [world - 1])
    with expect_error(ValueError, "torch.uint16 cannot be combined"):
        hvd.allreduce(moved)
    with expect_error(ValueError, "booleans have no average"):
        hvd.allreduce(booleans)
    with expect_error(ValueError, "no minimum"):
        hvd.allreduce(own(torch.complex64), op=hvd.Min)
    with expect_error(NotImplementedError, "Adasum"):
        hvd.allreduce(own(torch.float32), op=hvd.Adasum)
    with expect_error(ValueError, "is on meta"):
        hvd.allreduce(torch.ones(2, device="meta"))


def check_allreduce():
    values = own(torch.float32, 6).view(2, 3)
    total = sum(all_own(torch.float32, 6)).view(2, 3)
    expect_close(hvd.allreduce(values, name="values"), total / world)
    expect(values, own(torch.float32, 6).view(2, 3), "the argument")
    expect(hvd.allreduce(values.t(), op=hvd.Sum), total.t().contiguous(), "strided")
    expect(hvd.allreduce(torch.tensor(float(rank)), op=hvd.Sum), torch.tensor(float(sum(ranks))), "scalar")
    expect(hvd.allreduce(torch.empty(0, 3)), torch.empty(0, 3), "nothing")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        expect(hvd.allreduce(values, average=False), total)
        expect_close(hvd.allreduce(values, True), total / world)
    assert [each.category for each in caught] == [DeprecationWarning] * 2
    with expect_error(ValueError, "only op is needed"):
        hvd.allreduce(values, average=True, op=hvd.Sum)
    for compression in (hvd.Compression.none, hvd.Compression.fp16):
        expect(hvd.allreduce(values, op=hvd.Sum, compression=compression), total)
        integers = own(torch.int32)
        expect(hvd.allreduce(integers, op=hvd.Sum, compression=compression), sum(all_own(torch.int32)))

    place = values.clone()
    assert hvd.allreduce_(place, op=hvd.Sum) is place
    expect(place, total)
    strided = values.clone().t()
    assert hvd.allreduce_(strided, op=hvd.Sum) is strided
    expect(strided, total.t())
    handles = [hvd.allreduce_async(values * each, op=hvd.Sum, name=f"value {each}") for each in range(5)]
    place = values.clone()
    in_place = hvd.allreduce_async_(place, op=hvd.Sum)
    for each in (3, 1, 4, 0, 2):
        expect(hvd.synchronize(handles[each]), total * each)
    while not hvd.poll(in_place):
        pass
    assert hvd.synchronize(in_place) is place
    expect(place, total)
    expect(hvd.synchronize(in_place), None, "a handle that was used")
    with expect_error(ValueError, "no operation with the handle"):
        hvd.poll(in_place)


def check_groups():
    def mixed():
        return [own(torch.float32, 4), own(torch.int64, 3), own(torch.float32, 6).view(3, 2), own(torch.float16, 1)]

    def totals():
        return [
            sum(all_own(torch.float32, 4)),
            sum(all_own(torch.int64, 3)),
            sum(all_own(torch.float32, 6)).view(3, 2),
            sum(all_own(torch.float16, 1)),
        ]

    def expect_all(values, expected):
        expect(len(values), len(expected))
        for value, each in zip(values, expected):
            expect(value, each)

    result = hvd.grouped_allreduce(mixed(), op=hvd.Sum, compression=hvd.Compression.fp16)
    assert isinstance(result, list)
    expect_all(result, totals())
    expect_all(hvd.synchronize(hvd.grouped_allreduce_async(mixed(), op=hvd.Sum)), totals())
    values = mixed()
    expect_all(hvd.grouped_allreduce_(values, op=hvd.Sum, name="group"), totals())
    expect_all(values, totals())
    values = mixed()
    handle = hvd.grouped_allreduce_async_(values, op=hvd.Sum)
    hvd.poll(handle)
    expect_all(hvd.synchronize(handle), totals())
    expect_all(values, totals())
    gathered = [torch.cat(all_own(torch.float32, 4)), torch.cat(all_own(torch.int64, 3))]
    expect_all(hvd.grouped_allgather(mixed()[:2]), gathered)
    expect_all(hvd.synchronize(hvd.grouped_allgather_async(mixed()[:2])), gathered)
    wide = [own(torch.float32, world * 2), own(torch.int64, world)]
    parts = [
        sum(all_own(torch.float32, world * 2)).chunk(world)[rank],
        sum(all_own(torch.int64, world))[rank : rank + 1],
    ]
    expect_all(hvd.grouped_reducescatter(wide, op=hvd.Sum), parts)
    expect_all(hvd.synchronize(hvd.grouped_reducescatter_async(wide, op=hvd.Sum)), parts)


# Movements.


def rows_of(r, count):
    return (torch.arange(count * 3).view(count, 3) + 100 * r).double()


def check_movements():
    for counts in ([r + 1 for r in ranks], [r % 2 for r in ranks], [0 for _ in ranks]):
        gathered = torch.cat([rows_of(r, counts[r]) for r in ranks])
        expect(hvd.allgather(rows_of(rank, counts[rank])), gathered, "allgather")
        expect(hvd.synchronize(hvd.allgather_async(rows_of(rank, counts[rank]), name="rows")), gathered)
    with expect_error(ValueError, "at least one dimension"):
        hvd.allgather(torch.tensor(1.0))

    for root in ranks:
        expected = rows_of(root, 2)
        values = rows_of(rank, 2)
        expect(hvd.broadcast(values, root), expected)
        expect(values, rows_of(rank, 2), "the argument")
        expect(hvd.synchronize(hvd.broadcast_async(values, root, name="values")), expected)
        strided = values.t().clone().t()
        assert hvd.broadcast_(strided, root) is strided
        expect(strided, expected)
        assert hvd.synchronize(hvd.broadcast_async_(values, root)) is values
        expect(values, expected)
    with expect_error(ValueError, f"rank {world}, which is not one of"):
        hvd.broadcast(torch.ones(1), world)

    # Rank r sends (r + to) % 3 rows to each rank.
    splits = [(rank + to) % 3 for to in ranks]
    sent = rows_of(rank, sum(splits))
    received_splits = [(r + rank) % 3 for r in ranks]
    received = torch.cat(
        [rows_of(r, sum((r + to) % 3 for to in ranks)).split([(r + to) % 3 for to in ranks])[rank] for r in ranks]
    )
    for given_splits, dtype in ((splits, torch.int32), (torch.tensor(splits), torch.int64)):
        output, counts = hvd.alltoall(sent, given_splits)
        expect(output, received)
        expect(counts, torch.tensor(received_splits, dtype=dtype))
    output, counts = hvd.synchronize(hvd.alltoall_async(torch.cat([sent, sent[:1]]), splits, name="more rows"))
    expect(output, received)
    even = rows_of(rank, world * 2)
    expected = torch.cat([rows_of(r, world * 2).chunk(world)[rank] for r in ranks])
    expect(hvd.alltoall(even), expected)
    output, counts = hvd.synchronize(hvd.alltoall_async(even))
    expect(counts.tolist(), [2] * world)
    with expect_error(ValueError, "the splits"):
        hvd.alltoall(even, [1] * (world + 1))
    with expect_error(ValueError, "the splits"):
        hvd.alltoall(even[:0], [1] * world)
    if several:
        with expect_error(ValueError, "do not divide equally"):
            hvd.alltoall(rows_of(rank, world + 1))

    for rows in (world * 2, world + 1, 1):
        each, more = divmod(rows, world)
        part = sum(rows_of(r, rows) for r in ranks).split([each + (r < more) for r in ranks])[rank]
        expect(hvd.reducescatter(rows_of(rank, rows), op=hvd.Sum), part, "reducescatter")
        expect_close(hvd.reducescatter(rows_of(rank, rows)), part / world)
        expect(hvd.reducescatter(rows_of(rank, rows), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), part * 2)
        expect(hvd.synchronize(hvd.reducescatter_async(rows_of(rank, rows), op=hvd.Sum, name="rows")), part)
        integers = rows_of(rank, rows).long()
        expect(hvd.reducescatter(integers), part.long().div(world, rounding_mode="trunc"))
    with expect_error(NotImplementedError, "hvd.Average and hvd.Sum"):
        hvd.reducescatter(even, op=hvd.Max)
    hvd.barrier()


def check_gradients():
    def gradient(function, rows=world * 2):
        values = rows_of(rank, rows).requires_grad_()
        result = function(values)
        weights = torch.arange(result.numel()).view(result.shape) + float(rank)
        (result * weights).sum().backward()
        return values.grad

    def weights(rows, r=rank):
        return torch.arange(rows * 3).view(rows, 3) + float(r)

    count = world * 2
    total = sum(weights(count, r) for r in ranks).double()
    expect_close(gradient(hvd.allreduce), total / world)
    expect_close(gradient(lambda values: hvd.allreduce(values, op=hvd.Sum)), total)
    expect_close(gradient(lambda values: hvd.allreduce(values, op=hvd.Sum, prescale_factor=0.5)), total / 2)
    expect_close(gradient(lambda values: hvd.grouped_allreduce([values, values], op=hvd.Sum)[1]), total)
    expect_close(
        gradient(lambda values: hvd.broadcast(values, 0)),
        total / world if rank == 0 else torch.zeros(count, 3).double(),
    )
    sizes = [r + 1 for r in ranks]
    whole = sum(weights(sum(sizes), r) for r in ranks).double() / world
    expect_close(gradient(hvd.allgather, rank + 1), whole.split(sizes)[rank])
    expect_close(gradient(lambda values: hvd.grouped_allgather([values])[0], rank + 1), whole.split(sizes)[rank])
    # Rank r's rows come back from where they were sent.
    expected = torch.cat([weights(count, to).chunk(world)[rank] for to in ranks]).double()
    expect_close(gradient(hvd.alltoall), expected)
    expect_close(gradient(lambda values: hvd.alltoall(values, [2] * world)[0]), expected)
    expected = torch.cat([weights(2, r) for r in ranks]).double()
    expect_close(gradient(hvd.reducescatter), expected)
    expect_close(gradient(lambda values: hvd.reducescatter(values, op=hvd.Sum)), expected * world)
    expect_close(gradient(lambda values: hvd.grouped_reducescatter([values])[0]), expected)


# Process sets.


def check_process_sets():
    assert hvd.global_process_set.ranks == list(ranks) and hvd.global_process_set.included()
    expect((hvd.global_process_set.size(), hvd.global_process_set.rank()), (world, rank))
    with expect_error(ValueError, "already a process set"):
        hvd.add_process_set(list(ranks))
    with expect_error(ValueError, "different ranks of 0 to"):
        hvd.add_process_set([world])
    with expect_error(ValueError, "list of ranks"):
        hvd.ProcessSet(["a"])
    with expect_error(ValueError, "list of ranks"):
        hvd.ProcessSet(1)
    unknown = hvd.ProcessSet([0])
    expect((unknown.size(), unknown.rank()), (None, None))
    with expect_error(ValueError, "is not known"):
        hvd.allreduce(torch.ones(1), process_set=unknown)
    assert not hvd.remove_process_set(unknown) and not hvd.remove_process_set(hvd.global_process_set)
    if not several:
        return
    expect(given.size(), 1)
    assert given.included() == (rank == 0)
    even = hvd.add_process_set(hvd.ProcessSet(range(0, world, 2))) if world > 2 else given
    odd = hvd.add_process_set(range(1, world, 2))
    mine, others = (odd, even) if rank % 2 else (even, odd)
    assert mine.included() and not others.included() and str(mine.ranks) in str(mine)
    expect(mine.rank(), rank // 2)
    expect(others.size(), len(others.ranks))
    with expect_error(ValueError, f"rank {rank} is not a member"):
        hvd.allreduce(torch.ones(1), process_set=others)
    expect(hvd.allreduce(torch.tensor(rank), op=hvd.Sum, process_set=mine), torch.tensor(sum(mine.ranks)))
    expect(hvd.allgather(torch.tensor([rank]), process_set=mine).tolist(), mine.ranks)
    expect(hvd.broadcast(torch.tensor(rank), mine.ranks[-1], process_set=mine).item(), mine.ranks[-1])
    expect(hvd.broadcast_object({"rank": rank}, mine.ranks[0], process_set=mine), {"rank": mine.ranks[0]})
    received, _ = hvd.alltoall(torch.tensor([rank] * mine.size()), [1] * mine.size(), process_set=mine)
    expect(received.tolist(), mine.ranks)
    expect(hvd.reducescatter(torch.ones(mine.size()), op=hvd.Sum, process_set=mine).tolist(), [mine.size()])
    hvd.barrier(process_set=mine)
    with expect_error(ValueError, "which is not one of"):
        hvd.broadcast(torch.ones(1), others.ranks[0], process_set=mine)
    assert hvd.remove_process_set(odd)
    expect(odd.process_set_id, None)
    again = hvd.add_process_set(list(range(1, world, 2)))
    if again.included():
        expect(hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=again).item(), again.size())
    assert hvd.remove_process_set(even) and hvd.remove_process_set(again)


# Objects and optimisers.


def check_objects():
    everything = {"rank": rank, "list": [1, "two", None], "tensor": torch.full((rank + 1,), rank)}
    for root in ranks:
        expect(hvd.broadcast_object(everything, root)["tensor"], torch.full((root + 1,), root))
    expect(hvd.broadcast_object("x" * rank, world - 1, name="text"), "x" * (world - 1))
    expect(hvd.allgather_object({"rank": "r" * rank}), [{"rank": "r" * r} for r in ranks])


def network(seed=7):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))


def batch(step, rows=4):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(rows * world, 6, generator=generator), torch.randn(rows * world, 2, generator=generator)


def own_part(values):
    return values.chunk(world)[rank]


def expect_same_model(model, alone, what):
    for (name, value), expected in zip(model.named_parameters(), alone.parameters()):
        if not torch.allclose(value, expected, rtol=1e-4, atol=1e-6):
            raise AssertionError(f"rank {rank}: {what}: {name} differs by {(value - expected).abs().max()}")


def loss_of(model, inputs, targets):
    return nn.functional.mse_loss(model(inputs), targets)


def check_broadcasts():
    for form in (lambda m: m.state_dict(), lambda m: list(m.named_parameters()), lambda m: list(m.parameters())):
        model = network(rank)
        hvd.broadcast_parameters(form(model), root_rank=world - 1)
        expect_same_model(model, network(world - 1), "broadcast_parameters")
    with expect_error(ValueError, "a dict or a list"):
        hvd.broadcast_parameters(1, 0)
    with expect_error(ValueError, "is no tensor"):
        hvd.broadcast_parameters({"name": 1}, 0)

    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1), betas=(0.5 + rank / 10, 0.9))
    if rank == 0:  # the others have no state yet
        for step in range(2):
            loss_of(model, *batch(step)).backward()
            optimizer.step()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for name, value in model.state_dict().items():
        expect(value, before[name], "a parameter after broadcast_optimizer_state")
    expect((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"]), (0.1, (0.5, 0.9)))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    alone = network()
    expected = torch.optim.Adam(alone.parameters(), lr=0.1, betas=(0.5, 0.9))
    for step in range(3):
        if step == 2:
            optimizer.zero_grad()
            loss_of(model, *batch(step)).backward()
            optimizer.step()
            expected.zero_grad()
        loss_of(alone, *batch(step)).backward()
        expected.step()
    expect_same_model(model, alone, "broadcast_optimizer_state")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0, model=model)
    expect(len(optimizer.state), 0)


def trained_alone(make, steps=3, passes=1, clip=None):
    model = network()
    optimizer = make(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        for each in range(passes):
            (loss_of(model, *batch(step * passes + each)) / passes).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return model


def check_optimizer():
    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    def adam(parameters):
        return torch.optim.AdamW(parameters, lr=0.01)

    cases = (
        (sgd, {}),
        (adam, {}),
        (sgd, {"gradient_predivide_factor": 2.0}),
        (sgd, {"groups": 2}),
        (sgd, {"groups": [[0, 2], [5]]}),
        (sgd, {"num_groups": 3}),
        (sgd, {"compression": hvd.Compression.fp16}),
    )
    for make, options in cases:
        alone = trained_alone(make)
        model = network() if rank == 0 else network(rank)
        hvd.broadcast_parameters(model.state_dict(), 0)
        options = dict(options)
        if isinstance(options.get("groups"), list):
            every = list(model.parameters())
            options["groups"] = [[every[place] for place in group] for group in options["groups"]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(), **options)
        assert isinstance(optimizer, type(make(model.parameters())))
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, *map(own_part, batch(step))).backward()
            if several:
                assert optimizer._next == len(optimizer._buckets), (
                    "not all gradients were sent during the backward pass"
                )
                with expect_error(ValueError, "zero_grad() after backward()"):
                    optimizer.zero_grad()
            optimizer.step()
        if options.get("compression") is not hvd.Compression.fp16:
            expect_same_model(model, alone, f"DistributedOptimizer {make.__name__} {list(options)}")
        else:
            for value, expected in zip(model.parameters(), alone.parameters()):
                assert torch.allclose(value, expected, atol=1e-2), "fp16"
        for value in model.parameters():
            expect(hvd.broadcast(value.detach(), 0), value.detach(), "the weights of rank 0")


def check_optimizer_passes():
    def make(parameters):
        return torch.optim.SGD(parameters, lr=0.1)

    model = network()
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), backward_passes_per_step=2)
    for step in range(3):
        optimizer.zero_grad()
        for each in range(2):
            (loss_of(model, *map(own_part, batch(step * 2 + each))) / 2).backward()
        optimizer.step()
    expect_same_model(model, trained_alone(make, passes=2), "backward_passes_per_step")
    if several:
        for each in range(2):
            loss_of(model, *map(own_part, batch(each))).backward()
        with expect_error(ValueError, "was computed more than 2 times"):
            loss_of(model, *map(own_part, batch(0))).backward()
        optimizer.synchronize()

    # Clipped between synchronize() and step().
    model = network()
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters())
    for step in range(3):
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, *map(own_part, batch(step))).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        with optimizer.skip_synchronize():
            optimizer.step()
    expect_same_model(model, trained_alone(make, clip=0.01), "skip_synchronize")
    loss_of(model, *map(own_part, batch(0))).backward()
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    assert len(caught) == 1 and "skip_synchronize()" in str(caught[0].message)

    # A closure, and a schedule that holds the optimiser that was wrapped.
    model, alone = network(), network()
    inner = make(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    expected = make(alone.parameters())
    expected_schedule = torch.optim.lr_scheduler.StepLR(expected, 1, 0.5)
    for step in range(3):

        def closure(step=step):
            optimizer.zero_grad()
            loss = loss_of(model, *map(own_part, batch(step)))
            loss.backward()
            return loss

        optimizer.step(closure)
        expected.zero_grad()
        loss_of(alone, *batch(step)).backward()
        expected.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            schedule.step()
        expected_schedule.step()
    expect_same_model(model, alone, "a closure")
    loss_of(model, *map(own_part, batch(0))).backward()
    optimizer.load_state_dict(optimizer.state_dict())  # as if no gradient had been computed
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(2)
    expect(optimizer.backward_passes_per_step, 2)


class Branches(nn.Module):
    """Ranks use different layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, inputs, both=None):
        if both is None:
            return self.last((self.first if rank % 2 else self.second)(inputs))
        parts = inputs.chunk(world)
        return torch.cat([self.last((self.first if r % 2 else self.second)(part)) for r, part in enumerate(parts)])


def check_optimizer_differences():
    # Layers that some ranks did not use.
    model, alone = Branches(), Branches()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), groups=3
    )
    expected = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, *map(own_part, batch(step))).backward()
        optimizer.step()
        expected.zero_grad()
        inputs, targets = batch(step)
        nn.functional.mse_loss(alone(inputs, both=True), targets).backward()
        expected.step()
    expect_same_model(model, alone, "layers that are not used")

    # Sparse gradients of an embedding, and parameters that are added or do not need gradients.
    for as_dense in (False, True):
        torch.manual_seed(1)
        table, alone = nn.Embedding(10, 4, sparse=True), nn.Embedding(10, 4, sparse=True)
        alone.load_state_dict(table.state_dict())
        head = nn.Linear(4, 2)
        head.bias.requires_grad_(False)
        fixed = head.bias.clone()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0.5), sparse_as_dense=as_dense)
        optimizer.add_param_group({"params": list(head.parameters())})
        expected = torch.optim.SGD(alone.parameters(), lr=0.5)
        for step in range(3):
            words = (torch.arange(3 * world) * (step + 3)) % 10
            optimizer.zero_grad()
            table(own_part(words)).square().sum().backward()
            optimizer.step()
            expected.zero_grad()
            (alone(words).square().sum() / world).backward()
            expected.step()
        expect_same_model(table, alone, f"an embedding, as dense: {as_dense}")
        expect(head.bias, fixed)
    own_sparse = torch.sparse_coo_tensor([[rank, 0]], [1.0, 2.0], (world,), check_invariants=True)
    total = torch.ones(world) + torch.eye(world)[0] * 2 * world
    expect(hvd.sparse_allreduce_async(own_sparse, "sparse", hvd.Sum)().to_dense(), total)
    expect_close(hvd.sparse_allreduce_async(own_sparse, "sparse", hvd.Average)().to_dense(), total / world)

    # Members of a process set train, others do not.
    if several:
        members = hvd.add_process_set([0, world - 1]) if world > 2 else hvd.global_process_set
        model = network()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), process_set=members)
        (loss_of(model, *batch(0)) * (rank + 1)).backward()
        optimizer.step()
        alone = network()
        (loss_of(alone, *batch(0)) * ((1 + world) / 2 if members.included() else rank + 1)).backward()
        torch.optim.SGD(alone.parameters(), lr=0.1).step()
        expect_same_model(model, alone, "a process set")

    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for text, options in (
        ("is for op=hvd.Average", {"gradient_predivide_factor": 2.0, "op": hvd.Sum}),
        ("expected a positive number", {"backward_passes_per_step": 0}),
        ("pairs of a name", {"named_parameters": list(model.parameters())}),
        ("the same name: a", {"named_parameters": [("a", each) for each in model.parameters()]}),
        ("1 parameters of the optimiser are not in", {"named_parameters": list(model.named_parameters())[1:]}),
        ("a positive number, or a list", {"groups": -1}),
        ("lists of parameters", {"groups": [[1]]}),
        ("twice in the groups", {"groups": [list(model.parameters())] * 2}),
    ):
        with expect_error(ValueError, text):
            hvd.DistributedOptimizer(sgd, **options)
    if several:
        with expect_error(NotImplementedError, "Adasum"):
            hvd.DistributedOptimizer(sgd, op=hvd.Adasum)


def check_batch_norm():
    def values(step):
        return torch.randn(sum(r + 2 for r in ranks), 3, 4, generator=torch.Generator().manual_seed(step)).double()

    sizes = [r + 2 for r in ranks]
    for momentum in (0.1, None):
        synced, plain = hvd.SyncBatchNorm(3, momentum=momentum).double(), nn.BatchNorm1d(3, momentum=momentum).double()
        with torch.no_grad():
            for norm in (synced, plain):
                norm.weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
        for step in range(3):
            whole = values(step).requires_grad_()
            part = values(step).split(sizes)[rank].clone().requires_grad_()
            expected = plain(whole)
            output = synced(part)
            expect_close(output, expected.split(sizes)[rank], "SyncBatchNorm")
            (expected**3).sum().backward()
            (output**3).sum().backward()
            expect_close(part.grad, whole.grad.split(sizes)[rank], "the gradient of SyncBatchNorm")
        expect_close(hvd.allreduce(synced.weight.grad, op=hvd.Sum), plain.weight.grad)
        expect_close(synced.running_mean, plain.running_mean)
        expect_close(synced.running_var, plain.running_var)
        expect(synced.num_batches_tracked, plain.num_batches_tracked)
        expect_close(synced.eval()(part), plain.eval()(part))
    half = hvd.SyncBatchNorm(3)(values(0).to(torch.bfloat16))
    expect(half.dtype, torch.bfloat16)
    with expect_error(ValueError, "at least two dimensions"):
        hvd.SyncBatchNorm(3)(torch.ones(3))


# Ranks that have no data left.


def check_join():
    for _ in range(2):
        for step in range(rank + 2):  # rank r has r + 2 steps
            working = [r for r in ranks if r + 2 > step]
            for dtype in (torch.float32, torch.int64, torch.bfloat16):
                value = hvd.allreduce(torch.full((3, step + 1), rank + 1).to(dtype), op=hvd.Sum)
                expect(value, torch.full((3, step + 1), sum(r + 1 for r in working)).to(dtype), "join")
            expect_close(hvd.allreduce(torch.tensor(1.0)), torch.tensor(len(working) / world), "an average after join")
            hvd.barrier()
        expect(hvd.join(), world - 1, "the last rank that has joined")
    expect(hvd.allreduce(torch.tensor(1.0)), torch.tensor(1.0), "after all have joined")

    # Trained with uneven numbers of steps: a sum over those that have data, divided by the number of all ranks.
    model, alone = network(), network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), groups=2
    )
    steps = [3 + 2 * ((r + 1) % world) for r in ranks]
    for step in range(steps[rank]):
        optimizer.zero_grad()
        loss_of(model, *map(own_part, batch(step))).backward()
        optimizer.step()
    last = hvd.join()
    expect(last, steps.index(max(steps)), "the rank that trained longest")
    expected = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(max(steps)):
        expected.zero_grad()
        parts = list(zip(*(values.chunk(world) for values in batch(step))))
        sum(loss_of(alone, *parts[r]) / world for r in ranks if step < steps[r]).backward()
        expected.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=last)
    expect_same_model(model, alone, "join")

    if several:
        if rank == 0:
            for call in (
                lambda: hvd.allgather(torch.ones(1)),
                lambda: hvd.broadcast(torch.ones(1), 0),
                lambda: hvd.alltoall(torch.ones(world)),
                lambda: hvd.reducescatter(torch.ones(world)),
            ):
                # Ranks other than 0 have joined, or are about to.
                with expect_error(NotImplementedError, "has called join()"):
                    call()
        expect(hvd.join() in ranks, True)


def check_different_calls():
    """Calls that do not fit together are an error on all ranks, and not a wrong result."""
    if not several:
        return
    for one, other in (
        (lambda: hvd.allreduce(torch.ones(2), name="a"), lambda: hvd.allreduce(torch.ones(2), name="b")),
        (lambda: hvd.allreduce(torch.ones(2, 3)), lambda: hvd.allreduce(torch.ones(3, 2))),
        (lambda: hvd.allreduce(torch.ones(2)), lambda: hvd.allreduce(torch.ones(2), prescale_factor=2.0)),
        (lambda: hvd.allgather(torch.ones(2, 3)), lambda: hvd.allgather(torch.ones(2, 2))),
        (lambda: hvd.allgather(torch.ones(2)), lambda: hvd.broadcast(torch.ones(2), 0)),
        (lambda: hvd.broadcast(torch.ones(2), 0), lambda: hvd.broadcast(torch.ones(2), 1)),
    ):
        with expect_error(ValueError, "the same operations in the same order"):
            (one if rank == 0 else other)()
    handle = hvd.allreduce_async(torch.ones(2), name=f"rank {rank}")
    with expect_error(hvd.HorovodInternalError, "with another name"):
        hvd.synchronize(handle)
    expect(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(world)), "after errors")
    # Optimisers with the same parameters in another order.
    model = network()
    named = list(model.named_parameters())
    parameters = [each for _, each in (named if rank else reversed(named))]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1), named)
    loss_of(model, *batch(0)).backward()
    with expect_error(ValueError, "the same operations in the same order"):
        optimizer.step()


for check in (
    check_ranks,
    check_types,
    check_allreduce,
    check_groups,
    check_movements,
    check_gradients,
    check_process_sets,
    check_objects,
    check_broadcasts,
    check_optimizer,
    check_optimizer_passes,
    check_optimizer_differences,
    check_batch_norm,
    check_join,
    check_different_calls,
):
    check()
missing = [name for name in hvd.__all__ if not hasattr(hvd, name)]
expect(missing, [])
hvd.shutdown()
hvd.shutdown()  # nothing happens
assert not hvd.is_initialized()
with expect_error(ValueError, "call hvd.init() first"):
    hvd.allreduce(torch.ones(1))
print("all is well", flush=True)
