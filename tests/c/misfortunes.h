/* What the C interface says when a program or a rank fails: each case on three ranks of its own. A part of
 * check.c. */

struct meeting {
  char folder[256];
  tutti_store store;
};

/* Tells the other ranks, or waits until a rank has told. */
static void tell(struct meeting* at, const char* key, const char* value) {
  CHECK(set(at->folder, key, value) == 0);
}
static void copy(void* result, const char* value) { snprintf(result, 4000, "%.3999s", value); }
static void hear(struct meeting* at, const char* key, char text[4000]) {
  CHECK(get(at->folder, key, 60, copy, text) == 0);
}

static void expect(tutti_status status, tutti_status expected, const char* part) {
  CHECK(status == expected);
  if (strstr(tutti_error_text(), part) == NULL) {
    fprintf(stderr, "'%s' is not in: %s\n", part, tutti_error_text());
    ++failures;
  }
}

/* Rank 2 comes when the others have given it up: it has their error at once. */
static void late(tutti_comm* comm, struct meeting* at) {
  char text[4000];
  tutti_options soon = {0};
  soon.size = sizeof soon;
  soon.timeout_seconds = 0.5;
  OK(tutti_barrier(comm, NULL));
  if (tutti_rank(comm) < 2) {
    expect(tutti_barrier(comm, &soon), TUTTI_TIMEOUT, "nothing from worker/2");
    CHECK(strstr(tutti_error_text(), "last seen in") == NULL);
    if (strcmp(tutti_transport(comm), "shm") == 0)
      expect(TUTTI_OK, TUTTI_OK, "its last operation was barrier, which it completed");
    if (tutti_rank(comm) == 0) tell(at, "given up", tutti_error_text());
    return;
  }
  hear(at, "given up", text);
  expect(tutti_barrier(comm, NULL), TUTTI_TIMEOUT, text);
}

/* The ranks that make no group have the error of those that do. */
static void other_order(tutti_comm* comm, struct meeting* at) {
  const int rank = tutti_rank(comm), ranks[2] = {rank, 1 - rank};
  tutti_comm* group = NULL;
  char text[4000];
  if (rank < 2) {
    expect(tutti_group(comm, ranks, 2, "pair", &group), TUTTI_INVALID_ARGUMENT,
           "the group 'pair' was not made: worker/");
    CHECK(strstr(tutti_error_text(), " 0 1 ") != NULL || strstr(tutti_error_text(), " 0 1:") != NULL);
    CHECK(strstr(tutti_error_text(), " 1 0 ") != NULL || strstr(tutti_error_text(), " 1 0:") != NULL);
    if (rank == 0) tell(at, "refused", tutti_error_text());
    return;
  }
  hear(at, "refused", text);
  expect(tutti_barrier(comm, NULL), TUTTI_PEER_LOST, text);
}

static void same_name(tutti_comm* comm, struct meeting* at) {
  const int ranks[2] = {0, 1}, others[2] = {1, 2};
  tutti_comm* group = NULL;
  char text[4000];
  if (tutti_rank(comm) == 2) {
    hear(at, "made", text);
    expect(tutti_group(comm, others, 2, "pair", &group), TUTTI_INVALID_ARGUMENT,
           "the group 'pair' was not made: worker/");
    return;
  }
  OK(tutti_group(comm, ranks, 2, "pair", &group));
  tutti_free(group);
  group = NULL;
  if (tutti_rank(comm) == 0) tell(at, "made", "");
  if (tutti_rank(comm) == 1) {
    expect(tutti_group(comm, others, 2, "pair", &group), TUTTI_INVALID_ARGUMENT,
           "the group 'pair' was not made: worker/");
    tell(at, "refused", tutti_error_text());
  } else {
    hear(at, "refused", text);
    CHECK(tutti_group(comm, ranks, 2, "pair", &group) != TUTTI_OK);
  }
}

/* Rank 1 lives, so that nobody says that it is gone. */
static void not_called(tutti_comm* comm, struct meeting* at) {
  const int ranks[2] = {0, 1};
  tutti_comm* group = NULL;
  char text[4000];
  if (tutti_rank(comm) == 0) {
    expect(tutti_group(comm, ranks, 2, "pair", &group), TUTTI_TIMEOUT,
           "the group 'pair' was not made: worker/1");
    expect(TUTTI_OK, TUTTI_OK, "did not call for it within 2 s");
    tell(at, "in vain", tutti_error_text());
    return;
  }
  hear(at, "in vain", text);
  expect(tutti_barrier(comm, NULL), TUTTI_PEER_LOST, text);
}

static void nothing_from_any(tutti_comm* comm, struct meeting* at) {
  char text[4000];
  int32_t value = 0;
  OK(tutti_barrier(comm, NULL));
  if (tutti_rank(comm) > 0) {
    hear(at, "in vain", text);
    expect(tutti_barrier(comm, NULL), TUTTI_PEER_LOST, text);
    return;
  }
  tutti_options soon = {0};
  soon.size = sizeof soon;
  soon.timeout_seconds = 0.3;
  expect(tutti_recv(comm, &value, 1, TUTTI_INT32, TUTTI_ANY_RANK, 4, NULL, &soon), TUTTI_TIMEOUT,
         "recv from any rank failed: no message with tag 4 has come for 0.3 s; worker/1");
  expect(TUTTI_OK, TUTTI_OK, "; worker/2");
  tell(at, "in vain", tutti_error_text());
}

/* A function for tutti_then() that tries to wait. */
struct called {
  tutti_comm* comm;
  tutti_comm* closed;
  tutti_work* later;
  tutti_status statuses[3];
  char text[4000];
  int done;
};

static void try_to_wait(void* context) {
  struct called* mine = context;
  mine->statuses[0] = tutti_wait(mine->later);
  copy(mine->text, tutti_error_text());
  mine->statuses[1] = tutti_barrier(mine->comm, NULL);
  mine->statuses[2] = tutti_reconfigure(mine->comm);
  tutti_free(mine->closed);
  __sync_fetch_and_add(&mine->done, 1);
}

/* Rank 1 sends the first message when the function has been given, and the second one when it has been
 * called. */
static void waits_in_callback(tutti_comm* comm, struct meeting* at) {
  const int self = tutti_rank(comm), rank = self;
  int32_t value = 7, values[2] = {0};
  char text[4000];
  if (rank == 1) {
    hear(at, "given", text);
    OK(tutti_send(comm, &value, 1, TUTTI_INT32, 0, 1, NULL));
    hear(at, "called", text);
    OK(tutti_send(comm, &value, 1, TUTTI_INT32, 0, 2, NULL));
  }
  if (rank == 0) {
    static struct called called;
    tutti_work* works[2] = {NULL};
    tutti_options options = {0};
    options.size = sizeof options;
    OK(tutti_group(comm, &self, 1, "alone", &called.closed));
    for (int i = 0; i < 2; ++i) {
      options.work = &works[i];
      OK(tutti_recv(comm, &values[i], 1, TUTTI_INT32, 1, i + 1, NULL, &options));
    }
    called.comm = comm;
    called.later = works[1];
    OK(tutti_then(works[0], try_to_wait, &called));
    tell(at, "given", "");
    while (__sync_fetch_and_add(&called.done, 0) == 0) {
    }
    for (int i = 0; i < 3; ++i) CHECK(called.statuses[i] == TUTTI_INVALID_ARGUMENT);
    CHECK(strstr(called.text, "tutti_wait: a function that was passed to tutti_then() cannot wait") != NULL);
    tell(at, "called", "");
    for (int i = 0; i < 2; ++i) {
      OK(tutti_wait(works[i]));
      CHECK(values[i] == 7);
      tutti_work_free(works[i]);
    }
  }
  OK(tutti_barrier(comm, NULL));
}

static tutti_init_options at_place(const struct meeting* at, const char* transport, int rank, int world,
                                   double timeout) {
  tutti_init_options options = {0};
  options.size = sizeof options;
  options.transport = transport;
  options.store = &at->store;
  options.rank = rank;
  options.world = world;
  options.timeout_seconds = timeout;
  return options;
}

static struct meeting meeting_in(const char* folder, const char* name) {
  struct meeting at = {0};
  snprintf(at.folder, sizeof at.folder, "%s/%s", folder, name);
  at.store.size = sizeof at.store;
  at.store.set = set;
  at.store.get = get;
  CHECK(mkdir(at.folder, 0700) == 0);
  return at;
}

typedef void case_of(tutti_comm* comm, struct meeting* at);
static int on_three_ranks(const char* folder, const char* name, const char* transport, double timeout,
                          case_of* body) {
  struct meeting at = meeting_in(folder, name);
  at.store.context = at.folder;
  for (int rank = 0; rank < 3; ++rank) {
    if (fork() != 0) continue;
    const tutti_init_options options = at_place(&at, transport, rank, 3, timeout);
    tutti_comm* comm = NULL;
    OK(tutti_init(&options, &comm));
    if (comm != NULL) body(comm, &at);
    /* Nobody leaves before the others have seen the failure. */
    char key[16], text[4000];
    snprintf(key, sizeof key, "end%d", rank);
    tell(&at, key, "");
    for (int other = 0; other < 3; ++other) {
      snprintf(key, sizeof key, "end%d", other);
      hear(&at, key, text);
    }
    tutti_free(comm);
    _exit(failures != 0);
  }
  int bad = 0;
  for (int status = 0; wait(&status) > 0;) bad = bad || status != 0;
  if (bad) fprintf(stderr, "the case '%s' has failed\n", name);
  return bad;
}

/* Processes that give these ranks of two. Returns how many of them are told that a rank was given twice, plus
 * 10 for each that fails otherwise. */
static int told_of_twice(const char* folder, const char* name, const int* ranks, int count, double timeout) {
  struct meeting at = meeting_in(folder, name);
  at.store.context = at.folder;
  for (int i = 0; i < count; ++i) {
    if (fork() != 0) continue;
    const tutti_init_options options = at_place(&at, NULL, ranks[i], 2, timeout);
    char key[16], text[4000];
    snprintf(key, sizeof key, "here%d", i);
    tell(&at, key, "");
    for (int other = 0; other < count; ++other) {
      snprintf(key, sizeof key, "here%d", other);
      hear(&at, key, text);
    }
    tutti_comm* comm = NULL;
    const tutti_status status = tutti_init(&options, &comm);
    const int told =
        status == TUTTI_INVALID_ARGUMENT && (strstr(tutti_error_text(), "two processes are rank") != NULL ||
                                             strstr(tutti_error_text(), "another process has") != NULL);
    if (comm != NULL) OK(tutti_barrier(comm, NULL));
    tutti_free(comm);
    _exit(told ? 1 : status == TUTTI_OK && failures == 0 ? 0 : 10);
  }
  int told = 0;
  for (int status = 0; wait(&status) > 0;) told += WIFEXITED(status) ? WEXITSTATUS(status) : 100;
  return told;
}

static int misfortunes(const char* transport, const char* folder) {
  const int alone[2] = {0, 0}, second[3] = {0, 1, 1}, first[3] = {0, 0, 1};
  int bad = on_three_ranks(folder, "late", transport, 60, late);
  bad += on_three_ranks(folder, "other_order", transport, 60, other_order);
  bad += on_three_ranks(folder, "same_name", transport, 60, same_name);
  bad += on_three_ranks(folder, "not_called", transport, 2, not_called);
  bad += on_three_ranks(folder, "nothing_from_any", transport, 60, nothing_from_any);
  bad += on_three_ranks(folder, "waits_in_callback", transport, 60, waits_in_callback);
  /* Without rank 1, both learn it once the time is up; else the one that was not taken. Two processes that
   * are rank 0 may refuse each other, which leaves rank 1 alone. */
  CHECK(told_of_twice(folder, "twice_alone", alone, 2, 2) == 2);
  CHECK(told_of_twice(folder, "twice_second", second, 3, 60) == 1);
  CHECK(told_of_twice(folder, "twice_first", first, 3, 3) % 10 >= 1);
  return bad + failures;
}
