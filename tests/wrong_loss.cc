// Programs that must not compile, one for each CASE, for compile_errors_test.sh.
#include <torch/torch.h>

#include "tutti/train/trainer.h"

void train(const tutti::Context& context) {
  torch::nn::Sequential net(torch::nn::Linear(3, 1));
  const torch::optim::AdamOptions adam(1e-3);
#if CASE == 0  // compiles
  tutti::Trainer trainer(context, net, adam, [](torch::nn::Sequential& n, const tutti::Batch& b) {
    return n->forward(b["x"]).mean();
  });
#elif CASE == 1  // another net
  tutti::Trainer trainer(context, net, adam, [](torch::nn::LinearImpl& n, const tutti::Batch& b) {
    return n.forward(b["x"]).mean();
  });
#elif CASE == 2  // the batch is missing
  tutti::Trainer trainer(context, net, adam,
                         [](torch::nn::Sequential& n) { return n->parameters()[0].sum(); });
#elif CASE == 3  // a loss that is no tensor
  tutti::Trainer trainer(context, net, adam, [](torch::nn::Sequential&, const tutti::Batch&) { return 0.5; });
#elif CASE == 4  // the module itself instead of a handle
  tutti::Trainer trainer(context, *net, adam, [](torch::nn::SequentialImpl& n, const tutti::Batch& b) {
    return n.forward(b["x"]).mean();
  });
#endif
}
