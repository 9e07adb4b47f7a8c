#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <torch/nn/module.h>
#include <torch/types.h>

#include "tutti/base/json.h"
#include "tutti/base/progress.h"
#include "tutti/data/feed.h"
#include "tutti/embedding/tables.h"
#include "tutti/train/export.h"
#include "tutti/train/export/check.h"
#include "tutti/train/export/examples.h"

namespace tutti {

// A trained model, as an export sees it.
struct TrainedModel {
  torch::nn::Module& module;
  // Computes the outputs of a signature for a batch, in evaluation mode and without gradients.
  std::function<std::vector<torch::Tensor>(const Batch&, const Signature&)> outputs;
  // Returns all rows of the tables whose rows are spread over several tasks, in the order of their ids, by
  // name: "user.weight".
  std::function<std::map<std::string, torch::Tensor>()> rows;
  torch::Device device = torch::kCPU;
  int threads = 1;
  bool lower_precision = false;  // it computes with less than float32
  Json facts = Json::object();   // for signature.json
  // The process that checks the result (CheckOptions).
  std::string checker = {};
  std::chrono::milliseconds timeout{0};
};

// Throws an InvalidArgument that lists the tables of a model if the options leave out another one.
void require_tables_to_leave_out(const std::vector<std::string>& leave_out,
                                 const std::vector<embedding::NamedTable>& tables);

// The export of one model: reads some examples, records what the trained model predicts for them, and writes.
// Not thread-safe.
class Exporter {
 public:
  // Throws InvalidArgument if the options do not fit the model. All must outlive this.
  Exporter(const TrainedModel& model, const data::Feed& examples, const ExportOptions& options);

  // The batches on which the models are compared, on the model's device.
  const std::vector<Batch>& batches() const { return examples_.batches; }
  // Lets the trained model compute all outputs for the batch of this index. To be called once for each,
  // before write(). If the rows of tables have to be fetched, every worker does.
  void predict(size_t batch);
  // Gathers the rows of the tables that are exported. To be called before write(), on every worker that has
  // rows.
  void gather();

  struct Result {
    std::string path;
    std::vector<std::string> doubts;
    std::vector<CheckResult> checks;  // of each function
    Json signature = Json::object();  // as in signature.json
  };
  // Writes and checks a new version in `dir`. Tells the bytes of the tensors that are written.
  Result write(const std::string& dir, const OnProgress& on_progress = {}) const;

 private:
  struct Argument {
    std::string name;        // "user"
    std::string argument;    // the identifier in the exported function
    std::string table = {};  // of vectors: the table that was left out, and the column with its ids
    std::string ids = {};
    std::vector<torch::Tensor> values = {};  // for each batch
  };

  // A function of the exported model, and what the trained model computes by it.
  struct Function {
    std::string name;  // "forward"
    const Signature& signature;
    std::vector<std::vector<torch::Tensor>> outputs = {};  // [batch]
    std::vector<Argument> vectors = {};                    // in the order of the lookups
    size_t lookup = 0;                                     // of the batch that is being predicted
  };

  void add_function(const std::string& name, const Signature& signature);
  bool is_left_out(const std::string& table) const;
  static Batch inputs_of(const Function& function, const Batch& batch);
  void predict(Function& function, size_t batch);
  void add_vectors(Function& function, size_t batch, const embedding::NamedTable& table,
                   const torch::Tensor& ids, const torch::Tensor& vectors);
  std::vector<Argument> arguments(const Function& function) const;
  Computation::Function traced(const Function& function, const std::vector<Argument>& arguments) const;
  std::vector<torch::Tensor> compute(const Function& function, const std::vector<Argument>& arguments,
                                     const std::vector<torch::Tensor>& inputs) const;
  Computation computation(const std::vector<std::vector<Argument>>& arguments) const;
  Json signature(const Function& function, const std::vector<Argument>& arguments) const;
  Json json_of_check(const CheckResult& result) const;
  void write_files(const std::string& folder, Result& result, const OnProgress& on_progress) const;

  const TrainedModel& model_;
  const ExportOptions& options_;
  const std::shared_ptr<const ExportFormat> format_;
  const double tolerance_;
  const std::vector<embedding::NamedTable> tables_;
  std::map<std::string, torch::Tensor>
      rows_;  // of the sharded tables that are exported, by the name of the table
  const ExportExamples examples_;
  std::vector<Function> functions_;
};

}  // namespace tutti
