#include "tools/launch/nodes.h"

#include <iterator>
#include <vector>

#include <fmt/format.h>

#include "tutti/base/address.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/cluster/discovery/discovery.h"
#include "tutti/cluster/discovery/slurm.h"

namespace tutti {
namespace {

constexpr const char* kIndexOfPod = "JOB_COMPLETION_INDEX";

std::vector<std::string> addresses_in(const std::string& rendezvous, int nodes) {
  if (rendezvous.empty()) return {};
  std::vector<std::string> addresses = split(rendezvous, ',');
  for (const std::string& address : addresses) {
    if (parse_address(address).port == 0)
      fail(ErrorKind::InvalidArgument, "tutti run: --rendezvous {} needs a port other than 0", address);
  }
  if (addresses.size() != 1 && std::ssize(addresses) != nodes)
    fail(ErrorKind::InvalidArgument,
         "tutti run: --rendezvous has {} addresses for {} nodes; give that of node 0, or those of all",
         addresses.size(), nodes);
  return addresses;
}

int index_of_pod(const Environment& environment) {
  const auto text = environment.get(kIndexOfPod);
  if (!text) return 0;
  const auto index = parse_int(*text);
  if (!index || *index < 0)
    fail(ErrorKind::InvalidArgument, "tutti run: {}='{}' is not the number of a pod", kIndexOfPod, *text);
  return static_cast<int>(*index);
}

// All tasks of srun compute the same port for the first node. Each node uses it.
std::vector<std::string> addresses_in_slurm(const std::string& first, const Environment& environment) {
  if (first.find(':') == std::string::npos)
    fail(ErrorKind::InvalidArgument,
         "tutti run: srun names no host or no job in its variables; give --rendezvous HOST:PORT, a free port "
         "of the first host");
  const int port = parse_address(first).port;
  std::vector<std::string> addresses;
  for (const std::string& host : discovery::slurm_hosts(environment))
    addresses.push_back(to_string(Address{host, port}));
  return addresses.empty() ? std::vector{first} : addresses;
}

std::optional<NodeOptions> tasks_of_srun(const NodeFlags& flags, const Environment& environment) {
  const std::optional<Identity> identity = discovery::from_slurm(environment);
  if (!identity || identity->membership.world == 1) return std::nullopt;
  NodeOptions nodes{.count = identity->membership.world,
                    .rank = identity->membership.rank,
                    .addresses = addresses_in(flags.rendezvous, identity->membership.world)};
  if (nodes.addresses.empty()) nodes.addresses = addresses_in_slurm(identity->board_address, environment);
  return nodes;
}

}  // namespace

std::optional<NodeOptions> find_nodes(const NodeFlags& flags, const Environment& environment) {
  if (!flags.count && !flags.rank && environment.get("TF_CONFIG").value_or("").empty())
    return tasks_of_srun(flags, environment);
  NodeOptions nodes{.count = flags.count.value_or(1)};
  nodes.rank = flags.rank.value_or(nodes.count == 1 ? 0 : index_of_pod(environment));
  if (nodes.rank >= nodes.count)
    fail(ErrorKind::InvalidArgument,
         "tutti run: --node-rank {} is not one of the {} nodes of --nnodes, which are counted from 0",
         nodes.rank, nodes.count);
  if (nodes.count == 1) return std::nullopt;
  nodes.addresses = addresses_in(flags.rendezvous, nodes.count);
  if (nodes.addresses.empty())
    fail(ErrorKind::InvalidArgument,
         "tutti run: --nnodes {} needs --rendezvous HOST:PORT, a free port of node 0; give all launchers the "
         "same",
         nodes.count);
  return nodes;
}

std::optional<NodeOptions> nodes_of(const JobHosts& hosts) {
  NodeOptions nodes{.count = static_cast<int>(hosts.row().size()),
                    .rank = static_cast<int>(hosts.own_index().value())};
  for (size_t host = 0; host < hosts.row().size(); ++host) {
    if (hosts.is_server(host))
      fail(ErrorKind::InvalidArgument,
           "tutti run: --min is not possible with the servers of TF_CONFIG, such as {}; leave them out, and "
           "let --ps start them on the first host",
           hosts.name_of(host));
    nodes.addresses.push_back(hosts.address_of(host));
  }
  return nodes.count == 1 ? std::nullopt : std::optional(nodes);
}

}  // namespace tutti
