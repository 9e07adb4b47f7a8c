#pragma once

#include <string>

namespace tutti {

// Returns 32 random lower-case hexadecimal digits, which cannot be guessed.
std::string random_key();

}  // namespace tutti
