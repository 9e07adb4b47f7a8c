# Compiles for 64-bit ARM on another machine, by Debian's cross compiler, and runs there under QEMU what CMake and ctest run.
# Libraries are looked for only in CMAKE_PREFIX_PATH, an environment variable, so that this machine's are not found.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CROSSCOMPILING_EMULATOR ${CMAKE_CURRENT_LIST_DIR}/../scripts/arm;run)
if(DEFINED ENV{CMAKE_PREFIX_PATH})
  string(REPLACE ":" ";" tutti_prefixes "$ENV{CMAKE_PREFIX_PATH}")
  set(TUTTI_ARM_ROOTS "${tutti_prefixes}" CACHE STRING "Folders with libraries for ARM" FORCE)
endif()
set(CMAKE_FIND_ROOT_PATH ${TUTTI_ARM_ROOTS})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
foreach(prefix IN LISTS TUTTI_ARM_ROOTS)
  # Libraries that others need are beside them.
  string(APPEND CMAKE_EXE_LINKER_FLAGS_INIT " -Wl,-rpath-link,${prefix}/lib -Wl,-rpath-link,${prefix}/lib/aarch64-linux-gnu")
  if(EXISTS ${prefix}/shlibs)
    set(TUTTI_SHLIBS ${prefix}/shlibs) # scripts/arm
  endif()
endforeach()
