#pragma once

#include <exception>

namespace tutti {

// Returns true if an exception of the standard library or of LibTorch means that memory, threads, processes,
// file descriptors or disk space have run out. This is then an Overloaded error and not an invalid request.
bool ran_out(const std::exception& error);

}  // namespace tutti
