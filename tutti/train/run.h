#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/config.h"
#include "tutti/cluster/cluster_spec.h"
#include "tutti/cluster/context.h"
#include "tutti/params/optimizer_options.h"

namespace tutti {

namespace ps {
class Server;
}

// The description and the flags of a program, set before its flags are read.
struct Program {
  std::string about = "Trains a model with Tutti.";  // the first lines of --help
  RunConfig defaults = {};                           // the values of the flags that are not given
  // Adds the program's own flags; their variables must outlive run().
  std::function<void(FlagSet&)> add_flags;
  // Returns the optimisers of one's own that the program uses, for its parameter servers. Called after the
  // flags are read.
  std::function<std::vector<ElementwiseOptimizer>()> optimizers;
};

// Adds the flag --learning-rate, for programs that let their users choose it; `rate` is the default. It has
// the same name in all programs, so that `tutti sweep --set learning-rate=1e-4,1e-3` works with each of them.
//   program.add_flags = [&](tutti::FlagSet& flags) { tutti::add_learning_rate(flags, rate); };
void add_learning_rate(FlagSet& flags, double& rate);

// The complete body of a main(): reads flags and environment, determines which task this is, and calls `body`
// with the Context; a task in a job of parameter servers runs a server instead. Reports an exception as one
// line on stderr and returns the exit code of its kind (docs/operations.md), or 0.
int run(int argc, char** argv, const std::function<void(Context&)>& body);
int run(int argc, char** argv, const Program& program, const std::function<void(Context&)>& body);

// A parameter server inside another program. It receives the model from the chief.
//
//   tutti::Server server(tutti::ClusterSpec::parse("ps|h:2222,worker|h:2223;h:2224"), "ps", 0);
//   server.join();
class Server {
 public:
  // Starts to listen. Throws InvalidArgument if the cluster has no such task, or if its job is not one of
  // parameter servers. `optimizers` are those besides torch::optim's that the chief may use
  // (ElementwiseOptimizer).
  Server(const ClusterSpec& cluster, const std::string& job, int index, const RunConfig& config = {},
         std::vector<ElementwiseOptimizer> optimizers = {});
  explicit Server(const Context& context, std::vector<ElementwiseOptimizer> optimizers = {});
  ~Server();

  // Returns "grpc://host:port".
  std::string target() const;
  // Returns when every worker has finished, or after `tutti stop`. If the configuration asks to stop on
  // signals, waits after a signal until the connected tasks have finished, since they may want to save a
  // checkpoint, and then throws Interrupted; a second signal ends the process.
  void join();

 private:
  const Context context_;
  const std::unique_ptr<ps::Server> server_;
};

// Runs a serving task until the job is done: a parameter server if its job is one of servers, else a passive
// worker (passive/master.h). `optimizers` are as for Server.
void serve(const Context& context, std::vector<ElementwiseOptimizer> optimizers = {});

}  // namespace tutti
