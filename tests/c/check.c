/* Every function of the C interface, with processes that this program forks and that meet at a store of its own: a
 * folder of files. Usage: check WORLD [TRANSPORT]. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tutti/c/tutti.h"

static int failures = 0;

#define CHECK(condition)                                                                          \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      fprintf(stderr, "%s:%d: %s does not hold (%s)\n", __FILE__, __LINE__, #condition,           \
              tutti_error_text());                                                                \
      ++failures;                                                                                 \
    }                                                                                             \
  } while (0)
#define OK(call) CHECK((call) == TUTTI_OK)

static void path_of(char* path, size_t size, const char* folder, const char* key) {
  size_t end = (size_t)snprintf(path, size, "%s/%s", folder, key);
  for (size_t i = strlen(folder) + 1; i < end && i < size; ++i)
    if (path[i] == '/') path[i] = '_';
}

static int set(void* folder, const char* key, const char* value) {
  char path[512], part[528];
  path_of(path, sizeof path, folder, key);
  snprintf(part, sizeof part, "%s.%d", path, (int)getpid());
  FILE* file = fopen(part, "w");
  if (file == NULL) return 1;
  fputs(value, file);
  fclose(file);
  return rename(part, path);
}

static int get(void* folder, const char* key, double timeout, void (*found)(void*, const char*), void* result) {
  char path[512], value[4096];
  path_of(path, sizeof path, folder, key);
  for (double waited = 0; waited < timeout; waited += 0.002) {
    FILE* file = fopen(path, "r");
    if (file != NULL) {
      size_t size = fread(value, 1, sizeof value - 1, file);
      value[size] = '\0';
      fclose(file);
      found(result, value);
      return 0;
    }
    struct timespec pause = {0, 2000000};
    nanosleep(&pause, NULL);
  }
  return 1;
}

static void sums(tutti_comm* comm) {
  const int rank = tutti_rank(comm), world = tutti_world(comm);
  const size_t sizes[] = {0, 1, 3, 1000, 100003};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; ++s) {
    const size_t count = sizes[s];
    float* values = malloc((count + 1) * sizeof(float));
    double* wide = malloc((count + 1) * sizeof(double));
    for (size_t i = 0; i < count; ++i) {
      values[i] = (float)((double)(rank + 1) * (double)(i % 7));
      wide[i] = rank + 1;
    }
    OK(tutti_all_reduce(comm, values, values, count, TUTTI_FLOAT32, TUTTI_SUM, NULL));
    for (size_t i = 0; i < count; ++i) CHECK(values[i] == (float)(world * (world + 1) / 2) * (float)(i % 7));
    double* output = malloc((count + 1) * sizeof(double));
    OK(tutti_all_reduce(comm, wide, output, count, TUTTI_FLOAT64, TUTTI_MAX, NULL));
    for (size_t i = 0; i < count; ++i) CHECK(output[i] == world && wide[i] == rank + 1);
    OK(tutti_all_reduce(comm, wide, output, count, TUTTI_FLOAT64, TUTTI_AVERAGE, NULL));
    for (size_t i = 0; i < count; ++i) CHECK(output[i] == (world + 1) / 2.0);
    output[0] = -1;
    OK(tutti_reduce(comm, wide, rank == world - 1 ? output : NULL, count, TUTTI_FLOAT64, TUTTI_MIN, world - 1, NULL));
    if (rank == world - 1) {
      for (size_t i = 0; i < count; ++i) CHECK(output[i] == 1);
    }
    free(values);
    free(wide);
    free(output);
  }
}

/* One, as a value of each type, and what the sum of it over four ranks at most is. */
static void types(tutti_comm* comm) {
  const int world = tutti_world(comm);
  uint16_t half = 0x3c00, brain = 0x3f80;
  const uint16_t halves[] = {0, 0x3c00, 0x4000, 0x4200, 0x4400}, brains[] = {0, 0x3f80, 0x4000, 0x4040, 0x4080};
  int8_t small = -1;
  int16_t middle = -1;
  int32_t whole = -1;
  int64_t large = -1;
  uint8_t byte = 1, truth = (uint8_t)(tutti_rank(comm) == 0);
  float complex_one[2] = {1, -1};
  double complex_wide[2] = {0, 1};
  if (world > 4) return;
  OK(tutti_all_reduce(comm, &half, &half, 1, TUTTI_FLOAT16, TUTTI_SUM, NULL));
  OK(tutti_all_reduce(comm, &brain, &brain, 1, TUTTI_BFLOAT16, TUTTI_SUM, NULL));
  OK(tutti_all_reduce(comm, &small, &small, 1, TUTTI_INT8, TUTTI_SUM, NULL));
  OK(tutti_all_reduce(comm, &middle, &middle, 1, TUTTI_INT16, TUTTI_SUM, NULL));
  OK(tutti_all_reduce(comm, &whole, &whole, 1, TUTTI_INT32, TUTTI_SUM, NULL));
  OK(tutti_all_reduce(comm, &large, &large, 1, TUTTI_INT64, TUTTI_SUM, NULL));
  OK(tutti_all_reduce(comm, &byte, &byte, 1, TUTTI_UINT8, TUTTI_SUM, NULL));
  OK(tutti_all_reduce(comm, &truth, &truth, 1, TUTTI_BOOL, TUTTI_SUM, NULL));
  OK(tutti_all_reduce(comm, complex_one, complex_one, 1, TUTTI_COMPLEX64, TUTTI_AVERAGE, NULL));
  OK(tutti_all_reduce(comm, complex_wide, complex_wide, 1, TUTTI_COMPLEX128, TUTTI_PRODUCT, NULL));
  CHECK(half == halves[world] && brain == brains[world]);
  CHECK(small == -world && middle == -world && whole == -world && large == -world && byte == world && truth == 1);
  CHECK(complex_one[0] == 1 && complex_one[1] == -1);
  uint8_t bits = (uint8_t)(0xf0 | 1 << tutti_rank(comm));
  int64_t wide_bits = ~((int64_t)1 << tutti_rank(comm));
  int32_t turned = -1;
  truth = (uint8_t)(tutti_rank(comm) == 0);
  OK(tutti_all_reduce(comm, &bits, &bits, 1, TUTTI_UINT8, TUTTI_BOR, NULL));
  OK(tutti_all_reduce(comm, &wide_bits, &wide_bits, 1, TUTTI_INT64, TUTTI_BAND, NULL));
  OK(tutti_all_reduce(comm, &turned, &turned, 1, TUTTI_INT32, TUTTI_BXOR, NULL));
  OK(tutti_all_reduce(comm, &truth, &truth, 1, TUTTI_BOOL, TUTTI_BXOR, NULL));
  CHECK(bits == (0xf0 | ((1 << world) - 1)) && wide_bits == ~(((int64_t)1 << world) - 1));
  CHECK(turned == (world % 2 == 0 ? 0 : -1) && truth == 1);
  CHECK(tutti_all_reduce(comm, &half, &half, 1, TUTTI_FLOAT16, TUTTI_BAND, NULL) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_all_reduce(comm, &whole, &whole, 1, TUTTI_INT32, (tutti_op)8, NULL) == TUTTI_INVALID_ARGUMENT);
  const double powers[5][2] = {{0, 0}, {0, 1}, {-1, 0}, {0, -1}, {1, 0}};
  CHECK(complex_wide[0] == powers[world][0] && complex_wide[1] == powers[world][1]);
  CHECK(tutti_all_reduce(comm, &whole, &whole, 1, TUTTI_INT32, TUTTI_AVERAGE, NULL) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_all_reduce(comm, complex_one, complex_one, 1, TUTTI_COMPLEX64, TUTTI_MAX, NULL) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_all_reduce(comm, &whole, &whole, 1, (tutti_type)77, TUTTI_SUM, NULL) == TUTTI_INVALID_ARGUMENT);
}

/* Messages with several tags, taken in another order; an empty one; and from any rank. */
static void tags(tutti_comm* comm) {
  const int rank = tutti_rank(comm), world = tutti_world(comm);
  if (world == 1) return;
  static int32_t large[50000];
  if (rank > 0) {
    for (int32_t i = 0; i < 50000; ++i) large[i] = i + rank;
    int32_t tagged[3] = {10 * rank, 10 * rank + 1, 10 * rank + 2};
    tutti_work* works[5] = {NULL};
    tutti_options options = {0};
    options.size = sizeof options;
    for (int i = 0; i < 3; ++i) {
      options.work = &works[i];
      OK(tutti_send(comm, &tagged[i], 1, TUTTI_INT32, 0, i, &options));
    }
    options.work = &works[3];
    OK(tutti_send(comm, large, 50000, TUTTI_INT32, 0, 7, &options));
    options.work = &works[4];
    OK(tutti_send(comm, NULL, 0, TUTTI_INT32, 0, 8, &options));
    for (int i = 0; i < 5; ++i) {
      OK(tutti_wait(works[i]));
      tutti_work_free(works[i]);
    }
    return;
  }
  int seen = 0;
  for (int i = 1; i < world; ++i) {
    int source = -1;
    int32_t value = -1;
    OK(tutti_recv(comm, &value, 1, TUTTI_INT32, TUTTI_ANY_RANK, 2, &source, NULL));
    CHECK(source > 0 && value == 10 * source + 2);
    seen |= 1 << source;
  }
  CHECK(seen == (1 << world) - 2);
  for (int r = world - 1; r > 0; --r) {
    int32_t value = -1;
    OK(tutti_recv(comm, NULL, 0, TUTTI_INT32, r, 8, NULL, NULL));
    OK(tutti_recv(comm, &value, 1, TUTTI_INT32, r, 1, NULL, NULL));
    CHECK(value == 10 * r + 1);
    OK(tutti_recv(comm, large, 50000, TUTTI_INT32, r, 7, NULL, NULL));
    CHECK(large[0] == r && large[49999] == 49999 + r);
    OK(tutti_recv(comm, &value, 1, TUTTI_INT32, r, 0, NULL, NULL));
    CHECK(value == 10 * r);
  }
}

/* Input and output are the same memory, in several chunks, so that a rank may write where it has to read. */
static void same_memory(tutti_comm* comm) {
  enum { kEach = 300000 };
  const int rank = tutti_rank(comm), world = tutti_world(comm);
  int32_t* all = calloc((size_t)world * kEach, sizeof *all);
  const void** inputs = calloc((size_t)world, sizeof *inputs);
  for (int i = 0; i < world * kEach; ++i) all[i] = i % 1000 + rank;
  OK(tutti_reduce_scatter(comm, all, all, kEach, TUTTI_INT32, TUTTI_SUM, NULL));
  for (int i = 0; i < kEach; ++i) CHECK(all[i] == world * ((rank * kEach + i) % 1000) + world * (world - 1) / 2);

  for (int i = 0; i < kEach; ++i) all[i] = i + rank;
  OK(tutti_all_gather(comm, all, all, kEach, TUTTI_INT32, NULL));
  for (int i = 0; i < world * kEach; ++i) CHECK(all[i] == i % kEach + i / kEach);

  const int root = world - 1;
  for (int i = 0; i < world * kEach; ++i) all[i] = i;
  for (int r = 0; r < world; ++r) inputs[r] = all + (size_t)r * kEach;
  OK(tutti_scatter(comm, rank == root ? inputs : NULL, all, kEach, TUTTI_INT32, root, NULL));
  for (int i = 0; i < kEach; ++i) CHECK(all[i] == rank * kEach + i);

  for (int i = 0; i < world * kEach; ++i) all[i] = i + rank;
  OK(tutti_reduce(comm, all, rank == root ? all : NULL, (size_t)world * kEach, TUTTI_INT32, TUTTI_MAX, root, NULL));
  if (rank == root)
    for (int i = 0; i < world * kEach; ++i) CHECK(all[i] == i + world - 1);
  free(all);
  free(inputs);
}

static void movements(tutti_comm* comm) {
  const int rank = tutti_rank(comm), world = tutti_world(comm);
  int32_t value = rank == world - 1 ? 42 : 0;
  OK(tutti_broadcast(comm, &value, 1, TUTTI_INT32, world - 1, NULL));
  CHECK(value == 42);

  int32_t* all = calloc((size_t)(world * world) + 1, sizeof *all);
  int32_t* own = calloc((size_t)(world * world) + 1, sizeof *own);
  void** outputs = calloc((size_t)world, sizeof *outputs);
  const void** inputs = calloc((size_t)world, sizeof *inputs);
  size_t* counts = calloc((size_t)world, sizeof *counts);
  size_t* own_counts = calloc((size_t)world, sizeof *own_counts);
  own[0] = rank;
  OK(tutti_all_gather(comm, own, all, 1, TUTTI_INT32, NULL));
  for (int r = 0; r < world; ++r) CHECK(all[r] == r);

  /* Rank r gives r elements. */
  for (int r = 0; r < world; ++r) {
    counts[r] = (size_t)r;
    outputs[r] = all + r * world;
    own[r] = rank;
  }
  OK(tutti_all_gather_v(comm, own, outputs, counts, TUTTI_INT32, NULL));
  for (int r = 0; r < world; ++r)
    for (int i = 0; i < r; ++i) CHECK(all[r * world + i] == r);

  for (int r = 0; r < world; ++r) own[r] = 10 * rank + r;
  OK(tutti_reduce_scatter(comm, own, all, 1, TUTTI_INT32, TUTTI_SUM, NULL));
  CHECK(all[0] == 10 * world * (world - 1) / 2 + world * rank);
  const int total = world * (world - 1) / 2;
  for (int i = 0; i < total; ++i) own[i] = i;
  OK(tutti_reduce_scatter_v(comm, own, all, counts, TUTTI_INT32, TUTTI_SUM, NULL));
  const size_t count = counts[world - 1];
  counts[world - 1] = (size_t)-5;
  CHECK(tutti_reduce_scatter_v(comm, own, all, counts, TUTTI_INT32, TUTTI_SUM, NULL) == TUTTI_INVALID_ARGUMENT);
  counts[world - 1] = count;
  for (int i = 0; i < rank; ++i) CHECK(all[i] == world * (rank * (rank - 1) / 2 + i));

  for (int r = 0; r < world; ++r) own[r] = 100 * rank + r;
  OK(tutti_all_to_all(comm, own, all, 1, TUTTI_INT32, NULL));
  for (int r = 0; r < world; ++r) CHECK(all[r] == 100 * r + rank);
  OK(tutti_all_to_all(comm, own, own, 1, TUTTI_INT32, NULL));
  for (int r = 0; r < world; ++r) CHECK(own[r] == 100 * r + rank);
  /* Rank r sends r elements to each rank. */
  for (int r = 0; r < world; ++r) {
    own_counts[r] = (size_t)rank;
    inputs[r] = own;
    own[r] = rank;
    outputs[r] = all + r * world;
  }
  OK(tutti_all_to_all_v(comm, inputs, own_counts, outputs, counts, TUTTI_INT32, NULL));
  for (int r = 0; r < world; ++r)
    for (int i = 0; i < r; ++i) CHECK(all[r * world + i] == r);

  own[0] = rank;
  OK(tutti_gather(comm, own, rank == 0 ? outputs : NULL, 1, TUTTI_INT32, 0, NULL));
  for (int r = 0; rank == 0 && r < world; ++r) CHECK(all[r * world] == r);
  for (int r = 0; r < world; ++r) {
    all[r] = 7 * r;
    inputs[r] = all + r;
  }
  OK(tutti_scatter(comm, rank == 0 ? inputs : NULL, own, 1, TUTTI_INT32, 0, NULL));
  CHECK(own[0] == 7 * rank);

  /* Around a ring, behind. */
  if (world > 1) {
    int32_t mine = rank, theirs = -1;
    tutti_work *sent = NULL, *received = NULL;
    tutti_options options = {0};
    options.size = sizeof options;
    options.work = &sent;
    OK(tutti_send(comm, &mine, 1, TUTTI_INT32, (rank + 1) % world, 0, &options));
    options.work = &received;
    OK(tutti_recv(comm, &theirs, 1, TUTTI_INT32, (rank + world - 1) % world, 0, NULL, &options));
    OK(tutti_wait(received));
    OK(tutti_wait(sent));
    CHECK(theirs == (rank + world - 1) % world);
    tutti_work_free(sent);
    tutti_work_free(received);
  }
  tags(comm);
  OK(tutti_barrier(comm, NULL));
  free(all);
  free(own);
  free(outputs);
  free((void*)inputs);
  free(counts);
  free(own_counts);
}

static void note(void* count) { __sync_fetch_and_add((int*)count, 1); }

static void behind(tutti_comm* comm) {
  float values[3][5] = {{0}};
  tutti_work* works[3] = {NULL};
  int ended = 0;
  for (int i = 0; i < 3; ++i) {
    tutti_options options = {0};
    options.size = sizeof options;
    options.work = &works[i];
    for (int j = 0; j < 5; ++j) values[i][j] = (float)i;
    OK(tutti_all_reduce(comm, values[i], values[i], 5, TUTTI_FLOAT32, TUTTI_SUM, &options));
    OK(tutti_then(works[i], note, &ended));
  }
  for (int i = 0; i < 3; ++i) {
    int done = 0;
    while (done == 0) OK(tutti_test(works[i], &done));
    OK(tutti_wait(works[i]));
    CHECK(values[i][4] == (float)(i * tutti_world(comm)));
    tutti_work_free(works[i]);
  }
  OK(tutti_barrier(comm, NULL));
  while (__sync_fetch_and_add(&ended, 0) < 3) {
  }
}

static void groups(tutti_comm* comm) {
  const int rank = tutti_rank(comm), world = tutti_world(comm);
  int members[64], count = 0;
  for (int r = world - 1; r >= 0; r -= 2) members[count++] = r; /* every other one, backwards */
  if ((world - 1 - rank) % 2 == 0) {
    tutti_comm* group = NULL;
    OK(tutti_group(comm, members, count, "odd", &group));
    CHECK(tutti_world(group) == count && tutti_rank(group) == (world - 1 - rank) / 2);
    int32_t one = 1;
    OK(tutti_all_reduce(group, &one, &one, 1, TUTTI_INT32, TUTTI_SUM, NULL));
    CHECK(one == count);
    tutti_free(group);
  }
}

/* Eleven lanes, of which one has no data, with numbers whose sum depends on the order. */
static void lanes(tutti_comm* comm) {
  enum { kLanes = 11 };
  const int rank = tutti_rank(comm), world = tutti_world(comm);
  float lane[kLanes], sum = 0;
  for (int i = 0; i < kLanes; ++i) lane[i] = (i % 2 == 0 ? 1e8f : -1e8f) + (float)(i * i) / 7;
  /* Lane 5 is left out. */
  const float left = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + (lane[4] + (lane[6] + lane[7]));
  const float expected = (left + ((lane[8] + lane[9]) + lane[10])) / 3;
  tutti_lane_sum* total = NULL;
  OK(tutti_lane_sum_new(comm, kLanes, &sum, 1, TUTTI_FLOAT32, &total));
  int64_t begin = 0, end = 0;
  OK(tutti_lanes_of(rank, world, kLanes, &begin, &end));
  for (int step = 0; step < 3; ++step) {
    if (step == 1 && begin < end) { /* a step that is broken off */
      sum = 1;
      OK(tutti_lane_sum_add(total, 1));
      OK(tutti_lane_sum_reset(total));
    }
    for (int64_t i = begin; i < end; ++i) {
      sum = lane[i];
      OK(tutti_lane_sum_add(total, i != 5));
    }
    CHECK(tutti_lane_sum_add(total, 1) == TUTTI_INVALID_ARGUMENT);
    OK(tutti_lane_sum_finish(total, 3, NULL));
    CHECK(sum == expected);
  }
  tutti_lane_sum_free(total);
  CHECK(tutti_lane_sum_new(comm, 0, &sum, 1, TUTTI_FLOAT32, &total) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_lane_seed(1, 2, 3) != tutti_lane_seed(1, 3, 2));

  tutti_sampling how = {0};
  how.size = sizeof how;
  how.examples = 10;
  how.lanes = 2;
  how.batch = 3;
  int64_t steps = 0, examples[3], seen = 0;
  size_t count = 0;
  OK(tutti_steps_per_epoch(&how, &steps));
  CHECK(steps == 2);
  for (int64_t step = 0; step < steps; ++step)
    for (int64_t each = 0; each < how.lanes; ++each) {
      OK(tutti_lane_examples(&how, step, each, examples, &count));
      for (size_t i = 0; i < count; ++i) seen |= INT64_C(1) << examples[i];
    }
  CHECK(seen == 1023);
  CHECK(tutti_lane_examples(&how, 0, 2, examples, &count) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_crc32c("123456789", 9, 0) == 0xE3069283u);
}

static void mistakes(tutti_comm* comm) {
  tutti_options options = {0};
  int32_t value = 0;
  CHECK(tutti_barrier(NULL, NULL) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_barrier(comm, &options) == TUTTI_INVALID_ARGUMENT); /* without its size */
  CHECK(strstr(tutti_error_text(), "`size`") != NULL);
  CHECK(tutti_broadcast(comm, &value, 1, TUTTI_INT32, 99, NULL) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_broadcast(comm, NULL, 1, TUTTI_INT32, 0, NULL) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_init(NULL, NULL) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_wait(NULL) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_reconfigure(comm) == TUTTI_INVALID_ARGUMENT);
  CHECK(tutti_epoch(comm) == 0);
  const int twice[2] = {tutti_rank(comm), tutti_rank(comm)};
  tutti_comm* group = NULL;
  CHECK(tutti_group(comm, twice, 2, "twice", &group) == TUTTI_INVALID_ARGUMENT && group == NULL);
  CHECK(tutti_rank(NULL) == -1 && tutti_world(NULL) == 0);
  tutti_free(NULL);
  tutti_work_free(NULL);
  OK(tutti_barrier(comm, NULL));
}

/* The last call: rank 0 gives up, and all learn why. */
static void abort_all(tutti_comm* comm) {
  if (tutti_world(comm) == 1) return;
  if (tutti_rank(comm) == 0) tutti_abort(comm, "rank 0 has had enough");
  CHECK(tutti_barrier(comm, NULL) == TUTTI_PEER_LOST);
  CHECK(strstr(tutti_error_text(), "rank 0 has had enough") != NULL);
}

#include "misfortunes.inc"

static int run_rank(int rank, int world, const char* transport, char* folder) {
  tutti_store store = {0};
  store.size = sizeof store;
  store.context = folder;
  store.set = set;
  store.get = get;
  tutti_init_options options = {0};
  options.size = sizeof options;
  options.transport = transport;
  options.store = &store;
  options.rank = rank;
  options.world = world;
  tutti_comm* comm = NULL;
  OK(tutti_init(&options, &comm));
  if (comm == NULL) return 1;
  CHECK(tutti_rank(comm) == rank && tutti_world(comm) == world);
  CHECK(tutti_local_rank(comm) == rank && tutti_local_world(comm) == world);
  sums(comm);
  types(comm);
  movements(comm);
  same_memory(comm);
  behind(comm);
  groups(comm);
  lanes(comm);
  mistakes(comm);
  abort_all(comm);
  tutti_free(comm);
  return failures == 0 ? 0 : 1;
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: check WORLD [TRANSPORT]\n");
    return 2;
  }
  const int world = atoi(argv[1]);
  char folder[] = "/tmp/tutti-c-XXXXXX";
  if (mkdtemp(folder) == NULL) return 1;
  for (int rank = 0; rank < world; ++rank)
    if (fork() == 0) _exit(run_rank(rank, world, argc > 2 ? argv[2] : NULL, folder));
  /* Fields are only added at the end. */
  if (offsetof(tutti_options, any_order) != 32 || offsetof(tutti_init_options, name) != 40 ||
      offsetof(tutti_store, get) != 24)
    return 1;
  int bad = tutti_c_version() != TUTTI_C_VERSION || tutti_type_size(TUTTI_COMPLEX128) != 16;
  for (int status = 0; wait(&status) > 0;) bad = bad || status != 0;
  if (world == 3) bad = bad || misfortunes(argc > 2 ? argv[2] : NULL, folder) != 0;
  char command[64];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command) != 0 || bad;
}
