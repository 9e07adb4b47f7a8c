// For compile_errors_test.sh: a function that compiles, and with WRONG four that must not.
#include <torch/torch.h>

#include "tutti/train/trainer.h"

using torch::nn::Sequential;
using torch::optim::AdamOptions;

void right(const tutti::Context& context, Sequential& net, const AdamOptions& adam) {
  tutti::Trainer trainer(context, net, adam,
                         [](Sequential& n, const tutti::Batch& b) { return n->forward(b["x"]).mean(); });
}

#ifdef WRONG
void another_net(const tutti::Context& context, Sequential& net, const AdamOptions& adam) {
  tutti::Trainer trainer(context, net, adam, [](torch::nn::LinearImpl& n, const tutti::Batch& b) {
    return n.forward(b["x"]).mean();
  });
}

void no_batch(const tutti::Context& context, Sequential& net, const AdamOptions& adam) {
  tutti::Trainer trainer(context, net, adam, [](Sequential& n) { return n->parameters()[0].sum(); });
}

void no_tensor(const tutti::Context& context, Sequential& net, const AdamOptions& adam) {
  tutti::Trainer trainer(context, net, adam, [](Sequential&, const tutti::Batch&) { return 0.5; });
}

// The module itself instead of a handle.
void no_handle(const tutti::Context& context, Sequential& net, const AdamOptions& adam) {
  tutti::Trainer trainer(context, *net, adam, [](torch::nn::SequentialImpl& n, const tutti::Batch& b) {
    return n.forward(b["x"]).mean();
  });
}
#endif
