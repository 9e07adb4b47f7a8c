#pragma once

#include <vector>

namespace tutti {

// TCP ports of 127.0.0.1 that nobody listens on just now, all different. Where there is room they are outside
// of the range from which the system serves whoever asks for any port: until they are listened on, nobody
// gets one by chance, to hear there from those who were meant to meet another. Overloaded where the machine
// has none left.
std::vector<int> free_ports(int count);

}  // namespace tutti
