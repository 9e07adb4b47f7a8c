// Declarations for the C++ blocks of README.md and docs/, which embedded_test.sh compiles. Includes only
// tutti.h, so that it must provide all that the blocks use.
#pragma once

#include <tutti/tutti.h>

#include <torch/script.h>
#include <torch/torch.h>

using tutti::metrics::auc;

struct Net : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return dense(x); }
  torch::nn::Linear dense = register_module("dense", torch::nn::Linear(4, 1));
};

// The blocks are compiled but never run, so that nothing here needs a definition.
extern tutti::Context& ctx;
extern const std::shared_ptr<Net> net;
extern torch::Tensor (*const loss)(Net&, const tutti::Batch&);
extern tutti::Trainer trainer;
extern tutti::Trainable model;
extern tutti::Program program;
extern tutti::FlagSet flags;
extern double rate;
extern tutti::ElementwiseOptimizer (*const lion)(double rate, double beta1, double beta2);
extern int64_t hidden;
extern std::string out;
extern int argc;
extern char** argv;

extern tutti::data::Feed feed, train, test;
extern const tutti::data::Schema schema;
extern std::vector<tutti::Batch> batches;
extern tutti::Batch (*const batch_of)(int64_t index, int64_t lane);

extern tutti::Parameters params, params_g, params_d;
extern torch::optim::AdamOptions adam;
extern tutti::DistributedOptimizer opt, opt_g, opt_d;
extern tutti::Loop loop;
extern const std::shared_ptr<Net> generator;
extern double (*const distance_error)(const std::shared_ptr<Net>& net);
extern const std::shared_ptr<Net> tail, front;
extern torch::Tensor x, labels, seen;
extern int64_t rounds;
