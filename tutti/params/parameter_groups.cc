#include "tutti/params/parameter_groups.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/params/optimizer_options.h"

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

// Returns all names of each parameter. One that is registered several times has several.
using Names = std::vector<std::string>;
Names names_of(const Parameters& parameters, const Parameters::View& view) {
  Names names = {view.name};
  for (const auto& [alias, first] : parameters.aliases()) {
    if (first == view.name) names.push_back(alias);
  }
  return names;
}

bool is_inverted(const ParameterGroup& group) { return group.names.starts_with('!'); }

// Ignores a '!' at the beginning of the pattern.
bool matches_any(const ParameterGroup& group, const Names& names) {
  const std::string_view pattern = std::string_view(group.names).substr(is_inverted(group) ? 1 : 0);
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return matches(pattern, name); });
}

void require_matches(const Parameters& parameters, const std::vector<ParameterGroup>& groups) {
  std::vector<Names> all;
  for (const auto views : {parameters.trained(), parameters.frozen()}) {
    for (const auto& view : views) all.push_back(names_of(parameters, view));
  }
  for (const ParameterGroup& group : groups) {
    const auto has = [&](auto is_in) {
      return std::any_of(all.begin(), all.end(), [&](const Names& names) { return is_in(group, names); });
    };
    // The opposite of a misspelt name would be all parameters.
    if (has(matches_any) && has(selects)) continue;
    Names shown;
    for (size_t i = 0; i < std::min(all.size(), kNamesShown); ++i) shown.push_back(all[i].front());
    fail(ErrorKind::InvalidArgument,
         "the group '{}' of the optimiser matches no parameter. The parameters are: {}{}", group.names,
         fmt::join(shown, ", "),
         shown.size() < all.size() ? fmt::format(", and {} more", all.size() - shown.size()) : "");
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

bool selects(const ParameterGroup& group, const Names& names) {
  return matches_any(group, names) != is_inverted(group);
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

Json to_json(const ParameterGroup& group) {
  Json json = {{"names", group.names}, {"rate", group.rate}, {"frozen", group.frozen}};
  if (group.weight_decay) json["weight_decay"] = *group.weight_decay;
  return json;
}

ParameterGroup group_from_json(const Json& json) {
  ParameterGroup group{.names = json.at("names").get<std::string>(),
                       .rate = json.at("rate").get<double>(),
                       .weight_decay = {},
                       .frozen = json.at("frozen").get<bool>()};
  if (json.contains("weight_decay")) group.weight_decay = json.at("weight_decay").get<double>();
  return group;
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
    GroupRange range{.block = one.at("block").get<size_t>(),
                     .begin = one.at("begin").get<int64_t>(),
                     .end = one.at("end").get<int64_t>(),
                     .rate = one.at("rate").get<double>()};
    if (one.contains("weight_decay")) range.weight_decay = one.at("weight_decay").get<double>();
    const GroupRange last = ranges.empty() ? GroupRange() : ranges.back();
    const bool is_after = std::pair(range.block, range.begin) >= std::pair(last.block, last.end);
    if (range.end < range.begin || range.begin < 0 || !is_after)
      fail(ErrorKind::InvalidArgument, "the ranges of the optimiser's groups are not in order");
    require_in_range(OptimizerOptions(
        torch::optim::SGDOptions(0),
        {{.names = "of a message", .rate = range.rate, .weight_decay = range.weight_decay}}));
    ranges.push_back(range);
  }
  return ranges;
}

}  // namespace tutti
