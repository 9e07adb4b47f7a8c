/* Sums, collectives and messages between processes, in shared memory and over TCP, for C and for all that can
 * call it. Sums are added along a fixed tree over the ranks: they have the same bits in each run, on every
 * rank and over every transport, whatever the size of the messages.
 *
 *   tutti_comm* comm = NULL;
 *   if (tutti_init(NULL, &comm) != TUTTI_OK) { fprintf(stderr, "%s\n", tutti_error_text()); return 1; }
 *   tutti_all_reduce(comm, values, values, 1000, TUTTI_FLOAT32, TUTTI_SUM, NULL);
 *   tutti_free(comm);
 *
 * Every function that can fail returns a tutti_status. tutti_error_text() has the reason of the last failure
 * of the calling thread: one line, the same on all ranks, which names the rank at fault. After a failure of a
 * communicator every call on it returns the same, until tutti_reconfigure().
 *
 * All ranks of a communicator have to call the same operations in the same order, with the same counts, types
 * and roots. Buffers of one call must not overlap, except that input and output may be the same. A
 * communicator may be used by one thread at a time.
 */
#ifndef TUTTI_C_TUTTI_H
#define TUTTI_C_TUTTI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tutti_comm tutti_comm;
typedef struct tutti_work tutti_work;
typedef struct tutti_lane_sum tutti_lane_sum;

typedef enum tutti_status {
  TUTTI_OK = 0,
  TUTTI_INVALID_ARGUMENT = 1, /* change what was asked for */
  TUTTI_PEER_LOST = 2,        /* another rank is gone */
  TUTTI_TIMEOUT = 3,          /* a rank is late */
  TUTTI_DATA_LOSS = 4,        /* bytes are missing or wrong */
  TUTTI_OVERLOADED = 5,       /* memory, descriptors or the like ran out */
  TUTTI_UNIMPLEMENTED = 6,    /* this build does not support it */
  TUTTI_BUG = 7               /* a bug in Tutti: report it */
} tutti_status;

typedef enum tutti_type {
  TUTTI_UINT8 = 0,
  TUTTI_INT8 = 1,
  TUTTI_INT16 = 2,
  TUTTI_INT32 = 3,
  TUTTI_INT64 = 4,
  TUTTI_FLOAT16 = 5,
  TUTTI_FLOAT32 = 6,
  TUTTI_FLOAT64 = 7,
  TUTTI_COMPLEX64 = 9,
  TUTTI_COMPLEX128 = 10,
  TUTTI_BOOL = 11,
  TUTTI_BFLOAT16 = 15
} tutti_type;

/* Of booleans the sum means "any" and the product "all". Averages are of floating-point and complex numbers,
 * minimum and maximum not of complex ones; the last three, bit by bit, of integers and booleans. */
typedef enum tutti_op {
  TUTTI_SUM = 0,
  TUTTI_AVERAGE = 1,
  TUTTI_MIN = 2,
  TUTTI_MAX = 3,
  TUTTI_PRODUCT = 4,
  TUTTI_BAND = 5,
  TUTTI_BOR = 6,
  TUTTI_BXOR = 7
} tutti_op;

/* A store of the caller's, at which the ranks meet: every rank can read what any rank has set. The functions
 * return 0, or anything else if they fail. */
typedef struct tutti_store {
  size_t size; /* sizeof(tutti_store) */
  void* context;
  int (*set)(void* context, const char* key, const char* value);
  /* Waits until the key is set, which fails once the time is over: some keys are only looked for. Calls
   * found(result, value) with its value before it returns. */
  int (*get)(void* context, const char* key, double timeout_seconds,
             void (*found)(void* result, const char* value), void* result);
} tutti_store;

/* How ranks connect. Zeros are the defaults; `size` has to be set. */
typedef struct tutti_init_options {
  size_t size;            /* sizeof(tutti_init_options) */
  double timeout_seconds; /* to connect, and of each operation without its own; 0: TUTTI_TIMEOUT, else 60 */
  const char* transport;  /* "auto", "shm", "tcp", "shm+tcp", "mpi"; NULL: TUTTI_COMM, else auto */
  /* NULL: the launcher's environment says rank and size (tutti run, mpirun, srun, torchrun, TF_CONFIG);
   * without a launcher this process is alone. With a store these are given here. */
  const tutti_store* store;
  int rank;
  int world;
  const char* name; /* of the ranks of a store, in error texts: "worker"; launchers have names of their own */
} tutti_init_options;

/* Options of an operation. Zeros are the defaults; `size` has to be set. */
typedef struct tutti_options {
  size_t size;            /* sizeof(tutti_options) */
  double timeout_seconds; /* 0: the communicator's */
  const char* what;       /* what is moved, for error texts; it must outlive the operation */
  /* If not NULL, the call returns at once. The buffers may not be used before tutti_wait(), and the work has
   * to be freed. Operations run in the order of the calls. */
  tutti_work** work;
  int any_order; /* sums may be added in the fastest order, so that their bits may differ */
} tutti_options;

/* The version of this interface, of the header and of the library. Functions and fields are only ever added.
 */
#define TUTTI_C_VERSION 1
int tutti_c_version(void);
/* The release: "0.1.0". */
const char* tutti_version(void);

/* The reason of the last failure of the calling thread; "" if there was none. Valid until its next failure.
 */
const char* tutti_error_text(void);
/* "timeout". */
const char* tutti_status_name(tutti_status status);
/* The bytes of an element; 0 for an unknown type. */
size_t tutti_type_size(tutti_type type);

/* Connects the ranks; every one has to call it. `options` may be NULL. */
tutti_status tutti_init(const tutti_init_options* options, tutti_comm** comm);
/* Leaves the others in good order, after all operations. NULL is ignored. */
void tutti_free(tutti_comm* comm);
/* Makes all ranks fail with this text, and operations in progress end. From any thread. */
void tutti_abort(tutti_comm* comm, const char* why);

int tutti_rank(const tutti_comm* comm);
int tutti_world(const tutti_comm* comm);
/* Among the ranks of this host. */
int tutti_local_rank(const tutti_comm* comm);
int tutti_local_world(const tutti_comm* comm);
/* "shm", "tcp", "shm+tcp", "mpi"; "inproc" for a rank alone: valid as long as the communicator. */
const char* tutti_transport(const tutti_comm* comm);

/* A communicator of these ranks, in this order; only they call it, with a name that no other group has had.
 */
tutti_status tutti_group(tutti_comm* comm, const int* ranks, int count, const char* name, tutti_comm** group);

/* In all of these `count` is the number of elements of one part: of what each rank gives, or gets. Arrays of
 * pointers and counts have one entry for each rank. */
tutti_status tutti_all_reduce(tutti_comm* comm, const void* input, void* output, size_t count,
                              tutti_type type, tutti_op op, const tutti_options* options);
/* Only the root uses `output`. */
tutti_status tutti_reduce(tutti_comm* comm, const void* input, void* output, size_t count, tutti_type type,
                          tutti_op op, int root, const tutti_options* options);
tutti_status tutti_broadcast(tutti_comm* comm, void* values, size_t count, tutti_type type, int root,
                             const tutti_options* options);
tutti_status tutti_all_gather(tutti_comm* comm, const void* input, void* output, size_t count,
                              tutti_type type, const tutti_options* options);
tutti_status tutti_all_gather_v(tutti_comm* comm, const void* input, void* const* outputs,
                                const size_t* counts, tutti_type type, const tutti_options* options);
/* The input has a part for each rank, one after the other. */
tutti_status tutti_reduce_scatter(tutti_comm* comm, const void* input, void* output, size_t count,
                                  tutti_type type, tutti_op op, const tutti_options* options);
tutti_status tutti_reduce_scatter_v(tutti_comm* comm, const void* input, void* output, const size_t* counts,
                                    tutti_type type, tutti_op op, const tutti_options* options);
tutti_status tutti_all_to_all(tutti_comm* comm, const void* input, void* output, size_t count,
                              tutti_type type, const tutti_options* options);
tutti_status tutti_all_to_all_v(tutti_comm* comm, const void* const* inputs, const size_t* input_counts,
                                void* const* outputs, const size_t* output_counts, tutti_type type,
                                const tutti_options* options);
/* Only the root uses `outputs`, and in scatter `inputs`. */
tutti_status tutti_gather(tutti_comm* comm, const void* input, void* const* outputs, size_t count,
                          tutti_type type, int root, const tutti_options* options);
tutti_status tutti_scatter(tutti_comm* comm, const void* const* inputs, void* output, size_t count,
                           tutti_type type, int root, const tutti_options* options);
/* A receiver takes the messages with its tag, those of a rank in the order in which they were sent. It has to
 * expect the count and the type that were sent. */
tutti_status tutti_send(tutti_comm* comm, const void* values, size_t count, tutti_type type, int to, int tag,
                        const tutti_options* options);
/* From TUTTI_ANY_RANK it takes a message of any rank that has not left; if all have, it is TUTTI_PEER_LOST.
 * `source`, if it is not NULL, gets the rank of the sender: it has to exist until the operation has ended. */
#define TUTTI_ANY_RANK (-1)
tutti_status tutti_recv(tutti_comm* comm, void* values, size_t count, tutti_type type, int from, int tag,
                        int* source, const tutti_options* options);
tutti_status tutti_barrier(tutti_comm* comm, const tutti_options* options);

/* Waits until the operation has ended; returns how. */
tutti_status tutti_wait(tutti_work* work);
/* Sets `done` to 1 if it has ended, and returns how, else to 0. */
tutti_status tutti_test(tutti_work* work, int* done);
/* Calls done(context) once it has ended, from a thread of the library, or at once. It must not throw or
 * block: to wait there for an operation that still runs is TUTTI_INVALID_ARGUMENT. */
tutti_status tutti_then(tutti_work* work, void (*done)(void* context), void* context);
/* The operation is carried out anyway. NULL is ignored. */
void tutti_work_free(tutti_work* work);

/* Under `tutti run --min`, ranks may leave and join: the time between two changes is an epoch. One that is
 * started again comes out of tutti_init() with the others' next tutti_reconfigure(). */
uint64_t tutti_epoch(const tutti_comm* comm);
/* Sets `due` to 1 if the launcher wants the epoch to end, which all ranks have to agree on. */
tutti_status tutti_change_is_due(tutti_comm* comm, int* due);
/* After a failure, or if a change is due: connects with the ranks of the next epoch, who all call it. Rank
 * and world are other ones afterwards. */
tutti_status tutti_reconfigure(tutti_comm* comm);

/* Lanes: a training has the same bits on any number of ranks if every batch is divided into a fixed number of
 * lanes, which are added along a tree over the lanes. Each rank has a contiguous block of lanes, [begin,
 * end).
 */
tutti_status tutti_lanes_of(int rank, int world, int64_t lanes, int64_t* begin, int64_t* end);
/* The seed of the random numbers of a lane in a step, which does not depend on who has the lane. */
uint64_t tutti_lane_seed(int64_t seed, int64_t step, int64_t lane);

/* How lanes draw examples, without a list of them. Every epoch has each example once. */
typedef struct tutti_sampling {
  size_t size;      /* sizeof(tutti_sampling) */
  int64_t examples; /* in all */
  int64_t lanes;    /* in all */
  int64_t batch;    /* examples of a lane in a step */
  int64_t seed;
  int in_order;       /* not shuffled */
  int drop_remainder; /* leaves out a last step that is not full */
} tutti_sampling;
tutti_status tutti_steps_per_epoch(const tutti_sampling* how, int64_t* steps);
/* The numbers of the examples of a lane in a step, counted over all epochs: `batch` or fewer. */
tutti_status tutti_lane_examples(const tutti_sampling* how, int64_t step, int64_t lane, int64_t* examples,
                                 size_t* count);

/* The sum of all lanes of all ranks. In each step a rank writes the values of its lanes into the memory
 * `values`, one after the other, and adds each; finish() leaves the sum of all there, divided by the divisor
 * unless that is 0. The communicator has to outlive it. */
tutti_status tutti_lane_sum_new(tutti_comm* comm, int64_t lanes, void* values, size_t count, tutti_type type,
                                tutti_lane_sum** sum);
/* Adds the next lane of this rank; without data it changes nothing, not even by zeros. */
tutti_status tutti_lane_sum_add(tutti_lane_sum* sum, int has_data);
/* Every rank calls it. If no lane had data, the sum is zero. Only floating-point numbers are divided. */
tutti_status tutti_lane_sum_finish(tutti_lane_sum* sum, double divisor, const tutti_options* options);
/* Forgets the lanes of a step that was broken off. */
tutti_status tutti_lane_sum_reset(tutti_lane_sum* sum);
void tutti_lane_sum_free(tutti_lane_sum* sum);

/* The checksum of checkpoints: CRC-32C, going on from that of the bytes before. */
uint32_t tutti_crc32c(const void* bytes, size_t size, uint32_t before);

#ifdef __cplusplus
}
#endif

#endif
