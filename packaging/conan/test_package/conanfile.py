"""Builds the example that the package contains, and trains it with one worker and with two, which get the same weights."""

import io
import os

from conan import ConanFile
from conan.errors import ConanException
from conan.tools.build import can_run
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout


class TuttiTestConan(ConanFile):
    settings = "os", "compiler", "build_type", "arch"
    generators = "CMakeDeps", "VirtualRunEnv"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        package = self.dependencies["tutti"].package_folder
        cmake.configure(build_script_folder=os.path.join(package, "share", "tutti", "examples", "linear"))
        cmake.build()

    def test(self):
        if not can_run(self):
            return
        program = os.path.join(self.cpp.build.bindir, "linear") + " --lanes 2 --threads 1"
        alone = self.printed_by(program)
        together = self.printed_by(f"tutti run -n 2 -- {program}")
        if not alone.startswith("weights ") or together != f"[worker/0] {alone}":
            raise ConanException(f"one worker: {alone}; two: {together}")

    def printed_by(self, command):
        printed = io.StringIO()
        self.run(command, stdout=printed, env="conanrun")
        return printed.getvalue().strip()
