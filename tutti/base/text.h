#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

// Splits a text at a separator: "a,b,,c" at ',' gives {"a", "b", "", "c"}; an empty text gives {""}.
std::vector<std::string> split(std::string_view text, char separator);

// Returns the first line. LibTorch's error texts have a stack trace in the lines after it.
std::string first_line(std::string_view text);

// Returns the text with A to Z as a to z.
std::string lower(std::string_view text);

// Parses the whole text as a number. Accepts "12"; returns nullopt for "12x", " 12" or "".
std::optional<int64_t> parse_int(std::string_view text);
std::optional<double> parse_double(std::string_view text);
// Parses "true", "1", "yes", "on", or "false", "0", "no", "off"; nullopt for anything else.
std::optional<bool> parse_switch(std::string_view text);

// Returns the candidate with the smallest edit distance to `name`, or nullopt if none is close enough.
std::optional<std::string> nearest(std::string_view name, std::span<const std::string> candidates);

// Returns "; did you mean 'lanes'?" or "", to be appended to an error about an unknown name.
std::string did_you_mean(std::string_view name, std::span<const std::string> candidates);

// Parses "4096", "64K", "4M", "2G": a whole number of bytes, with units of 1024. Returns nullopt if the text
// is not such a number or the number is too large.
std::optional<uint64_t> parse_bytes(std::string_view text);

// Returns "1,234,567".
std::string grouped(int64_t number);

// Formats a number of bytes: "1.5 GiB", "12 KiB", "17 B".
std::string human_bytes(uint64_t bytes);

}  // namespace tutti
