#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

// "a,b,,c" at ',' gives {"a", "b", "", "c"}; an empty text gives one empty piece.
std::vector<std::string> split(std::string_view text, char separator);

// Of what LibTorch says: behind it comes a stack of frames.
std::string first_line(std::string_view text);

// The whole text as a number, or nothing: "12" but not "12x", " 12" or "".
std::optional<int64_t> parse_int(std::string_view text);
std::optional<double> parse_double(std::string_view text);

// The candidate with the fewest edits to `name`, or nothing where none is near enough to be meant.
std::optional<std::string> nearest(std::string_view name, std::span<const std::string> candidates);

// "; did you mean 'lanes'?" or nothing: to be put at the end of an error about an unknown name.
std::string did_you_mean(std::string_view name, std::span<const std::string> candidates);

// "4096", "64K", "4M", "2G": a whole number of bytes, 1024 to the next unit; nothing where it is none, or too
// large.
std::optional<uint64_t> parse_bytes(std::string_view text);

// "1.5 GiB", "12 KiB", "17 B".
std::string human_bytes(uint64_t bytes);

}  // namespace tutti
