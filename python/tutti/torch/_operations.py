"""The operations of torch.distributed on CPU tensors, for a backend and for a process group of one backend."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import ReduceOp, Store

from ..communicator import Communicator, Op
from ..communicator import Work as TuttiWork
from ..errors import InvalidArgument, PeerLost, Timeout, Unimplemented
from ._tensors import (
    After,
    Tensor,
    addresses_of,
    counts_of,
    only,
    op_of,
    premultiplied,
    read,
    sum_type,
    type_of,
    written,
)
from ._work import Work


def _seconds(options: Any, usual: float) -> float:
    """The timeout of an operation, or 0 for the usual one."""
    given: timedelta | None = getattr(options, "timeout", None)
    if given is None or given <= timedelta(0):
        return 0
    seconds = given.total_seconds()
    return 0 if seconds == usual else seconds


def _behind(options: Any) -> bool:
    return bool(getattr(options, "asyncOp", True))


class Operations:
    """What torch.distributed calls. Has a communicator."""

    _comm: Communicator
    _store: Store
    _timeout: float  # of the communicator, in seconds

    def _begin(self, comm: Communicator, store: Store, timeout: timedelta) -> None:
        self._comm = comm
        self._store = store
        self._timeout = timeout.total_seconds()
        self._monitored = 0

    def _run(self, call: str, arguments: Sequence[Any], options: Any, kept: Any, result: Any, after: After) -> Work:
        behind = _behind(options)
        running = self._comm.call(
            call, *arguments, timeout=_seconds(options, self._timeout), behind=kept if behind else None
        )
        return Work([running] if running is not None else (), result, after)

    def _all(self, works: Sequence[Work], result: Any) -> Work:
        running: list[TuttiWork] = [each for work in works for each in work._running]
        return Work(running, result, [work._finish for work in works])

    # Sums.

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Work:
        tensor = only(tensors)
        if tensor.layout == torch.sparse_coo:
            return self.allreduce_sparse(tensors, opts)
        return self._all_reduce(tensor, tensors, opts)

    def allreduce_sparse(self, tensors: list[Tensor], opts: Any = None) -> Work:
        """Adds the elements of all ranks, each of which may have others, in the order of the ranks."""
        tensor, world = only(tensors), self._comm.world
        if opts is not None and opts.reduceOp != ReduceOp.SUM:
            raise Unimplemented("sparse tensors can only be summed")
        own = tensor.coalesce()
        numbers = [torch.empty(1, dtype=torch.int64) for _ in range(world)]
        self._all_gather(numbers, torch.tensor([own._nnz()]), (), opts).wait()
        sizes = [int(number) for number in numbers]
        indices = [torch.empty((own.sparse_dim(), size), dtype=torch.int64) for size in sizes]
        values = [torch.empty((size, *own.values().shape[1:]), dtype=own.dtype) for size in sizes]
        self._all_gather(indices, own.indices(), (), opts).wait()
        self._all_gather(values, own.values(), (), opts).wait()
        total = torch.zeros_like(tensor)
        for places, elements in zip(indices, values, strict=True):
            total = total + torch.sparse_coo_tensor(places, elements, tensor.shape)
        with torch.no_grad():
            tensor.copy_(total.coalesce())
        return Work((), tensors)

    def _all_reduce(self, tensor: Tensor, result: Any, opts: Any) -> Work:
        after: After = []
        plain = written(tensor, after, reads=True)
        op = Op.SUM if opts is None else op_of(opts.reduceOp)
        values = premultiplied(plain, getattr(opts, "reduceOp", None))
        arguments = (values.data_ptr(), plain.data_ptr(), plain.numel(), sum_type(plain), op)
        return self._run("tutti_all_reduce", arguments, opts, (plain, values), result, after)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Work:
        return self._all([self._all_reduce(tensor, [tensor], opts) for tensor in tensors], tensors)

    def reduce(self, tensors: list[Tensor], opts: Any) -> Work:
        tensor, after = only(tensors), list[Callable[[], None]]()
        root = opts.rootRank == self._comm.rank
        plain = written(tensor, after, reads=True) if root else read(tensor)
        values = premultiplied(plain, opts.reduceOp)
        op = op_of(opts.reduceOp)
        arguments = (values.data_ptr(), plain.data_ptr(), plain.numel(), sum_type(plain), op, opts.rootRank)
        return self._run("tutti_reduce", arguments, opts, (plain, values), tensors, after)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Work:
        output, parts = only(outputs), inputs[0]
        if len(parts) != self._comm.world:
            raise InvalidArgument(f"{len(parts)} tensors were given for {self._comm.world} ranks")
        flat = torch.cat([read(part).view(-1) for part in parts])
        return self._reduce_scatter(output, flat, counts_of(parts), outputs, opts)

    def _reduce_scatter(self, output: Tensor, flat: Tensor, counts: Any, result: Any, opts: Any) -> Work:
        after: After = []
        target = written(output, after)
        if counts[self._comm.rank] != target.numel() or output.dtype != flat.dtype:
            raise InvalidArgument(
                f"the output of a reduce_scatter has {target.numel()} elements of {output.dtype}; expected "
                f"{counts[self._comm.rank]} of {flat.dtype}"
            )
        op = Op.SUM if opts is None else op_of(opts.reduceOp)
        flat = premultiplied(flat, getattr(opts, "reduceOp", None))
        arguments = (flat.data_ptr(), target.data_ptr(), counts, sum_type(flat), op)
        return self._run("tutti_reduce_scatter_v", arguments, opts, (flat, target, counts), result, after)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        world = self._comm.world
        if input.numel() != output.numel() * world:
            raise InvalidArgument(
                "input tensor must be the same size as output size times world size: "
                f"{input.numel()} elements for {world} ranks of {output.numel()}"
            )
        counts = (ctypes.c_size_t * world)(*([output.numel()] * world))
        return self._reduce_scatter(output, read(input), counts, output, opts)

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        works = [self.reduce_scatter_single(out, into, opts) for out, into in zip(outputs, inputs, strict=True)]
        return self._all(works, outputs)

    # Movements.

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Work:
        tensor, after = only(tensors), list[Callable[[], None]]()
        root = opts.rootRank == self._comm.rank
        plain = read(tensor) if root else written(tensor, after)
        kind, count = type_of(plain)
        return self._run("tutti_broadcast", (plain.data_ptr(), count, kind, opts.rootRank), opts, plain, tensors, after)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Work:
        return self._all_gather(outputs[0], only(inputs), outputs, opts)

    def _all_gather(self, outputs: list[Tensor], tensor: Tensor, result: Any, opts: Any) -> Work:
        if len(outputs) != self._comm.world:
            raise InvalidArgument(f"{len(outputs)} tensors were given for {self._comm.world} ranks")
        after: After = []
        plain = read(tensor)
        targets = [written(output, after) for output in outputs]
        for target in targets:
            if target.dtype != plain.dtype:
                raise InvalidArgument(f"tensors of {target.dtype} and of {plain.dtype} in one all_gather")
        pointers, counts = addresses_of(targets), counts_of(targets)
        kind, count = type_of(plain)
        if counts[self._comm.rank] != count:
            raise InvalidArgument(
                f"this rank gives {plain.numel()} elements, but its output has {targets[self._comm.rank].numel()}"
            )
        arguments = (plain.data_ptr(), pointers, counts, kind)
        return self._run("tutti_all_gather_v", arguments, opts, (plain, targets, pointers, counts), result, after)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        if output.numel() != input.numel() * self._comm.world:
            raise InvalidArgument(
                "output tensor size must be equal to world_size times input tensor size: "
                f"{output.numel()} elements for {self._comm.world} ranks of {input.numel()}"
            )
        if output.dtype != input.dtype:
            raise InvalidArgument(
                f"output tensor must have the same type as input tensor: {output.dtype}, {input.dtype}"
            )
        after: After = []
        plain, target = read(input), written(output, after)
        kind, count = type_of(plain)
        arguments = (plain.data_ptr(), target.data_ptr(), count, kind)
        return self._run("tutti_all_gather", arguments, opts, (plain, target), output, after)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        works = [self.all_gather_single(out, into, opts) for out, into in zip(outputs, inputs, strict=True)]
        return self._all(works, outputs)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Work:
        works = [self._all_gather([rank[i] for rank in outputs], tensor, (), opts) for i, tensor in enumerate(inputs)]
        return self._all(works, outputs)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        tensor, after = read(only(inputs)), list[Callable[[], None]]()
        targets: list[Tensor] = []
        if opts.rootRank == self._comm.rank:
            if len(outputs) != 1 or len(outputs[0]) != self._comm.world:
                raise InvalidArgument(f"the root of a gather needs one tensor for each of {self._comm.world} ranks")
            targets = [written(output, after) for output in outputs[0]]
            for target in targets:
                if target.numel() != tensor.numel() or target.dtype != tensor.dtype:
                    raise InvalidArgument("the tensors of a gather need the same type and size on all ranks")
        elif outputs and outputs[0]:
            raise InvalidArgument("only the root of a gather gives outputs")
        pointers = addresses_of(targets) if targets else None
        kind, count = type_of(tensor)
        arguments = (tensor.data_ptr(), pointers, count, kind, opts.rootRank)
        return self._run("tutti_gather", arguments, opts, (tensor, targets, pointers), outputs, after)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        after: After = []
        target = written(only(outputs), after)
        parts: list[Tensor] = []
        if opts.rootRank == self._comm.rank:
            if len(inputs) != 1 or len(inputs[0]) != self._comm.world:
                raise InvalidArgument(f"the root of a scatter needs one tensor for each of {self._comm.world} ranks")
            parts = [read(part) for part in inputs[0]]
            for part in parts:
                if part.numel() != target.numel() or part.dtype != target.dtype:
                    raise InvalidArgument("the tensors of a scatter need the same type and size on all ranks")
        elif inputs and inputs[0]:
            raise InvalidArgument("only the root of a scatter gives inputs")
        pointers = addresses_of(parts) if parts else None
        kind, count = type_of(target)
        arguments = (pointers, target.data_ptr(), count, kind, opts.rootRank)
        return self._run("tutti_scatter", arguments, opts, (target, parts, pointers), outputs, after)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        after: After = []
        return self._all_to_all(
            [written(each, after) for each in outputs], [read(each) for each in inputs], outputs, opts, after
        )

    def _all_to_all(self, outputs: list[Tensor], inputs: list[Tensor], result: Any, opts: Any, after: After) -> Work:
        if len(outputs) != self._comm.world or len(inputs) != self._comm.world:
            raise InvalidArgument(f"an all_to_all of {self._comm.world} ranks needs as many tensors")
        kinds = {tensor.dtype for tensor in (*outputs, *inputs)}
        if len(kinds) != 1:
            raise InvalidArgument(f"tensors of several types in one all_to_all: {', '.join(map(str, kinds))}")
        sent, received = addresses_of(inputs), addresses_of(outputs)
        sent_counts, received_counts = counts_of(inputs), counts_of(outputs)
        arguments = (sent, sent_counts, received, received_counts, type_of(inputs[0])[0])
        kept = (outputs, inputs, sent, received, sent_counts, received_counts)
        return self._run("tutti_all_to_all_v", arguments, opts, kept, result, after)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_sizes: list[int], input_sizes: list[int], opts: Any = None
    ) -> Work:
        after: After = []
        target, plain = written(output, after), read(input)
        outputs = self._split(target, output_sizes, "output")
        inputs = self._split(plain, input_sizes, "input")
        return self._all_to_all(outputs, inputs, output, opts, after)

    def _split(self, tensor: Tensor, sizes: list[int], what: str) -> list[Tensor]:
        world = self._comm.world
        rows = tensor.shape[0] if tensor.dim() else 0
        if not sizes:
            if rows % world:
                raise InvalidArgument(
                    f"the first dimension of the {what}, {rows}, does not divide equally across {world} ranks"
                )
            sizes = [rows // world] * world
        if len(sizes) != world or sum(sizes) != rows:
            raise InvalidArgument(f"the sizes {sizes} are not those of {world} parts of {rows} rows of the {what}")
        return list(torch.split(tensor, sizes)) if rows else [tensor] * world

    # Messages. Both always run behind, so that two ranks may send to each other.

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> Work:
        plain = read(only(tensors))
        kind, count = type_of(plain)
        return self._run("tutti_send", (plain.data_ptr(), count, kind, to, tag), None, plain, tensors, [])

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Work:
        after: After = []
        target = written(only(tensors), after)
        kind, count = type_of(target)
        sender = ctypes.c_int(source)
        arguments = (target.data_ptr(), count, kind, source, tag, ctypes.byref(sender))
        work = self._run("tutti_recv", arguments, None, (target, sender), tensors, after)
        work.sender = sender
        return work

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        return self.recv(tensors, -1, tag)

    recvAnysource = recv_anysource

    def barrier(self, opts: Any = None) -> Work:
        return self._run("tutti_barrier", (), opts, (), (), [])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Like barrier(), but says which ranks have not come, and does not break the group. Through the store."""
        limit: timedelta = getattr(timeout, "timeout", timeout) or timedelta(0)
        rank, key = self._comm.rank, f"tutti/monitored/{self._monitored}"
        self._monitored += 1
        late = f"in {limit / timedelta(milliseconds=1):g} ms"
        if rank > 0:
            self._store.set(f"{key}/{rank}", "here")
            try:
                # Rank 0 waits as long for ranks that are late, and then tells.
                self._store.wait([f"{key}/passed"], limit + max(limit, timedelta(seconds=1)))
                verdict = self._store.get(f"{key}/passed").decode()
            except RuntimeError as error:
                verdict = str(error)
            if verdict != "all":
                raise PeerLost(
                    f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for "
                    f"send/recv from rank 0. Please check rank 0 logs for faulty rank. ({verdict})"
                )
            return
        deadline = time.monotonic() + limit.total_seconds()
        missing: list[int] = []
        for other in range(1, self._comm.world):
            left = deadline - time.monotonic()
            if left <= 0 and not missing and not wait_all_ranks:
                raise Timeout(f"Rank 0 timed out in monitoredBarrier {late}, before rank {other} was heard")
            try:
                self._store.wait([f"{key}/{other}"], timedelta(seconds=max(left, 0.001)))
            except RuntimeError:
                missing.append(other)
                if not wait_all_ranks:
                    break
        if missing:
            who = f"Rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
            text = f"[Rank 0]: {who} failed to pass monitoredBarrier {late}"
            self._store.set(f"{key}/passed", text)
            raise Timeout(text)
        self._store.set(f"{key}/passed", "all")

    # Other names of the same.

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
