#pragma once

#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/environment.h"
#include "tutti/cluster/identity.h"

// For tests: changes to a launcher's variables, and checks of an identity.
namespace tutti::discovery {

using Variables = std::map<std::string, std::string>;

inline Environment with(Variables variables, const Variables& changed) {
  for (const auto& [name, value] : changed) variables[name] = value;
  return Environment(std::move(variables));
}

inline Environment without(Variables variables, std::initializer_list<std::string> names) {
  for (const std::string& name : names) variables.erase(name);
  return Environment(std::move(variables));
}

inline void expect_standing(const Identity& identity, int rank, int world, int local_rank, int local_world) {
  EXPECT_EQ(identity.membership.rank, rank);
  EXPECT_EQ(identity.membership.world, world);
  EXPECT_EQ(identity.membership.local_rank, local_rank);
  EXPECT_EQ(identity.membership.local_world, local_world);
  EXPECT_EQ(identity.is_chief, rank == 0);
}

}  // namespace tutti::discovery
