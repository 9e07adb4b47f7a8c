"""Tutti for Conan 2, built from the tree that this recipe is in. docs/installing.md says how to call it."""

import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain
from conan.tools.files import copy, load

required_conan_version = ">=2.0"

TREE = os.path.join("..", "..")


class TuttiConan(ConanFile):
    name = "tutti"
    description = "trains LibTorch models on many processes"
    license = "Apache-2.0"
    package_type = "shared-library"
    settings = "os", "compiler", "build_type", "arch"
    options = {
        # The folder of a LibTorch, as CMAKE_PREFIX_PATH names it. It is a part of the package's identity: the package has links
        # to it, and programs need exactly its version.
        "libtorch": ["ANY"],
        # The distribution's fmt, OpenSSL and so on (packages.txt), in place of Conan Center's.
        "system_dependencies": [True, False],
    }
    default_options = {"libtorch": "", "system_dependencies": False}

    def set_version(self):
        header = load(self, os.path.join(self.recipe_folder, TREE, "tutti", "base", "version.h"))
        self.version = re.search(r'kVersion = "([^"]+)"', header).group(1)

    def export_sources(self):
        tree = os.path.join(self.recipe_folder, TREE)
        for pattern in "CMakeLists.txt", "LICENSE", "cmake/*", "tutti/*", "tools/*", "examples/*", "scripts/*":
            copy(self, pattern, src=tree, dst=self.export_sources_folder)

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("Tutti uses calls of Linux")

    def requirements(self):
        if self.options.system_dependencies:
            return
        # Tutti's headers include these two.
        self.requires("fmt/[>=9 <11]", transitive_headers=True, transitive_libs=True)
        self.requires("nlohmann_json/[>=3.11 <4]", transitive_headers=True)
        self.requires("cli11/[>=2.3 <3]")
        self.requires("highway/[>=1.0 <2]")
        self.requires("openssl/[>=3 <4]")
        self.requires("xxhash/[>=0.8.1 <1]")
        self.requires("zlib/[>=1.2.11 <2]")

    def layout(self):
        # As deep as the folders of ./dev, so that ccache finds what they have compiled.
        self.folders.build = "build"
        self.folders.generators = os.path.join("build", "generators")

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        # Not what happens to be installed on the machine that builds the package.
        for part in "MPI", "GRPC", "GLOO", "PARQUET":
            toolchain.cache_variables["TUTTI_WITH_" + part] = "OFF"
        toolchain.cache_variables["TUTTI_TESTS"] = False
        toolchain.cache_variables["TUTTI_BENCH"] = False
        if self.options.libtorch:
            toolchain.cache_variables["CMAKE_PREFIX_PATH"] = str(self.options.libtorch)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        # The examples are not installed.
        cmake.build(target="tutti_command")
        cmake.build(target="tutti_shared")

    def package(self):
        CMake(self).install()

    def package_info(self):
        # Tutti's CMake package, which also finds LibTorch, defines tutti::tutti.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "tutti")]
        self.cpp_info.libs = ["tutti"]
