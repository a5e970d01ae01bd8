/* What a call costs the host: launches on addresses, operators on tensors, both of a softmax of 2 rows of 8.
 *
 *   cc -O2 -std=c11 -D_POSIX_C_SOURCE=199309L -I bindings/c/include -I ep-core/include bindings/c/examples/cost.c \
 *      -L target/release -lep_host -Wl,-rpath,'$ORIGIN' -o target/release/cost
 *   target/release/cost target/release/ep.toml cpu
 */
#include "ep_host.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 31, CALLS = 20000 };

static void need(const EpStatus *status) {
  if (status == NULL) return;
  fprintf(stderr, "error %d: %.*s\n", (int)status->code, (int)status->message.len, status->message.ptr);
  ep_status_release(status);
  exit(1);
}

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static ep_session *session;
static ep_tensor *x, *y;
static ep_operator *operation;
static ep_primitive *primitive;
static EpSoftmaxArgs args;

static void launch(void) { need(ep_primitive_launch(session, primitive, &args)); }

static void new_tensor(void) {
  const ep_tensor *inputs[1] = {x};
  ep_tensor *made = NULL;
  size_t count = 0;
  need(ep_operator_run(session, operation, inputs, 1, &made, 1, &count));
  ep_tensor_free(made);
}

static void measure(const char *what, void (*call)(void)) {
  double took[ROUNDS];
  for (int round = 0; round < ROUNDS; round++) {
    const double begin = now_ns();
    for (int i = 0; i < CALLS; i++) call();
    need(ep_session_sync(session));
    took[round] = (now_ns() - begin) / CALLS;
  }
  qsort(took, ROUNDS, sizeof took[0], ascending);
  printf("%-36s %8.0f ns (median of %d times %d; least %.0f)\n", what, took[ROUNDS / 2], ROUNDS, CALLS, took[0]);
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s CONFIG DEVICE\n", argv[0]);
    return 2;
  }
  ep_runtime *runtime = NULL;
  const float data[16] = {0};
  const int64_t shape[2] = {2, 8};
  need(ep_runtime_open(argv[1], &runtime));
  need(ep_session_open(runtime, argv[2], NULL, 0, &session));
  need(ep_tensor_from_bytes(session, "f32", shape, 2, data, sizeof data, &x));
  need(ep_tensor_from_bytes(session, "f32", shape, 2, data, sizeof data, &y));
  need(ep_operator_new("softmax", NULL, &operation));
  const EpSoftmaxDesc desc = {.struct_size = sizeof desc, .src = EP_DTYPE_F32, .dst = EP_DTYPE_F32};
  need(ep_primitive_new(session, "softmax", &desc, &primitive));
  args = (EpSoftmaxArgs){.struct_size = sizeof args, .rows = 2, .cols = 8, .inner = 1};
  need(ep_tensor_address(x, &args.src));
  need(ep_tensor_address(y, &args.dst));
  measure("launch on addresses", launch);
  measure("operator, its output made and freed", new_tensor);
  ep_primitive_free(primitive);
  ep_operator_free(operation);
  ep_tensor_free(y);
  ep_tensor_free(x);
  ep_session_free(session);
  ep_runtime_free(runtime);
  return 0;
}
