"""PyTorch's own tests of torch.distributed, on the backend "tutti": prints what passed, failed, and was skipped and why.

Usage: distributed_suite.py [--world N] [--as-gloo] [--transport shm|tcp] [TEST...]
The tests are those of PyTorch's wheel. --as-gloo also runs those that it makes only for a backend of that name.
"""

from __future__ import annotations

import argparse
import collections
import importlib.machinery
import importlib.util
import multiprocessing
import os
import sys
import tempfile
import types
import unittest

parser = argparse.ArgumentParser()
parser.add_argument("--world", default="2")
parser.add_argument("--as-gloo", action="store_true")
parser.add_argument("--transport", default="")
parser.add_argument("tests", nargs="*")
asked = parser.parse_args()

# Processes that are started import this module again, and find these.
os.environ.setdefault("BACKEND", "tutti")
os.environ.setdefault("WORLD_SIZE", asked.world)
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp(prefix="tutti-suite-"))
if asked.transport:
    os.environ["TUTTI_COMM"] = asked.transport

from torch.testing._internal.common_distributed import DistTestCases

for feature in ("ddp", "subgroup", "plugin"):
    DistTestCases.backend_feature[feature].add("tutti")

import tutti.torch  # noqa: F401

SUITE = "torch.testing._internal.distributed.distributed_test"


def suite_with_name() -> types.ModuleType:
    """The module of the tests, in which "tutti" stands beside "gloo" and, for all_to_all, beside "mpi"."""
    spec = importlib.util.find_spec(SUITE)
    assert spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader)
    source = spec.loader.get_source(SUITE)
    for old, new in (
        ('BACKEND == "mpi" or BACKEND == "gloo"', 'BACKEND in ("gloo", "tutti")'),
        ('BACKEND != "gloo"', 'BACKEND not in ("gloo", "tutti")'),
        ('BACKEND != "mpi", "Only MPI supports', 'BACKEND not in ("mpi", "tutti"), "Only MPI supports'),
        (
            "    if BACKEND not in backends:",
            '    if BACKEND not in ({*backends, "tutti"} if "gloo" in backends else backends):',
        ),
    ):
        assert source is not None and old in source, old
        source = source.replace(old, new)
    module = importlib.util.module_from_spec(spec)
    sys.modules[SUITE] = module
    exec(compile(source or "", spec.origin or SUITE, "exec", dont_inherit=True), module.__dict__)  # noqa: S102
    return module


distributed_test = suite_with_name() if asked.as_gloo else importlib.import_module(SUITE)


class TestTutti(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self) -> None:
        super().setUp()
        # Forked, they need not import PyTorch again.
        self._start_processes(multiprocessing.get_context("fork").Process)


class Result(unittest.TextTestResult):
    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        self.passed = 0

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.passed += 1


def main() -> int:
    loader = unittest.TestLoader()
    names = asked.tests or loader.getTestCaseNames(TestTutti)
    suite = unittest.TestSuite(TestTutti(name) for name in names)
    runner = unittest.TextTestRunner(verbosity=2, resultclass=Result)
    result = runner.run(suite)
    skipped = collections.Counter(reason for _, reason in result.skipped)
    print(f"passed {result.passed}, failed {len(result.failures) + len(result.errors)}, skipped {len(result.skipped)}:")
    for reason, count in skipped.most_common():
        print(f"  {count:4} {reason}")
    for test, _ in (*result.failures, *result.errors):
        print(f"FAILED {test.id().rpartition('.')[2]}")
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
