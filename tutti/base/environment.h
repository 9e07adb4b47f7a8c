#pragma once

#include <map>
#include <optional>
#include <string>

namespace tutti {

// A set of environment variables as a value. main() reads the environment once and passes it down, so
// that tests can pass others.
class Environment {
 public:
  Environment() = default;
  explicit Environment(std::map<std::string, std::string> variables) : variables_(std::move(variables)) {}

  // Returns the variables of this process. This is the only place where Tutti reads them.
  static Environment of_process();

  std::optional<std::string> get(const std::string& name) const;
  bool has(const std::string& name) const { return variables_.contains(name); }
  const std::map<std::string, std::string>& variables() const { return variables_; }

 private:
  std::map<std::string, std::string> variables_;
};

}  // namespace tutti
