"""Judges the kernels of Tutti by PyTorch's own database of operators, with its samples of each operator.

check_operators.py LIBRARY values SAMPLES [NAME...]   compares results and gradients with those of LibTorch's kernels in float64
check_operators.py LIBRARY bits SAMPLES [NAME...]     compares their bits, for several instruction sets and numbers of threads
check_operators.py LIBRARY hashes SAMPLES [NAME...]   prints the bits of one process, for the above

SAMPLES is the largest number of samples of one operator and type, or "all". NAME is an operator's name in the database; without
one all are judged. LIBRARY is built of same_kernels_library.cc. Prints a line for each difference and a last line with the
numbers of samples and differences; fails if there are differences.
"""

import ctypes
import hashlib
import itertools
import os
import random
import subprocess
import sys
import types
import unittest
import warnings
from collections import Counter, defaultdict

import numpy
import torch

try:
    import expecttest  # noqa: F401
except ImportError:  # a class of PyTorch's tests derives from its only class; samples do not need it
    sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase)
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

# Their results are memory that was never written, or addresses.
UNDEFINED = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted", "resize_", "resize_as_"}
TYPES = (torch.float32, torch.float64)
# The largest accepted error, relative to the result and absolute.
TOLERANCES = {torch.float32: (1e-5, 1e-5), torch.float64: (1e-12, 1e-12)}
# LibTorch's kernels for three kinds of processor, each with the instructions of our loops and a number of threads.
MACHINES = (("default", "portable", 1), ("avx2", "avx2", 3), ("avx512", "avx512", 2))


class Kernels:
    """The library."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.tutti_called.restype = ctypes.c_char_p
        self.library.tutti_instructions.restype = ctypes.c_char_p
        self.library.tutti_torch_version.restype = ctypes.c_char_p

    def torch_version(self):
        return self.library.tutti_torch_version().decode()

    def use(self, on):
        self.library.tutti_same_kernels(int(on))

    def instructions(self):
        return self.library.tutti_instructions().decode().split()

    def use_instructions(self, name):
        self.library.tutti_use_instructions(name.encode())

    def remember_calls(self):
        self.library.tutti_remember_calls()

    def called(self):
        """The operators that were called since the last time, by kind."""
        kinds = defaultdict(set)
        for line in self.library.tutti_called().decode().splitlines():
            kind, name = line.split("\t")
            kinds[kind].add(name)
        return kinds


def seed(name):
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


def operators(names):
    for operator in op_db:
        if operator.name not in UNDEFINED and (not names or operator.name in names):
            yield operator


def samples_of(operator, dtype, limit):
    """The samples with their names. Our kernels draw them, since LibTorch's may draw others on another processor."""
    if dtype not in operator.supported_dtypes("cpu"):
        return
    name = f"{operator.formatted_name} {str(dtype)[6:]}"
    seed(name)
    try:
        gradients = operator.supports_autograd and dtype in operator.supported_backward_dtypes("cpu")
        samples = operator.sample_inputs("cpu", dtype, requires_grad=gradients)
        for index, sample in enumerate(itertools.islice(samples, limit)):
            yield f"{name} {index}", sample
    except Exception as error:  # samples that need something else than a CPU
        print(f"no samples of {name}: {str(error).splitlines()[0][:100]}", file=sys.stderr)


def is_floating(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def copied(value, dtype=None):
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return value
    to = dtype if dtype is not None and value.is_floating_point() else value.dtype
    return value.detach().to(to, copy=True).requires_grad_(value.requires_grad)


def weights(tensor):
    """What the gradient of a result is, small numbers that every type has. Made by NumPy, and not by what is judged."""
    numbers = (numpy.arange(tensor.numel()) * 5 % 8 - 2.5) / 4
    return torch.from_numpy(numbers.reshape(tuple(tensor.shape))).to(tensor.dtype)


def computed(operator, sample, name, dtype=None):
    """The results and the gradients of all leaves; or the error."""
    arguments = pytree.tree_map(lambda value: copied(value, dtype), (sample.input, sample.args, sample.kwargs))
    seed(name)
    try:
        results = sample.output_process_fn_grad(operator(arguments[0], *arguments[1], **arguments[2]))
        results = [each for each in pytree.tree_leaves(results) if isinstance(each, (torch.Tensor, bool, int, float))]
        leaves = [each for each in pytree.tree_leaves(arguments) if is_floating(each) and each.requires_grad]
        roots = [each for each in results if is_floating(each) and each.requires_grad]
        gradients = []
        if leaves and roots:
            gradients = torch.autograd.grad(roots, leaves, [weights(each) for each in roots], allow_unused=True)
        both = [(f"result {i}", each) for i, each in enumerate(results)]
        both += [(f"gradient {i}", each) for i, each in enumerate(gradients) if each is not None]
        return {where: each.detach() if isinstance(each, torch.Tensor) else torch.tensor(each) for where, each in both}
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:150] if str(error) else ''}"


def error_of(value, exact):
    """The largest error; infinite where one is NaN, or infinite, and the other is not."""
    if value.numel() == 0:
        return 0.0, 0.0
    value, exact = value.double(), exact.double()
    both = torch.isfinite(value) & torch.isfinite(exact)
    same = (value == exact) | (torch.isnan(value) & torch.isnan(exact))
    if not bool((both | same).all()):
        return float("inf"), 0.0
    size = exact[both].abs().max().item() if bool(both.any()) else 0.0
    return (value - exact)[both].abs().max().item() if bool(both.any()) else 0.0, size


def differences(ours, theirs, exact, dtype):
    """Texts of what differs between our results and those of LibTorch, whose errors are to be of the same size."""
    if isinstance(ours, str) or isinstance(theirs, str):
        if isinstance(ours, str) != isinstance(theirs, str):
            yield f"ours: {ours if isinstance(ours, str) else 'no error'}; LibTorch: {theirs if isinstance(theirs, str) else 'no error'}"
        return
    if ours.keys() != theirs.keys():
        yield f"ours gives {sorted(ours)}, LibTorch {sorted(theirs)}"
        return
    relative, absolute = TOLERANCES[dtype]
    for where, value in ours.items():
        other = theirs[where]
        if value.shape != other.shape or value.dtype != other.dtype:
            yield f"{where}: {tuple(value.shape)} {value.dtype}, LibTorch's {tuple(other.shape)} {other.dtype}"
        elif value.layout != torch.strided or value.is_complex():
            continue
        elif not value.is_floating_point():
            if not torch.equal(value, other):
                yield f"{where}: other whole numbers"
        else:
            if where == "result 0" and value.stride() != other.stride() and value.numel() > 1:
                yield f"{where}: strides {value.stride()}, LibTorch's {other.stride()}"
            reference = other if isinstance(exact, str) else exact.get(where, other)
            if error_of(other, reference)[0] == float("inf"):
                reference = other  # float64 alone has the number
            error, size = error_of(value, reference)
            usual, _ = error_of(other, reference)
            if error > max(absolute + relative * size, 4 * usual):
                yield f"{where}: error {error:.3g} of numbers up to {size:.3g}, LibTorch's {usual:.3g}"


# Operators that draw numbers, which are others than those of LibTorch.
DRAWS = ("uniform", "normal", "bernoulli", "exponential", "rand", "multinomial", "dropout", "poisson", "cauchy", "geometric")


def compare_values(kernels, limit, names):
    kernels.remember_calls()
    found = judged = 0
    missing = Counter()
    for operator in operators(names):
        for dtype in TYPES:
            kernels.use(True)
            samples = list(samples_of(operator, dtype, limit))
            ours = []
            kernels.called()
            for name, sample in samples:
                ours.append((computed(operator, sample, name), kernels.called()))
            kernels.use(False)
            for (name, sample), (value, called) in zip(samples, ours):
                missing.update(called["not covered"])
                draws = any(draw in each for each in called["ours"] | called["exact"] for draw in DRAWS)
                if not called["ours"] or draws:
                    continue
                judged += 1
                theirs = computed(operator, sample, name)
                exact = computed(operator, sample, name, torch.float64) if dtype != torch.float64 else theirs
                for text in differences(value, theirs, exact, dtype):
                    found += 1
                    used = " ".join(sorted(each[6:] for each in called["ours"]))
                    print(f"{name}: {text} [{used}]", flush=True)
    print("not covered:", ", ".join(f"{name} in {count}" for name, count in missing.most_common()))
    print(f"{judged} samples, {found} differences")
    return found


def bits_of(value):
    if isinstance(value, str):
        return value.split(":")[0]
    text = hashlib.sha256()
    for where, tensor in value.items():
        if tensor.layout != torch.strided:
            continue
        plain = (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).resolve_neg().clone()
        if plain.is_floating_point():
            plain[plain.isnan()] = float("nan")
            plain = plain.double()  # exact, and NumPy has the type
        text.update(f"{where} {tuple(tensor.shape)} {tensor.dtype}".encode() + numpy.ascontiguousarray(plain.numpy()).tobytes())
    return text.hexdigest()[:16]


def print_hashes(kernels, limit, names):
    kernels.remember_calls()
    kernels.use(True)
    for operator in operators(names):
        for dtype in TYPES:
            for name, sample in samples_of(operator, dtype, limit):
                kernels.called()
                hashed = bits_of(computed(operator, sample, name))
                called = kernels.called()
                print("\t".join((name, hashed, " ".join(sorted(called["not covered"])),
                                 " ".join(sorted(called["ours"] | called["exact"])))), flush=True)
    kernels.use(False)  # before LibTorch's table of operators is gone


def compare_bits(kernels, path, limit, names):
    runs = []
    for capability, instructions, threads in MACHINES:
        if instructions not in kernels.instructions():
            continue
        environment = dict(os.environ, ATEN_CPU_CAPABILITY=capability, TUTTI_JUDGED_INSTRUCTIONS=instructions,
                           OMP_NUM_THREADS=str(threads), OMP_WAIT_POLICY="passive",
                           PYTHONHASHSEED="0")  # some samples are in the order of a set
        output = subprocess.run([sys.executable, __file__, path, "hashes", str(limit or "all"), *names], env=environment,
                                stdout=subprocess.PIPE, text=True, check=True).stdout
        runs.append({line.split("\t")[0]: line.split("\t")[1:] for line in output.splitlines()})
    found = judged = 0
    for name, (hashed, missing, called) in runs[0].items():
        if missing:
            continue
        judged += 1
        others = [run.get(name, ["nothing"])[0] for run in runs[1:]]
        if any(other != hashed for other in others):
            found += 1
            print(f"{name}: {hashed} {' '.join(others)} [{called}]")
    print(f"{judged} samples of {len(runs[0])}, {found} differences")
    return found


def main():
    path, mode, samples, *names = sys.argv[1:]
    warnings.simplefilter("ignore")
    limit = None if samples == "all" else int(samples)
    kernels = Kernels(path)
    if torch.__version__.split("+")[0] != kernels.torch_version():
        print(f"not judged: the library needs LibTorch {kernels.torch_version()}, and this Python has {torch.__version__}")
        return 77
    if mode == "hashes":
        kernels.use_instructions(os.environ["TUTTI_JUDGED_INSTRUCTIONS"])
        print_hashes(kernels, limit, names)
        return 0
    found = compare_values(kernels, limit, names) if mode == "values" else compare_bits(kernels, path, limit, names)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
