#pragma once

#include <string>

namespace tutti {

// 32 lower-case hexadecimal digits that nobody can guess.
std::string random_key();

}  // namespace tutti
