#include "tutti/params/parameters.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/embedding.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/hashes.h"
#include "tutti/base/type_name.h"
#include "tutti/comm/communicator.h"

namespace tutti {
namespace {

constexpr int64_t kCacheLine = 64;

// Returns each tensor once, under its first name, and records its other names as aliases.
std::vector<Parameters::View> once_each(const torch::OrderedDict<std::string, torch::Tensor>& named,
                                        std::map<std::string, std::string>& aliases) {
  std::vector<Parameters::View> tensors;
  std::unordered_map<const void*, std::string> first_name;
  for (const auto& item : named) {
    const auto [known, is_new] = first_name.emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (is_new) {
      tensors.push_back({item.key(), item.value(), {}});
    } else {
      aliases.emplace(item.key(), known->second);
    }
  }
  return tensors;
}

struct Span {
  const std::byte* begin;
  const std::byte* end;
  const std::string* name;
};

Span memory_of(const Parameters::View& view) {
  int64_t last = 0;
  for (int64_t d = 0; d < view.tensor.dim(); ++d) last += (view.tensor.size(d) - 1) * view.tensor.stride(d);
  const auto* begin = static_cast<const std::byte*>(view.tensor.data_ptr());
  return {begin, begin + (last + 1) * static_cast<int64_t>(view.tensor.element_size()), &view.name};
}

// Throws if two different tensors overlap in memory: they would be separated when they are moved into the
// vector. A shared parameter has to be one tensor under several names.
void require_disjoint(const std::vector<Parameters::View>& parameters) {
  std::vector<Span> spans;
  for (const auto& view : parameters) {
    if (view.tensor.numel() > 0) spans.push_back(memory_of(view));
  }
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < spans.size(); ++i) {
    if (spans[i].begin < spans[i - 1].end) {
      fail(ErrorKind::InvalidArgument,
           "the parameters {} and {} are different tensors but overlap in memory; to share a parameter, "
           "register the same tensor under both names",
           *spans[i - 1].name, *spans[i].name);
    }
  }
}

void require_trainable(const std::vector<Parameters::View>& parameters, torch::Device device) {
  for (const auto& view : parameters) {
    if (view.tensor.layout() != torch::kStrided)
      fail(ErrorKind::InvalidArgument, "the parameter {} is sparse; only dense parameters can be trained",
           view.name);
    if (view.tensor.device() != device)
      fail(ErrorKind::InvalidArgument,
           "the parameter {} is on {}, others are on {}; move the whole module to one device", view.name,
           view.tensor.device().str(), device.str());
  }
}

torch::Tensor view_at(const torch::Tensor& vector, int64_t offset, const torch::Tensor& like, Layout layout) {
  const torch::Tensor piece = vector.narrow(0, offset, like.numel());
  if (layout == Layout::ChannelsLast && like.dim() == 4) {
    return piece.view({like.size(0), like.size(2), like.size(3), like.size(1)}).permute({0, 3, 1, 2});
  }
  return piece.view(like.sizes());
}

// Gives every tensor a place in the vector of its type. Returns the length of each vector, by type in order
// of appearance.
struct Vector {
  torch::ScalarType type;
  int64_t elements = 0;
};

std::vector<Vector> assign_places(std::vector<Parameters::View>& views) {
  std::vector<Vector> vectors;
  for (Parameters::View& view : views) {
    const torch::ScalarType type = view.tensor.scalar_type();
    auto vector =
        std::find_if(vectors.begin(), vectors.end(), [&](const Vector& v) { return v.type == type; });
    if (vector == vectors.end()) vector = vectors.insert(vectors.end(), {type});
    const int64_t line = std::max<int64_t>(1, kCacheLine / static_cast<int64_t>(view.tensor.element_size()));
    view.block = static_cast<size_t>(vector - vectors.begin());
    view.offset = vector->elements;
    vector->elements += (view.tensor.numel() + line - 1) / line * line;
  }
  return vectors;
}

torch::Tensor make_vector(const Allocate& allocate, const Vector& like, torch::Device device) {
  const auto options = torch::TensorOptions().dtype(like.type).device(device);
  if (!allocate) return torch::zeros({like.elements}, options);
  torch::Tensor vector = allocate(like.elements, options);
  if (vector.dim() != 1 || vector.numel() != like.elements || vector.scalar_type() != like.type)
    fail(ErrorKind::InvalidArgument, "the allocator returned {}, expected a vector of {} elements",
         describe(vector), like.elements);
  return vector;
}

// All views into the vector share its storage, so this replaces the memory of the storage.
void move_vector(const Allocate& allocate, const torch::Tensor& vector) {
  auto place = std::make_unique<torch::Tensor>(
      make_vector(allocate, {vector.scalar_type(), vector.numel()}, vector.device()));
  place->copy_(vector);
  void* memory = place->data_ptr();
  const auto release = [](void* context) {
    delete static_cast<torch::Tensor*>(context);
  };  // the signature that c10::DataPtr needs
  vector.storage().set_data_ptr(c10::DataPtr(memory, place.release(), release, vector.device()));
}

// Includes the module itself if a shared_ptr owns it.
std::vector<std::shared_ptr<comm::UsesCommunicator>> users_in(torch::nn::Module& module) {
  auto all = module.modules(/*include_self=*/false);
  if (const auto self = module.weak_from_this().lock()) all.push_back(self);
  std::vector<std::shared_ptr<comm::UsesCommunicator>> users;
  for (const auto& each : all) {
    auto user = std::dynamic_pointer_cast<comm::UsesCommunicator>(each);
    if (user && std::find(users.begin(), users.end(), user) == users.end()) users.push_back(std::move(user));
  }
  return users;
}

template <class Embedding>
bool is_sparse(const torch::nn::Module& module) {
  const auto* embedding = module.as<Embedding>();
  return embedding != nullptr && embedding->options.sparse();
}

std::vector<Parameters::SparseTable> sparse_tables_in(torch::nn::Module& module) {
  std::vector<Parameters::SparseTable> tables;
  const auto look_at = [&](const std::string& prefix, const torch::nn::Module& part) {
    if (!is_sparse<torch::nn::EmbeddingImpl>(part) && !is_sparse<torch::nn::EmbeddingBagImpl>(part)) return;
    const torch::Tensor weight = part.named_parameters(/*recurse=*/false)["weight"];
    if (weight.requires_grad()) tables.push_back({prefix + "weight", weight.size(0), weight.nbytes()});
  };
  look_at("", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    look_at(item.key() + ".", *item.value());
  return tables;
}

std::vector<std::string> sharded_tables_in(torch::nn::Module& module) {
  std::vector<std::string> names;
  const auto look_at = [&](const std::string& name, const torch::nn::Module& part) {
    const auto* table = dynamic_cast<const HasShardedRows*>(&part);
    if (table != nullptr && table->has_sharded_rows()) names.push_back(name);
  };
  look_at("the module itself", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    look_at(item.key(), *item.value());
  return names;
}

[[noreturn]] void fail_nothing_to_train(size_t frozen) {
  fail(ErrorKind::InvalidArgument,
       "the module has no parameter to train ({} frozen): register its submodules, and do not freeze all of "
       "them",
       frozen);
}

}  // namespace

Parameters::Parameters(torch::nn::Module& module, const ParametersOptions& options)
    : allocate_(options.allocate),
      layout_(options.layout),
      may_be_empty_(options.may_be_empty),
      communicator_users_(users_in(module)),
      sharded_tables_(sharded_tables_in(module)),
      sparse_tables_(sparse_tables_in(module)) {
  const std::vector<View> parameters = once_each(module.named_parameters(), aliases_);
  require_disjoint(parameters);
  for (const View& view : parameters) (view.tensor.requires_grad() ? trained_ : frozen_).push_back(view);
  buffers_ = once_each(module.named_buffers(), aliases_);
  std::erase_if(buffers_, [](const View& buffer) { return !buffer.tensor.defined(); });
  if (trained_.empty() && !may_be_empty_)
    require_no_sharded_tables(*this, "without ParametersOptions::may_be_empty");
  if (trained_.empty() && !may_be_empty_) fail_nothing_to_train(frozen_.size());
  if (!parameters.empty())
    require_trainable(parameters, (trained_.empty() ? parameters : trained_).front().tensor.device());
  const torch::NoGradGuard no_grad;
  place_trained();
  place_buffers();
}

void Parameters::freeze(std::span<const std::string> names) {
  if (names.empty()) return;
  const std::unordered_set<std::string_view> chosen(names.begin(), names.end());
  const auto stays = [&](const View& view) { return !chosen.contains(view.name); };
  if (!may_be_empty_ && std::none_of(trained_.begin(), trained_.end(), stays))
    fail_nothing_to_train(trained_.size() + frozen_.size());
  const torch::NoGradGuard no_grad;
  const auto first = std::stable_partition(trained_.begin(), trained_.end(), stays);
  for (auto view = first; view != trained_.end(); ++view) {
    view->tensor.mutable_grad() = torch::Tensor();
    view->tensor.set_requires_grad(false);
    view->tensor.set_data(view->tensor.detach().clone());
    frozen_.push_back({view->name, view->tensor, {}, 0, 0});
  }
  trained_.erase(first, trained_.end());
  std::erase_if(sparse_tables_, [&](const SparseTable& table) { return chosen.contains(table.name); });
  place_trained();
}

// Autograd adds nothing to the gradients of frozen parameters, and the gradients of unfrozen ones are not in
// the vectors.
void Parameters::require_as_made() const {
  constexpr const char* kBefore =
      "set requires_grad before creating Parameters or a Trainer; to train other parameters later, create "
      "new Parameters or a new Trainer for the module";
  for (const View& view : trained_) {
    if (view.tensor.requires_grad()) continue;
    fail(ErrorKind::InvalidArgument,
         "the parameter {} was frozen after the parameters had been joined into one vector: {}", view.name,
         kBefore);
  }
  for (const View& view : frozen_) {
    if (!view.tensor.requires_grad()) continue;
    fail(ErrorKind::InvalidArgument,
         "the parameter {} was unfrozen after the parameters had been joined into one vector, which does not "
         "contain it: {}",
         view.name, kBefore);
  }
}

void Parameters::move(const Allocate& allocate) {
  const torch::NoGradGuard no_grad;
  for (const Section& block : blocks_) {
    move_vector(allocate, block.values);
    move_vector(allocate, block.grads);
  }
  for (const torch::Tensor& vector : buffer_vectors_) move_vector(allocate, vector);
}

void Parameters::place_trained() {
  blocks_.clear();
  if (trained_.empty()) return;
  const torch::Device device = trained_.front().tensor.device();
  for (const Vector& vector : assign_places(trained_))
    blocks_.push_back(
        {make_vector(allocate_, vector, device), make_vector(allocate_, vector, device), blocks_.size(), 0});
  for (View& view : trained_) {
    const torch::Tensor value = view_of(view, blocks_[view.block].values);
    value.copy_(view.tensor);
    view.tensor.set_data(value);
    view.grad = view_of(view, blocks_[view.block].grads);
    view.tensor.mutable_grad() = view.grad;
  }
}

void Parameters::place_buffers() {
  std::vector<View> floating;
  for (const View& buffer : buffers_) {
    if (buffer.tensor.is_floating_point()) floating.push_back(buffer);
  }
  for (const Vector& vector : assign_places(floating))
    buffer_vectors_.push_back(make_vector(allocate_, vector, device()));
  for (const View& buffer : floating) {
    const torch::Tensor value =
        view_at(buffer_vectors_[buffer.block], buffer.offset, buffer.tensor, Layout::Contiguous);
    value.copy_(buffer.tensor);
    buffer.tensor.set_data(value);
  }
}

std::vector<const Parameters::View*> Parameters::all() const {
  std::vector<const View*> views;
  for (const auto* list : {&trained_, &frozen_, &buffers_}) {
    for (const View& view : *list) views.push_back(&view);
  }
  return views;
}

const torch::Tensor& Parameters::values() const {
  if (blocks_.size() != 1) {
    fail(ErrorKind::InvalidArgument,
         "the parameters have {} types and so are stored in {} vectors; use blocks()", blocks_.size(),
         blocks_.size());
  }
  return blocks_.front().values;
}

const torch::Tensor& Parameters::grads() const {
  values();
  return blocks_.front().grads;
}

torch::Tensor Parameters::view_of(const View& view, const torch::Tensor& vector) const {
  return view_at(vector, view.offset, view.tensor, layout_);
}

int64_t Parameters::size() const {
  int64_t elements = 0;
  for (const View& view : trained_) elements += view.tensor.numel();
  return elements;
}

void Parameters::zero_grads() {
  const torch::NoGradGuard no_grad;
  for (Section& block : blocks_) block.grads.zero_();
}

void Parameters::collect_grads() {
  for (size_t i = 0; i < trained_.size(); ++i) collect_grad(i);
}

void Parameters::collect_grad(size_t parameter) {
  const torch::NoGradGuard no_grad;
  View& view = trained_[parameter];
  torch::Tensor& grad = view.tensor.mutable_grad();
  if (grad.defined() && grad.is_same(view.grad)) return;
  if (!grad.defined()) {
    view.grad.zero_();
  } else if (grad.is_sparse() || grad.data_ptr() != view.grad.data_ptr()) {
    view.grad.copy_(grad.is_sparse() ? grad.to_dense() : grad);
  }
  grad = view.grad;
}

std::string Parameters::sha256() const {
  std::vector<const View*> by_name;
  for (const View& view : trained_) by_name.push_back(&view);
  std::sort(by_name.begin(), by_name.end(), [](const View* a, const View* b) { return a->name < b->name; });
  Sha256 hash;
  for (const View* view : by_name) {
    const torch::Tensor bytes = view->tensor.detach().to(torch::kCPU).contiguous();
    hash.update({static_cast<const std::byte*>(bytes.data_ptr()), bytes.nbytes()});
  }
  return hash.hex();
}

std::vector<std::string> Parameters::plan() const {
  std::vector<std::string> lines;
  for (const View& view : trained_) lines.push_back(fmt::format("{} {}", view.name, describe(view.tensor)));
  return lines;
}

void require_no_sharded_tables(const Parameters& parameters, std::string_view where) {
  if (parameters.sharded_tables().empty()) return;
  fail(ErrorKind::InvalidArgument,
       "the sharded embedding '{}' cannot be trained {}: use a Trainer, or a Loop with "
       "DistributedOptimizerOptions::module, with all-reduce or parameter servers, or let every worker have "
       "the whole table (EmbeddingOptions::replicate_up_to)",
       parameters.sharded_tables().front(), where);
}

std::string describe(const torch::Tensor& tensor) {
  return fmt::format("{}[{}]", type_name(tensor.scalar_type()), fmt::join(tensor.sizes(), ","));
}

}  // namespace tutti
