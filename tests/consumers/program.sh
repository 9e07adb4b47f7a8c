# Sourced by the tests of this folder: builds examples/09_installed in the temporary folder $scratch, and runs it.
here=$(cd "$(dirname "$0")" && pwd)
scratch=${CONSUMERS_SCRATCH-$(mktemp -d)}
[ -n "${CONSUMERS_SCRATCH-}" ] || trap 'rm -rf "$scratch"' EXIT
# Nothing that could tell where Tutti is.
unset CMAKE_PREFIX_PATH PKG_CONFIG_PATH LD_LIBRARY_PATH CXXFLAGS LDFLAGS

fail() {
  echo "FAILED: $*"
  exit 1
}

quietly() { # command...
  "$@" >"$scratch/log" 2>&1 || {
    cat "$scratch/log"
    fail "$*"
  }
}

# One worker gets the same weights as two that `tutti run` has started.
check_program() { # program, folder of the command
  alone=$("$1" --lanes 2 --threads 1 2>"$scratch/log") || { cat "$scratch/log" && fail "the program"; }
  together=$("$2/tutti" run -n 2 -- "$1" --lanes 2 --threads 1 2>"$scratch/log") || {
    cat "$scratch/log"
    fail "two workers"
  }
  echo "$alone" | grep -qE '^weights [0-9a-f]{64}$' || fail "no weights in: $alone"
  [ "$together" = "[worker/0] $alone" ] || fail "one worker: $alone; two: $together"
}

check_libraries() { # program or library...
  for file in "$@"; do
    libraries=$(ldd "$file") || fail "ldd $file"
    if echo "$libraries" | grep -E 'not found'; then fail "libraries of $file"; fi
  done
}

version_of() { # tree
  sed -n 's/.*kVersion = "\(.*\)".*/\1/p' "$1/tutti/base/version.h"
}

# The folder of the LibTorch with which a folder was built; nothing if it is the system's, which CMake finds by itself.
libtorch_of() { # build
  library=$(sed -n 's/^TUTTI_TORCH_CPU_LIBRARY:FILEPATH=//p' "$1/CMakeCache.txt")
  case $library in
    /usr/lib/*) ;;
    *) dirname "$(dirname "$library")" ;;
  esac
}

# Whether warnings are errors decides whether ccache knows a result of that folder.
strictness_of() { # build
  grep '^TUTTI_WERROR:' "$1/CMakeCache.txt" | sed 's/^/-D/'
}

# The installed copy of the example.
example_in() { # prefix
  echo "$1/share/tutti/examples/linear"
}

# Builds the installed example with CMake in an empty folder, as C++17 without extensions and with warnings as errors. Nothing of
# Tutti's own flags may reach it but C++20.
find_package() { # cmake, prefix, folder
  quietly "$1" -S "$(example_in "$2")" -B "$3" "-DCMAKE_PREFIX_PATH=$2" -DCMAKE_CXX_STANDARD=17 -DCMAKE_CXX_EXTENSIONS=OFF \
    -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DCMAKE_COMPILE_WARNING_AS_ERROR=ON "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wconversion"
  quietly "$1" --build "$3"
  commands=$3/compile_commands.json
  grep -qE -- '-std=(gnu|c)\+\+20' "$commands" || fail "not C++20: $(cat "$commands")"
  if grep -E -- '-ffp-contract|-fPIC|-O2|cmake_pch|gtest|ccache' "$commands"; then fail "these are Tutti's own flags"; fi
  check_libraries "$3/linear"
  check_program "$3/linear" "$2/bin"
}
