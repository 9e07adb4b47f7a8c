#include "tools/test_parsers.h"

#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/types.h>

#include "tools/launch/host_slots.h"
#include "tools/plot/events.h"
#include "tutti/base/config.h"
#include "tutti/base/error.h"
#include "tutti/base/every.h"
#include "tutti/base/flags.h"
#include "tutti/base/hashes.h"
#include "tutti/base/test_folder.h"
#include "tutti/base/text.h"
#include "tutti/cluster/cluster_spec.h"
#include "tutti/cluster/device_spec.h"
#include "tutti/cluster/discovery/discovery.h"
#include "tutti/cluster/discovery/host_list.h"
#include "tutti/data/idx.h"
#include "tutti/data/tables/table_source.h"
#include "tutti/rpc/frame.h"
#include "tutti/store/manifest.h"
#include "tutti/store/safetensors.h"
#include "tutti/store/torch_file.h"

namespace tutti::test_parsers {
namespace {

using Read = std::function<void(const std::string& path)>;

std::span<const std::byte> bytes_in(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

template <class Number>
std::string little_endian(Number number) {
  std::string bytes(sizeof(number), '\0');
  std::memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

// Returns a parser of files with this name.
std::function<void(const std::string&)> of_file(const std::string& name, const Read& read) {
  return [name, read](const std::string& input) {
    static const TestFolder kFolder;
    read(kFolder.write(name, input));
  };
}

// One argument per line.
void parse_flags(const std::string& input) {
  RunConfig config;
  FlagSet set("a program");
  add_standard_flags(set, config);
  std::vector<std::string> words = split(input, '\n');
  words.insert(words.begin(), "program");
  // A file of flags is another parser's input.
  std::erase_if(words, [](const std::string& word) { return word.find("config") != std::string::npos; });
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  static_cast<void>(set.parse(static_cast<int>(arguments.size()), arguments.data(), Environment{}));
}

// NAME=VALUE lines.
void parse_variables(const std::string& input) {
  std::map<std::string, std::string> variables;
  for (const std::string& line : split(input, '\n')) {
    const size_t equals = line.find('=');
    if (equals != std::string::npos) variables[line.substr(0, equals)] = line.substr(equals + 1);
  }
  const Environment environment(variables);
  for (const auto from : {discovery::from_torchrun, discovery::from_open_mpi, discovery::from_pmi,
                          discovery::from_pmix, discovery::from_slurm}) {
    try {
      from(environment);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Bug) throw;
    }
  }
}

void parse_frame(const std::string& input) {
  if (input.size() < rpc::kPrefixSize) return;
  const auto bytes = bytes_in(input);
  const auto prefix = rpc::decode_prefix(bytes.subspan(0, rpc::kPrefixSize), {});
  if (bytes.size() < rpc::kPrefixSize + prefix.rest()) return;
  const rpc::Frame frame = rpc::decode_rest(prefix, bytes.subspan(rpc::kPrefixSize, prefix.rest()));
  rpc::decode_json(frame.head);
  // A frame that was read is written with the same bytes.
  if (rpc::encode(frame) != input.substr(0, rpc::kPrefixSize + prefix.rest()))
    throw std::logic_error("another frame was written than read");
}

// The text after the line of the checksum, which is computed.
void read_manifest_with(const std::string& path, const std::string& rest) {
  const TestFolder folder;
  const std::string text =
      fmt::format("{{\n  \"checksum\": \"crc32c:{:08x}\",{}", crc32c(bytes_in(rest)), rest);
  store::read_manifest(folder.write(path, text));
}

// A record of an event file, whose checksums are computed.
std::string event_record(const std::string& message) {
  const auto masked = [](std::string_view bytes) {
    const uint32_t crc = crc32c(bytes_in(bytes));
    return little_endian<uint32_t>((crc >> 15 | crc << 17) + 0xa282ead8U);
  };
  const std::string length = little_endian<uint64_t>(message.size());
  return length + masked(length) + message + masked(message);
}

void add_events_of(const std::string& bytes) {
  plot::PlottedRun run;
  plot::add_events(bytes, "a file", run);
}

// Reads a shard with one table as all kinds of tables.
void read_tables(const std::string& file, const std::string& input) {
  const TestFolder folder;
  folder.write(file, input);
  for (const data::TableKind& kind :
       {data::TableKind(data::float32()), data::TableKind(data::int64()), data::ragged(data::int64()),
        data::padded(3), data::indices(10), data::ragged(data::categories(8))}) {
    for (const data::BadRows bad : {data::BadRows::Error, data::BadRows::Skip}) {
      try {
        const auto source = data::table_source({folder.path()}, {{"t", {file, kind}}}, {.bad_rows = bad});
        std::vector<int64_t> all(static_cast<size_t>(source->size()));
        std::iota(all.begin(), all.end(), 0);
        source->read(all);
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::Bug) throw;
      }
    }
  }
}

std::string safetensors_seed() {
  const std::string head =
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"k":"v"}})";
  return little_endian<uint64_t>(head.size()) + head + std::string(8, '\1');
}

std::string torch_seed() {
  c10::Dict<std::string, torch::Tensor> tensors;
  tensors.insert("a", torch::arange(3));
  const std::vector<char> bytes = torch::jit::pickle_save(tensors);
  return {bytes.begin(), bytes.end()};
}

std::string frame_seed() {
  rpc::Frame frame;
  frame.method = "push";
  frame.head = R"({"a": [1, "b"]})";
  rpc::PieceHeader piece;
  piece.size = 4;
  frame.pieces = {piece};
  piece.place = 64;
  frame.into = {piece};
  return rpc::encode(frame);
}

// The protobuf message Event {step: 7, summary {value {tag: "loss", simple_value: 1.0}}}.
const std::string kEvent("\x10\x07\x2a\x0d\x0a\x0b\x0a\x04loss\x15\x00\x00\x80\x3f", 17);

}  // namespace

std::vector<Parser> make_parsers() {
  return {
      {"flags", {"--steps\n10\n--lanes=4", "--no-drop-remainder\n--checkpoint-every\n10s"}, parse_flags},
      {"tf_config",
       {R"({"cluster": {"chief": ["a:1"], "worker": ["b:2", "[::1]:3"], "ps": ["c:4"]}, "task": {"type": "worker", "index": 1}})"},
       discovery::from_tf_config},
      {"launcher_variables",
       {"RANK=1\nWORLD_SIZE=2\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=a\nMASTER_PORT=1",
        "SLURM_PROCID=1\nSLURM_NTASKS=2\nSLURM_LOCALID=1\nSLURM_STEP_ID=0\nSLURM_JOB_ID=7\nSLURM_STEP_"
        "NODELIST=n["
        "1-2]\nSLURM_STEP_TASKS_PER_NODE=1(x2)\nSLURM_NODEID=1\nSLURM_STEP_NUM_TASKS=2",
        "OMPI_COMM_WORLD_RANK=0\nOMPI_COMM_WORLD_SIZE=1\nPMI_RANK=0\nPMI_SIZE=1\nPMIX_RANK=0"},
       parse_variables},
      {"slurm_hosts", {"node[01-03,7],gpu[1-2]x"}, discovery::expand_host_list},
      {"slurm_tasks", {"2(x3),1"}, discovery::parse_tasks_per_node},
      {"host_slots", {"a:4,b:2,c"}, parse_hosts},
      {"cluster_spec", {"ps|h:2222,worker|h:2223;[::1]:2224", R"({"worker": ["a:1"]})"}, ClusterSpec::parse},
      {"device_spec", {"/job:ps/replica:0/task:1/device:cpu:0"}, DeviceSpec::parse},
      {"every", {"10", "5s", "auto"}, parse_every},
      {"steps", {"3", "3..7"}, parse_step_interval},
      {"frame", {frame_seed()}, parse_frame},
      {"idx",
       {std::string("\0\0\x08\x02\0\0\0\x02\0\0\0\x03"
                    "abcdef",
                    18)},
       of_file("a.idx", data::read_idx)},
      {"safetensors",
       {safetensors_seed()},
       of_file("a.safetensors", [](const std::string& path) { store::SafetensorsFile(path).read_all(); })},
      {"torch_file", {torch_seed()}, of_file("a.pt", store::read_torch_file)},
      {"manifest",
       {R"("format": 1, "step": 3, "sequence": 1, "tutti_version": "1", "libtorch_version": "2", "state": {}, "files": [{"name": "a.safetensors", "part": "weights", "bytes": 8, "crc32c": 5}]})"},
       [](const std::string& input) { read_manifest_with("manifest.json", input); }},
      {"events", {event_record(kEvent) + event_record(kEvent)}, add_events_of},
      {"event_message", {kEvent}, [](const std::string& input) { add_events_of(event_record(input)); }},
      {"tsv",
       {"ID\tx\ty\na\t1\t2.5\nb\t3 4\t-1e3\n"},
       [](const std::string& input) { read_tables("t.tsv", input); }},
      {"csv",
       {"ID,x,y\r\n\"a\",\"1,2\",[3;4]\r\nb,,nan\r\n"},
       [](const std::string& input) { read_tables("t.csv", input); }},
  };
}

void try_to_parse(const Parser& parser, const std::string& input) {
  try {
    parser.parse(input);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Bug) throw std::logic_error(error.what());
  } catch (const std::exception& error) {
    throw std::logic_error(fmt::format("not an Error of Tutti: {}", error.what()));
  }
}

}  // namespace tutti::test_parsers
