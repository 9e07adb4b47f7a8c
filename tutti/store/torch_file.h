#pragma once

#include <string>
#include <vector>

#include "tutti/store/safetensors.h"

namespace tutti::store {

// Files that torch.save() of Python has written: a ZIP archive with a pickle that describes a dictionary, and
// the elements of its tensors.

// Returns true if the file is a ZIP archive, or begins like a file of torch.save() of PyTorch before 1.6.
bool is_torch_file(const std::string& path);

struct TorchFile {
  NamedTensors tensors;  // on the CPU, in the order of the file
  // The key of the inner dictionary with the tensors: "state_dict" in {"state_dict": {...}, "epoch": 3}. "":
  // the tensors are in the file's dictionary itself.
  std::string key;
};

// Reads the tensors of a dictionary that torch.save() has written, such as model.state_dict(), or of the only
// dictionary of tensors in it. Nothing that the file names is executed (pickle.h). Throws a DataLoss that
// names the file if it is damaged, InvalidArgument if it has no such dictionary or several, and Unimplemented
// if it has objects of classes, or tensors of a kind that safetensors files cannot contain.
TorchFile read_torch_file(const std::string& path);

// Reads all tensors of a file of either kind.
NamedTensors read_tensor_file(const std::string& path);

}  // namespace tutti::store
