/* Loads the providers of a config, asks what there is, and computes on the first device of a kind:
 *
 *   cc -std=c11 -I bindings/c/include -I ep-core/include bindings/c/examples/softmax.c \
 *      -L target/release -lep_host -Wl,-rpath,'$ORIGIN' -o target/release/softmax
 *   target/release/softmax target/release/ep.toml cpu
 */
#include "ep_host.h"

#include <stdio.h>
#include <stdlib.h>

/* Ends the program with what went wrong and what to do. */
static void need(const EpStatus *status) {
  if (status == NULL) return;
  fprintf(stderr, "error %d: %.*s\n", (int)status->code, (int)status->message.len, status->message.ptr);
  ep_status_release(status);
  exit(1);
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s CONFIG DEVICE\n", argv[0]);
    return 2;
  }
  ep_runtime *runtime = NULL;
  ep_session *session = NULL;
  ep_tensor *x = NULL, *y = NULL;
  ep_operator *softmax = NULL;
  need(ep_runtime_open(argv[1], &runtime));

  /* Why a request gets what it gets, or nothing: as JSON, for a program. */
  char *why = NULL;
  need(ep_runtime_explain(runtime, argv[2], "{\"op\": \"softmax\", \"dtypes\": {\"src\": \"f32\", \"dst\": \"i32\"}}", &why));
  printf("%.200s ...\n", why);
  ep_text_free(why);

  /* Two rows of three numbers. An operator is made once and run often. */
  const float data[6] = {1, 2, 3, 0, 0, 0};
  const int64_t shape[2] = {2, 3};
  need(ep_session_open(runtime, argv[2], NULL, 0, &session));
  need(ep_tensor_from_bytes(session, "f32", shape, 2, data, sizeof data, &x));
  need(ep_operator_new("softmax", "{\"dim\": -1}", &softmax));
  const ep_tensor *inputs[1] = {x};
  size_t count = 0;
  need(ep_operator_run(session, softmax, inputs, 1, &y, 1, &count));

  float out[6];
  need(ep_tensor_to_bytes(session, y, out, sizeof out));
  printf("on %s: %.6f %.6f %.6f, %.6f %.6f %.6f\n", ep_tensor_device(y), out[0], out[1], out[2], out[3], out[4], out[5]);

  ep_operator_free(softmax);
  ep_tensor_free(y);
  ep_tensor_free(x);
  ep_session_free(session);
  ep_runtime_free(runtime);
  return 0;
}
