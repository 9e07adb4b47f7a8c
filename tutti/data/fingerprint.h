#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tutti/data/feed.h"

namespace tutti::data {

// Name and text: {"examples", "60000"}, {"column label", "int64[], 16 examples with checksum 1f2e3d4c"}.
using Fingerprint = std::vector<std::pair<std::string, std::string>>;

// Describes the number of examples of a feed, their order, how it is combined from other feeds, and the
// examples of each of `lanes` lanes. Reads no examples.
Fingerprint order_of(const Feed& feed, int64_t lanes);

// Describes the names, types and shapes of the source's columns, before the feed's transforms, and a checksum
// of a few examples: the first, the last and some between them, taken from lane 0 if each lane has examples
// of its own, and from each part of a combined feed. Feeds that differ only in other examples have equal
// fingerprints. Costs as much as reading 16 examples of each part.
Fingerprint columns_of(const Feed& feed, int64_t lanes);

}  // namespace tutti::data
