#pragma once

#include <string>

// One synchronous step of many workers with a large model, over the network: the memory that the server
// takes.
namespace bench {

// Runs the server. Prints its port, and ends with its standard input.
int serve_large_steps();

// Prints Markdown. `self` is the program that runs serve_large_steps() if its first argument is "serve".
void print_large_steps(const std::string& self);

}  // namespace bench
