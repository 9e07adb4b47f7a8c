#include "tutti/params/parameter_groups.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"

namespace tutti {
namespace {

constexpr size_t kNamesShown = 8;

// Matches without recursion: after a mismatch, the last '*' takes one character more.
bool matches(std::string_view pattern, std::string_view name) {
  size_t p = 0;
  size_t star = std::string_view::npos;
  size_t after_star = 0;
  for (size_t n = 0; n < name.size();) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      after_star = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++after_star;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

bool is_inverted(std::string_view pattern) { return pattern.starts_with('!'); }

std::string_view without_mark(std::string_view pattern) {
  return is_inverted(pattern) ? pattern.substr(1) : pattern;
}

// Returns all names of each parameter. One that is registered several times has several.
using Names = std::vector<std::string>;
Names names_of(const Parameters& parameters, const Parameters::View& view) {
  Names names = {view.name};
  for (const auto& [alias, first] : parameters.aliases()) {
    if (first == view.name) names.push_back(alias);
  }
  return names;
}

bool any_matches(std::string_view pattern, const Names& names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return matches(pattern, name); });
}

bool selects(const ParameterGroup& group, const Names& names) {
  return any_matches(without_mark(group.names), names) != is_inverted(group.names);
}

[[noreturn]] void fail_unmatched(const ParameterGroup& group, const Names& all) {
  const size_t shown = std::min(all.size(), kNamesShown);
  fail(ErrorKind::InvalidArgument,
       "the group '{}' of the optimiser matches no parameter. The parameters are: {}{}", group.names,
       fmt::join(all.begin(), all.begin() + static_cast<ptrdiff_t>(shown), ", "),
       shown < all.size() ? fmt::format(", and {} more", all.size() - shown) : "");
}

void require_matches(const Parameters& parameters, const std::vector<ParameterGroup>& groups) {
  std::vector<Names> all;
  for (const auto views : {parameters.trained(), parameters.frozen()}) {
    for (const auto& view : views) all.push_back(names_of(parameters, view));
  }
  for (const ParameterGroup& group : groups) {
    const auto has = [&](auto is_in) { return std::any_of(all.begin(), all.end(), is_in); };
    // The opposite of a misspelt name would be all parameters.
    if (has([&](const Names& names) { return any_matches(without_mark(group.names), names); }) &&
        has([&](const Names& names) { return selects(group, names); }))
      continue;
    Names first_names;
    for (const Names& names : all) first_names.push_back(names.front());
    fail_unmatched(group, first_names);
  }
}

GroupRange settings_of(const std::vector<ParameterGroup>& groups, const Names& names) {
  GroupRange settings;
  for (const ParameterGroup& group : groups) {
    if (!selects(group, names)) continue;
    settings.rate *= group.rate;
    if (group.weight_decay) settings.weight_decay = group.weight_decay;
  }
  return settings;
}

bool is_next_to(const GroupRange& range, const GroupRange& next) {
  return range.block == next.block && range.end == next.begin && range.rate == next.rate &&
         range.weight_decay == next.weight_decay;
}

}  // namespace

bool selects(std::string_view pattern, std::string_view name) {
  return matches(without_mark(pattern), name) != is_inverted(pattern);
}

Parameters& freeze(Parameters& parameters, const std::vector<ParameterGroup>& groups) {
  require_matches(parameters, groups);
  Names frozen;
  for (const auto& view : parameters.trained()) {
    const Names names = names_of(parameters, view);
    if (std::any_of(groups.begin(), groups.end(),
                    [&](const ParameterGroup& group) { return group.frozen && selects(group, names); }))
      frozen.push_back(view.name);
  }
  parameters.freeze(frozen);
  return parameters;
}

// A range includes the gap behind its parameter, which is zero and stays zero, so that neighbours of the same
// group are one range.
std::vector<GroupRange> ranges_of(const Parameters& parameters, const std::vector<ParameterGroup>& groups) {
  std::vector<GroupRange> ranges;
  if (groups.empty()) return ranges;
  for (size_t block = 0; block < parameters.blocks().size(); ++block) {
    int64_t end = parameters.blocks()[block].values.numel();
    std::vector<GroupRange> backwards;
    for (auto view = parameters.trained().rbegin(); view != parameters.trained().rend(); ++view) {
      if (view->block != block) continue;
      GroupRange range = settings_of(groups, names_of(parameters, *view));
      range.block = block;
      range.begin = view->offset;
      range.end = std::exchange(end, view->offset);
      if (!backwards.empty() && is_next_to(range, backwards.back()))
        backwards.back().begin = range.begin;
      else
        backwards.push_back(range);
    }
    std::copy_if(backwards.rbegin(), backwards.rend(), std::back_inserter(ranges),
                 [](const GroupRange& range) { return range.rate != 1 || range.weight_decay; });
  }
  return ranges;
}

Json to_json(const std::vector<GroupRange>& ranges) {
  Json json = Json::array();
  for (const GroupRange& range : ranges) {
    json.push_back(
        {{"block", range.block}, {"begin", range.begin}, {"end", range.end}, {"rate", range.rate}});
    if (range.weight_decay) json.back()["weight_decay"] = *range.weight_decay;
  }
  return json;
}

std::vector<GroupRange> ranges_from_json(const Json& json) {
  std::vector<GroupRange> ranges;
  for (const Json& one : json) {
    GroupRange& range = ranges.emplace_back();
    range = {.block = one.at("block").get<size_t>(),
             .begin = one.at("begin").get<int64_t>(),
             .end = one.at("end").get<int64_t>(),
             .rate = one.at("rate").get<double>()};
    if (one.contains("weight_decay")) range.weight_decay = one.at("weight_decay").get<double>();
    const bool is_after =
        ranges.size() == 1 || ranges[ranges.size() - 2].block < range.block ||
        (ranges[ranges.size() - 2].block == range.block && ranges[ranges.size() - 2].end <= range.begin);
    if (range.begin < 0 || range.end < range.begin || !is_after)
      fail(ErrorKind::InvalidArgument, "the ranges of the optimiser's groups are not in order");
    require_in_range(OptimizerOptions(
        torch::optim::SGDOptions(0),
        {{.names = "of a message", .rate = range.rate, .weight_decay = range.weight_decay}}));
  }
  return ranges;
}

}  // namespace tutti
