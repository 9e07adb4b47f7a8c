#pragma once

#include <string>

#include "tutti/base/test_folder.h"

namespace tutti::testing {

// Writes 200 training images and 100 test images in the format of MNIST. Their pixels are random and need not
// be recognisable: for tests of the first example that look at its bits, since testing 10,000 digits takes
// seconds.
void write_few_digits(const TestFolder& folder);

// Returns a folder with these digits that lives as long as the program.
std::string few_digits();

}  // namespace tutti::testing
