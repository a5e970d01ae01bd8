/* What the comparison calls in a peer's adapter. One row at a time is prepared, run often, and released, all on one
 * thread. Tensors are contiguous, row-major, and stay where they are until the row is released. */
#ifndef EP_PEER_H
#define EP_PEER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ep_peer_tensor {
  void *data;
  const char *dtype; /* "f32", "bf16", "i64", ... */
  int64_t rank;
  const int64_t *dims;
};

struct ep_peer_row {
  const char *call; /* such as "softmax"; README.md lists them */
  const struct ep_peer_tensor *inputs;
  size_t num_inputs;
  struct ep_peer_tensor output;
  const int64_t *ints; /* axes, paddings, ... */
  size_t num_ints;
};

/* Once, before all else. Returns the peer's version, or NULL. */
const char *ep_peer_start(int threads);

/* NULL: the peer has no such call; the reason is in `error`. `*checked` becomes 0 when the result does not go to the
 * row's output, because the peer has no form that writes to given memory. */
void *ep_peer_prepare(const struct ep_peer_row *row, int *checked, char *error, size_t error_bytes);

/* Computes the row `times` times. 0, or another number and the reason. */
int ep_peer_run(void *prepared, size_t times, char *error, size_t error_bytes);

void ep_peer_release(void *prepared);

#ifdef __cplusplus
}
#endif

#endif
