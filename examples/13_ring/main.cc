// The communicator without a model: every rank throws darts at a square, and together they estimate pi. Then
// each rank sends a message to the next one, and each half of the ranks finds its largest number of hits.
#include <tutti/comm/timeline_file.h>
#include <tutti/tutti.h>
#include <vector>

#include <fmt/format.h>
#include <torch/torch.h>

using tutti::comm::ReduceOp;

int main(int argc, char** argv) {
  tutti::Program program;
  program.about = "Estimates pi on all ranks.";
  return tutti::run(argc, argv, program, [](tutti::Context& ctx) {
    const tutti::Group group = tutti::connect(ctx);
    tutti::comm::Communicator& comm = *group.connected();
    const tutti::comm::TimelineFile timeline(ctx, &comm);  // writes the file of --timeline, if that is given

    torch::manual_seed(comm.rank());
    constexpr int64_t kDarts = 1000000;
    const torch::Tensor hits = (torch::rand({kDarts, 2}).square().sum(1) < 1).sum().to(torch::kInt64);
    torch::Tensor all = torch::zeros({comm.world()}, torch::kInt64);
    comm.all_gather(all, hits.view({1}));
    comm.all_reduce(hits, ReduceOp::Sum);
    const double pi =
        4.0 * static_cast<double>(hits.item<int64_t>()) / static_cast<double>(kDarts * comm.world());
    if (group.is_chief()) fmt::print("pi is about {:.4f}\n", pi);

    // A message to the next rank and one from the previous rank, both at the same time.
    if (comm.world() > 1) {
      const torch::Tensor mine = torch::full({3}, comm.rank(), torch::kFloat);
      const torch::Tensor received = torch::empty({3});
      const int next = (comm.rank() + 1) % comm.world();
      const int previous = (comm.rank() + comm.world() - 1) % comm.world();
      const auto sending = comm.send(mine, next, {.what = "the ring"});
      const auto receiving = comm.recv(received, previous, {.what = "the ring"});
      receiving.wait();
      sending.wait();
      fmt::print("rank {} received {}\n", comm.rank(), received[0].item<float>());
    }

    // An operation that runs behind must be waited for before its tensors are used.
    const tutti::Group half = group.split(comm.rank() % 2);
    const torch::Tensor best = all[comm.rank()].clone();
    const auto work = half.communicator->all_reduce(best, ReduceOp::Max, {.run = tutti::comm::Run::Behind});
    work.wait();
    if (half.is_chief()) fmt::print("half {}: at most {} hits\n", comm.rank() % 2, best.item<int64_t>());
  });
}
