#include "tools/connection_arguments.h"

namespace tutti {

std::optional<std::string> parse_connection_arguments(const char* name, const char* about,
                                                      const std::vector<std::string>& arguments,
                                                      const Environment& environment, RunConfig& config,
                                                      const std::function<void(FlagSet&)>& add_own) {
  std::vector<const char*> words = {name};
  FlagSet everything(about);
  if (add_own) add_own(everything);
  add_standard_flags(everything, config);
  static_cast<void>(everything.parse(1, words.data(), environment));
  for (const std::string& argument : arguments) words.push_back(argument.c_str());
  FlagSet ours(about);
  if (add_own) add_own(ours);
  add_connection_flags(ours, config);
  return ours.parse(static_cast<int>(words.size()), words.data(), Environment());
}

}  // namespace tutti
