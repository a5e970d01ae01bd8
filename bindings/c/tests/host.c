/* Every function of ep_host.h from C and C++, on the CPU provider and the simulated accelerator: host CONFIG. */
#include "ep_host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(truth) check((truth) != 0, #truth, __LINE__)

static void check(int truth, const char *what, int line) {
  if (truth) return;
  fprintf(stderr, "line %d: not %s\n", line, what);
  exit(1);
}

#define NEED(status) need((status), __LINE__)

static void need(const EpStatus *status, int line) {
  if (status == NULL) return;
  fprintf(stderr, "line %d: %d: %.*s\n", line, (int)status->code, (int)status->message.len, status->message.ptr);
  exit(1);
}

/* The error has this code, and its message these words. */
#define FAILS(status, code, words) fails((status), (code), (words), __LINE__)

static void fails(const EpStatus *status, int32_t code, const char *words, int line) {
  char text[4096];
  check(status != NULL, "an error", line);
  snprintf(text, sizeof text, "%.*s", (int)status->message.len, status->message.ptr);
  if (status->code != code || strstr(text, words) == NULL) {
    fprintf(stderr, "line %d: %d: %s, and %d with `%s` was expected\n", line, (int)status->code, text, (int)code, words);
    exit(1);
  }
  ep_status_release(status);
}

/* dlpack.h, as far as it is used. */
typedef struct {
  void *data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} Dense;

struct DLManagedTensor {
  Dense tensor;
  void *context;
  void (*deleter)(struct DLManagedTensor *);
};

static int given_back = 0;

static void count(struct DLManagedTensor *managed) {
  (void)managed;
  given_back += 1;
}

static ep_tensor *run(const ep_session *session, const char *name, const char *attributes, const ep_tensor *a,
                      const ep_tensor *b) {
  const ep_tensor *inputs[2];
  ep_operator *op = NULL;
  ep_tensor *out = NULL;
  size_t made = 0;
  inputs[0] = a;
  inputs[1] = b;
  NEED(ep_operator_new(name, attributes, &op));
  CHECK(strcmp(ep_operator_name(op), name) == 0);
  NEED(ep_operator_run(session, op, inputs, a == NULL ? 0u : b == NULL ? 1u : 2u, &out, 1, &made));
  CHECK(made == 1);
  ep_operator_free(op);
  return out;
}

static ep_tensor *floats(const ep_session *session, const float *data, int64_t rows, int64_t cols) {
  int64_t shape[2];
  ep_tensor *out = NULL;
  shape[0] = rows;
  shape[1] = cols;
  NEED(ep_tensor_from_bytes(session, "f32", shape, 2, data, (uint64_t)(rows * cols) * sizeof(float), &out));
  return out;
}

static void expect(const ep_session *session, const ep_tensor *t, const float *wanted, size_t n, int line) {
  float found[16];
  size_t i;
  need(ep_tensor_to_bytes(session, t, found, n * sizeof(float)), line);
  for (i = 0; i < n; i++) {
    float difference = found[i] - wanted[i];
    if (difference > 1e-6f || difference < -1e-6f) {
      fprintf(stderr, "line %d: element %d is %g, not %g\n", line, (int)i, (double)found[i], (double)wanted[i]);
      exit(1);
    }
  }
}

#define EXPECT(session, t, wanted) expect((session), (t), (wanted), sizeof(wanted) / sizeof(float), __LINE__)

static void weighing(const ep_session *session) {
  static const float data[6] = {1, 2, 3, 4, 5, 6};
  static const float rows[4] = {1, -1, 2, 0.5f};
  static const float product[6] = {-3, -3, -3, 4, 6.5f, 9};
  ep_tensor *matrix = floats(session, data, 2, 3), *x = floats(session, rows, 2, 2), *y = NULL;
  ep_weights *weights = NULL;
  NEED(ep_weights_new(session, matrix, &weights));
  CHECK(ep_weights_bytes(NULL) == 0);
  /* What was packed has a copy of its own. */
  CHECK(ep_weights_bytes(weights) == (strcmp(ep_session_device(session), "sim:0") == 0 ? sizeof data : 0));
  ep_tensor_free(matrix);
  NEED(ep_weights_matmul(session, x, weights, &y));
  EXPECT(session, y, product);
  FAILS(ep_weights_matmul(session, y, weights, &x), EP_CODE_INVALID_ARGUMENT, "3 columns of the first meet 2 rows");
  FAILS(ep_weights_matmul(session, NULL, weights, &x), EP_CODE_INVALID_ARGUMENT, "input is null");
  FAILS(ep_weights_matmul(session, x, NULL, &y), EP_CODE_INVALID_ARGUMENT, "weights is null");
  FAILS(ep_weights_new(session, NULL, &weights), EP_CODE_INVALID_ARGUMENT, "matrix is null");
  FAILS(ep_weights_new(session, x, NULL), EP_CODE_INVALID_ARGUMENT, "null");
  ep_tensor_free(y);
  ep_tensor_free(x);
  ep_weights_free(weights);
  ep_weights_free(NULL);
}

static void asking(const ep_runtime *runtime) {
  char *json = NULL;
  NEED(ep_runtime_list(runtime, &json));
  CHECK(strstr(json, "\"provider\":\"cpu\"") && strstr(json, "\"status\":\"loaded\"") && strstr(json, "\"id\":\"cpu:0\""));
  ep_text_free(json);
  NEED(ep_runtime_query(runtime, "softmax", "bf16", "cpu", &json));
  CHECK(strstr(json, "\"op\":\"softmax\"") && !strstr(json, "\"op\":\"gather\"") && strstr(json, "bf16"));
  ep_text_free(json);
  NEED(ep_runtime_query(runtime, NULL, NULL, NULL, &json));
  CHECK(strstr(json, "\"op\":\"gather\"") && strstr(json, "\"device\":\"sim:0\""));
  ep_text_free(json);
  FAILS(ep_runtime_query(runtime, "softmx", NULL, NULL, &json), EP_CODE_NOT_FOUND, "softmax");
  FAILS(ep_runtime_query(runtime, NULL, "f33", NULL, &json), EP_CODE_NOT_FOUND, "f32");
  FAILS(ep_runtime_query(runtime, NULL, NULL, "gpu", &json), EP_CODE_NOT_FOUND, "cpu:0");

  NEED(ep_runtime_explain(runtime, "cpu:0", "{\"op\": \"softmax\", \"dtypes\": {\"src\": \"f32\", \"dst\": \"i32\"}}", &json));
  CHECK(strstr(json, "\"kind\":\"not_covered\"") && strstr(json, "\"chosen\":null"));
  CHECK(strstr(json, "\"nearest_request\":{\"op\":\"softmax\",\"dtypes\":{"));
  ep_text_free(json);
  NEED(ep_runtime_explain(runtime, NULL, "{\"op\":\"cast\",\"dtypes\":{\"src\":\"f32\",\"dst\":\"i32\"}}", &json));
  CHECK(strstr(json, "\"device\":\"cpu:0\"") && strstr(json, "\"device\":\"sim:0\"") && strstr(json, "\"kind\":\"chosen\""));
  ep_text_free(json);
  FAILS(ep_runtime_explain(runtime, NULL, "{\"op\": \"cast\"}", &json), EP_CODE_INVALID_ARGUMENT, "`src`, `dst`");
  FAILS(ep_runtime_explain(runtime, NULL, "{\"op\": \"cast\", \"dtype\": {}}", &json), EP_CODE_INVALID_ARGUMENT, "dtypes");
  FAILS(ep_runtime_explain(runtime, NULL, "{", &json), EP_CODE_INVALID_ARGUMENT, "request");
  FAILS(ep_runtime_explain(runtime, NULL, NULL, &json), EP_CODE_INVALID_ARGUMENT, "null");
  FAILS(ep_runtime_list(NULL, &json), EP_CODE_INVALID_ARGUMENT, "null");
  FAILS(ep_runtime_list(runtime, NULL), EP_CODE_INVALID_ARGUMENT, "null");
}

static void computing(const ep_session *session) {
  static const float data[6] = {1, 2, 3, 0, 0, 0};
  static const float rows[6] = {0.09003057f, 0.24472847f, 0.66524096f, 1.0f / 3, 1.0f / 3, 1.0f / 3};
  static const float turned[6] = {1, 0, 2, 0, 3, 0};
  static const float product[4] = {14, 0, 0, 0};
  static const float negative[6] = {-1, -2, -3, 0, 0, 0};
  const ep_tensor *inputs[2];
  ep_tensor *x = floats(session, data, 2, 3), *y, *t, *z, *outs[3];
  ep_operator *op = NULL;
  size_t made = 9;
  float one;

  y = run(session, "softmax", NULL, x, NULL);
  EXPECT(session, y, rows);
  CHECK(strcmp(ep_tensor_dtype(y), "f32") == 0 && strcmp(ep_tensor_device(y), ep_session_device(session)) == 0);
  t = run(session, "permute", "{\"dims\": [1, 0]}", x, NULL);
  CHECK(ep_tensor_rank(t) == 2 && ep_tensor_shape(t)[0] == 3 && ep_tensor_strides(t)[1] == 3);
  EXPECT(session, t, turned);
  z = run(session, "matmul", NULL, x, t);
  EXPECT(session, z, product);
  ep_tensor_free(z);
  ep_tensor_free(y);

  /* In place, which the view sees; and by way of views. */
  NEED(ep_operator_new("unary", "{\"op\": \"negative\"}", &op));
  inputs[0] = x;
  NEED(ep_operator_run_in_place(session, op, inputs, 1));
  EXPECT(session, x, negative);
  FAILS(ep_operator_run(session, op, inputs, 1, outs, 0, &made), EP_CODE_INVALID_ARGUMENT, "room for 0");
  CHECK(made == 9);
  FAILS(ep_operator_run(session, op, inputs, 0, outs, 3, &made), EP_CODE_INVALID_ARGUMENT, "unary");
  inputs[0] = NULL;
  FAILS(ep_operator_run(session, op, inputs, 1, outs, 3, &made), EP_CODE_INVALID_ARGUMENT, "input 0 is null");
  FAILS(ep_operator_run(session, NULL, inputs, 0, outs, 3, &made), EP_CODE_INVALID_ARGUMENT, "operator is null");
  ep_operator_free(op);
  z = run(session, "select", "{\"dim\": 0, \"index\": 2}", t, NULL);
  NEED(ep_operator_new("copy", NULL, &op));
  y = run(session, "full", "{\"dtype\": \"f32\", \"shape\": [], \"value\": \"-inf\"}", NULL, NULL);
  inputs[0] = z;
  inputs[1] = y;
  NEED(ep_operator_run(session, op, inputs, 2, NULL, 0, &made));
  CHECK(made == 0);
  ep_operator_free(op);
  ep_tensor_free(z);
  z = run(session, "select", "{\"dim\": 0, \"index\": 1}", x, NULL);
  ep_tensor_free(y);
  y = run(session, "reduce", "{\"op\": \"min\"}", z, NULL);
  CHECK(ep_tensor_rank(y) == 0);
  NEED(ep_tensor_to_bytes(session, y, &one, sizeof one));
  CHECK(one < -1e30f);

  /* Three outputs. */
  NEED(ep_operator_new("layer_norm", "{\"stats\": true}", &op));
  inputs[0] = x;
  NEED(ep_operator_run(session, op, inputs, 1, outs, 3, &made));
  CHECK(made == 3 && ep_tensor_rank(outs[1]) == 1);
  NEED(ep_tensor_wait(outs[0]));
  ep_tensor_free(outs[0]);
  ep_tensor_free(outs[1]);
  ep_tensor_free(outs[2]);
  FAILS(ep_operator_run_in_place(session, op, inputs, 1), EP_CODE_INVALID_ARGUMENT, "3 outputs");
  ep_operator_free(op);
  ep_tensor_free(z);
  ep_tensor_free(y);
  ep_tensor_free(t);
  ep_tensor_free(x);
  NEED(ep_session_sync(session));
}

static void names(void) {
  ep_operator *op = NULL;
  FAILS(ep_operator_new("softmx", NULL, &op), EP_CODE_INVALID_ARGUMENT, "`softmax`");
  FAILS(ep_operator_new("softmax", "{\"axis\": 1}", &op), EP_CODE_INVALID_ARGUMENT, "`dim`");
  FAILS(ep_operator_new("concat", "{\"dim\": 0.5}", &op), EP_CODE_INVALID_ARGUMENT, "concat");
  FAILS(ep_operator_new("unary", "{\"op\": \"negate\"}", &op), EP_CODE_INVALID_ARGUMENT, "negative");
  FAILS(ep_operator_new("cast", "{\"dtype\": \"f33\"}", &op), EP_CODE_INVALID_ARGUMENT, "f32");
  FAILS(ep_operator_new("cast", NULL, &op), EP_CODE_INVALID_ARGUMENT, "dtype");
  FAILS(ep_operator_new("cast", "[1", &op), EP_CODE_INVALID_ARGUMENT, "attributes");
  FAILS(ep_operator_new(NULL, NULL, &op), EP_CODE_INVALID_ARGUMENT, "null");
  FAILS(ep_operator_new("\xff", NULL, &op), EP_CODE_INVALID_ARGUMENT, "UTF-8");
  CHECK(op == NULL && ep_operator_name(op) == NULL);
}

static int freed = 0;

static void freed_once(void *user) {
  freed += 1;
  CHECK(*(int *)user == 5);
}

static ep_tensor *held = NULL;
static uint64_t seen = 0;

/* Asks about a tensor that the call under way uses: no lock may be held. */
static void curious(void *user) {
  (void)user;
  freed += 1;
  NEED(ep_tensor_address(held, &seen));
}

/* Memory that work uses when its tensor is freed: its deleter is called by a later call, which may be a copy to the tensor that the
 * deleter asks about. */
static void late(const ep_session *session, const float *data) {
  static const int64_t all[2] = {2, 4};
  ep_tensor *owner = floats(session, data, 2, 4), *t = NULL, *other = floats(session, data, 2, 4);
  ep_operator *negative = NULL, *copy = NULL;
  const ep_tensor *inputs[2];
  uint64_t address = 0;
  size_t made = 0;
  int i;
  held = floats(session, data, 2, 4);
  NEED(ep_session_sync(session));
  NEED(ep_tensor_address(owner, &address));
  freed = 0;
  NEED(ep_tensor_from_address(session, "f32", all, NULL, 2, NULL, address, 32, curious, NULL, &t));
  NEED(ep_operator_new("unary", "{\"op\": \"negative\"}", &negative));
  NEED(ep_operator_new("copy", NULL, &copy));
  inputs[0] = t;
  NEED(ep_operator_run_in_place(session, negative, inputs, 1));
  ep_tensor_free(t);
  inputs[0] = held;
  inputs[1] = other;
  for (i = 0; i < 100000 && freed == 0; i++) NEED(ep_operator_run(session, copy, inputs, 2, NULL, 0, &made));
  CHECK(freed == 1 && i > 0);
  ep_operator_free(negative);
  ep_operator_free(copy);
  ep_tensor_free(owner);
  ep_tensor_free(other);
  ep_tensor_free(held);
}

static void foreign(const ep_session *session, int host) {
  static float data[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  static int user = 5;
  static const float wanted[4] = {0, 2, 4, 6};
  static const int64_t shape[2] = {2, 2}, strides[2] = {4, 2}, far[2] = {6, 2}, all[2] = {2, 4};
  const uint64_t address = (uint64_t)(uintptr_t)data;
  ep_tensor *t = NULL;
  freed = 0;
  if (!host) {
    FAILS(ep_tensor_from_address(session, "f32", shape, strides, 2, "nowhere", address, 32, freed_once, &user, &t),
          EP_CODE_INVALID_ARGUMENT, "nowhere");
    CHECK(freed == 1);
    late(session, data);
    return;
  }
  NEED(ep_tensor_from_address(session, "f32", shape, strides, 2, NULL, address, 32, freed_once, &user, &t));
  EXPECT(session, t, wanted);
  CHECK(freed == 0);
  ep_tensor_free(t);
  CHECK(freed == 1);
  NEED(ep_tensor_from_address(session, "f32", all, NULL, 2, "host", address, 32, NULL, NULL, &t));
  CHECK(ep_tensor_numel(t) == 8 && ep_tensor_bytes(t) == 32 && ep_tensor_dtype_id(t) == EP_DTYPE_F32);
  ep_tensor_free(t);
  t = NULL;
  FAILS(ep_tensor_from_address(session, "f32", shape, far, 2, NULL, address, 32, freed_once, &user, &t),
        EP_CODE_INVALID_ARGUMENT, "as_strided");
  FAILS(ep_tensor_from_address(session, "f32", all, NULL, 2, NULL, address, 28, freed_once, &user, &t),
        EP_CODE_INVALID_ARGUMENT, "8 elements");
  FAILS(ep_tensor_from_address(session, "f32", all, NULL, 2, NULL, 0, 32, freed_once, &user, &t), EP_CODE_INVALID_ARGUMENT, "null");
  FAILS(ep_tensor_from_address(session, "f32", shape, strides, 2, NULL, address + 2, 28, freed_once, &user, &t),
        EP_CODE_INVALID_ARGUMENT, "no multiple of the 4");
  FAILS(ep_tensor_from_address(session, "i4", all, NULL, 2, NULL, address, 32, freed_once, &user, &t), EP_CODE_UNSUPPORTED,
        "fill bytes");
  FAILS(ep_tensor_from_address(session, NULL, all, NULL, 2, NULL, address, 32, freed_once, &user, &t), EP_CODE_INVALID_ARGUMENT,
        "null");
  FAILS(ep_tensor_from_address(NULL, "f32", all, NULL, 2, NULL, address, 32, freed_once, &user, &t), EP_CODE_INVALID_ARGUMENT,
        "null");
  CHECK(freed == 8 && t == NULL);
  CHECK(ep_tensor_numel(NULL) == 0 && ep_tensor_bytes(NULL) == 0 && ep_tensor_dtype_id(NULL) == EP_DTYPE_INVALID);

  /* A deleter may look at what the call that leads to it uses. */
  held = floats(session, data, 2, 4);
  NEED(ep_tensor_from_address(session, "f32", all, NULL, 2, NULL, address, 32, curious, NULL, &t));
  ep_tensor_free(t);
  CHECK(freed == 9 && seen != 0);
  ep_tensor_free(held);
}

static void tensors(const ep_session *session) {
  static const uint8_t truths[3] = {0, 1, 2};
  static const int64_t three[1] = {3}, huge[2] = {INT64_C(1) << 62, 4}, negative[1] = {-1}, none[2] = {0, 5};
  uint8_t back[2] = {7, 7};
  ep_tensor *t = NULL;
  uint64_t address = 0;
  FAILS(ep_tensor_from_bytes(session, "bool", three, 1, truths, 3, &t), EP_CODE_INVALID_ARGUMENT, "byte 2");
  FAILS(ep_tensor_from_bytes(session, "u8", three, 1, truths, 2, &t), EP_CODE_INVALID_ARGUMENT, "2 bytes");
  FAILS(ep_tensor_from_bytes(session, "u8", three, 1, NULL, 3, &t), EP_CODE_INVALID_ARGUMENT, "null");
  FAILS(ep_tensor_from_bytes(session, "u9", three, 1, truths, 3, &t), EP_CODE_NOT_FOUND, "u8");
  FAILS(ep_tensor_from_bytes(session, "u8", huge, 2, truths, 3, &t), EP_CODE_INVALID_ARGUMENT, "shape");
  FAILS(ep_tensor_from_bytes(session, "u8", negative, 1, truths, 3, &t), EP_CODE_INVALID_ARGUMENT, "-1");
  FAILS(ep_tensor_from_bytes(session, "f64", huge, 1, truths, 3, &t), EP_CODE_INVALID_ARGUMENT, "bytes");
  FAILS(ep_tensor_from_bytes(session, "u8", NULL, 1, truths, 3, &t), EP_CODE_INVALID_ARGUMENT, "null");
  FAILS(ep_tensor_from_bytes(NULL, "u8", three, 1, truths, 3, &t), EP_CODE_INVALID_ARGUMENT, "session");
  CHECK(t == NULL);
  FAILS(ep_tensor_from_bytes(session, "i4", three, 1, truths, 2, &t), EP_CODE_UNSUPPORTED, "fill bytes");
  CHECK(t == NULL);
  NEED(ep_tensor_from_bytes(session, "bool", three, 1, "\0\1\1", 3, &t));
  FAILS(ep_tensor_to_bytes(session, t, back, 2), EP_CODE_INVALID_ARGUMENT, "room of 2");
  FAILS(ep_tensor_to_bytes(session, t, NULL, 3), EP_CODE_INVALID_ARGUMENT, "null");
  NEED(ep_tensor_address(t, &address));
  CHECK(address != 0);
  FAILS(ep_tensor_address(NULL, &address), EP_CODE_INVALID_ARGUMENT, "null");
  ep_tensor_free(t);
  NEED(ep_tensor_from_bytes(session, "complex64", none, 2, NULL, 0, &t));
  NEED(ep_tensor_to_bytes(session, t, NULL, 0));
  ep_tensor_free(t);
  t = run(session, "empty", "{\"dtype\": \"u8\", \"shape\": [2]}", NULL, NULL);
  FAILS(ep_tensor_to_bytes(session, t, back, 2), EP_CODE_INVALID_ARGUMENT, "written");
  CHECK(back[0] == 7);
  ep_tensor_free(t);
  CHECK(ep_tensor_dtype(NULL) == NULL && ep_tensor_shape(NULL) == NULL && ep_tensor_rank(NULL) == 0);
  CHECK(ep_tensor_strides(NULL) == NULL && ep_tensor_device(NULL) == NULL && ep_session_device(NULL) == NULL);
}

static void dlpack(const ep_session *session, int host) {
  float data[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  static const float wanted[4] = {7, 5, 3, 1};
  int64_t shape[2] = {2, 2}, strides[2] = {-4, -2};
  struct DLManagedTensor managed, *exported = NULL;
  ep_tensor *t = NULL, *u = NULL;
  memset(&managed, 0, sizeof managed);
  managed.tensor.data = data;
  managed.tensor.device_type = 1;
  managed.tensor.ndim = 2;
  managed.tensor.code = 2;
  managed.tensor.bits = 32;
  managed.tensor.lanes = 1;
  managed.tensor.shape = shape;
  managed.tensor.strides = strides;
  managed.tensor.byte_offset = 7 * sizeof(float);
  managed.deleter = count;
  given_back = 0;
  if (!host) {
    FAILS(ep_tensor_from_dlpack(session, &managed, &t), EP_CODE_UNSUPPORTED, "through the host");
    CHECK(given_back == 1);
    t = floats(session, data, 2, 4);
    FAILS(ep_tensor_to_dlpack(t, &exported), EP_CODE_UNSUPPORTED, "through the host");
    ep_tensor_free(t);
    return;
  }
  NEED(ep_tensor_from_dlpack(session, &managed, &t));
  EXPECT(session, t, wanted);
  data[7] = 70;
  u = run(session, "full", "{\"dtype\": \"f32\", \"shape\": [], \"value\": 9}", NULL, NULL);
  {
    ep_operator *op = NULL;
    const ep_tensor *inputs[2];
    size_t made;
    inputs[0] = t;
    inputs[1] = u;
    NEED(ep_operator_new("copy", NULL, &op));
    NEED(ep_operator_run(session, op, inputs, 2, NULL, 0, &made));
    ep_operator_free(op);
  }
  CHECK(data[0] == 0 && data[1] == 9 && data[2] == 2 && data[3] == 9 && data[5] == 9 && data[7] == 9);
  ep_tensor_free(u);
  NEED(ep_tensor_to_dlpack(t, &exported));
  ep_tensor_free(t);
  CHECK(given_back == 0 && exported->tensor.data == &data[7] && exported->tensor.strides[1] == -2);
  exported->deleter(exported);
  CHECK(given_back == 1);
  data[1] = 1;
  managed.tensor.byte_offset += 1;
  FAILS(ep_tensor_from_dlpack(session, &managed, &t), EP_CODE_INVALID_ARGUMENT, "no multiple of the 4");
  managed.tensor.byte_offset -= 1;
  given_back -= 1;

  managed.tensor.device_type = 2;
  FAILS(ep_tensor_from_dlpack(session, &managed, &t), EP_CODE_INVALID_ARGUMENT, "bring it there");
  managed.tensor.device_type = 1;
  managed.tensor.lanes = 4;
  FAILS(ep_tensor_from_dlpack(session, &managed, &t), EP_CODE_UNSUPPORTED, "4 lanes");
  managed.tensor.lanes = 1;
  managed.tensor.ndim = -1;
  FAILS(ep_tensor_from_dlpack(session, &managed, &t), EP_CODE_INVALID_ARGUMENT, "dimensions");
  managed.tensor.ndim = 2;
  shape[0] = -2;
  FAILS(ep_tensor_from_dlpack(session, &managed, &t), EP_CODE_INVALID_ARGUMENT, "shape");
  shape[0] = INT64_MAX;
  FAILS(ep_tensor_from_dlpack(session, &managed, &t), EP_CODE_INVALID_ARGUMENT, "beyond memory");
  shape[0] = 0;
  managed.tensor.data = NULL;
  NEED(ep_tensor_from_dlpack(session, &managed, &t));
  CHECK(given_back == 7 && ep_tensor_shape(t)[0] == 0);
  ep_tensor_free(t);
  managed.tensor.shape = NULL;
  FAILS(ep_tensor_from_dlpack(session, &managed, &t), EP_CODE_INVALID_ARGUMENT, "dimensions");
  FAILS(ep_tensor_from_dlpack(session, NULL, &t), EP_CODE_INVALID_ARGUMENT, "null");
  managed.tensor.shape = shape;
  FAILS(ep_tensor_from_dlpack(NULL, &managed, &t), EP_CODE_INVALID_ARGUMENT, "null");
  CHECK(given_back == 9);
  t = run(session, "empty", "{\"dtype\": \"u8\", \"shape\": [2]}", NULL, NULL);
  FAILS(ep_tensor_to_dlpack(t, &exported), EP_CODE_INVALID_ARGUMENT, "never written");
  ep_tensor_free(t);
}

/* Bytes that another library has written into a bool tensor. */
static void truths_of_others(const ep_session *session) {
  static const int64_t three[1] = {3};
  struct DLManagedTensor *exported = NULL;
  uint8_t back[3] = {7, 7, 7};
  ep_tensor *t = NULL;
  NEED(ep_tensor_from_bytes(session, "bool", three, 1, "\0\1\1", 3, &t));
  NEED(ep_tensor_to_dlpack(t, &exported));
  ((uint8_t *)exported->tensor.data)[1] = 2;
  FAILS(ep_tensor_to_bytes(session, t, back, 3), EP_CODE_INVALID_ARGUMENT, "byte 1");
  CHECK(back[1] == 7);
  exported->deleter(exported);
  ep_tensor_free(t);
}

/* Functions have the parameters that PyTorch gives them, unless others are given. */
static void parameters(const ep_session *session) {
  static const float data[4] = {-2, -0.25f, 0.75f, 3};
  static const float hard_tanh[4] = {-1, -0.25f, 0.75f, 1}, leaky[4] = {-0.02f, -0.0025f, 0.75f, 3};
  static const float shrunk[4] = {-2, 0, 0.75f, 3}, bounded[4] = {-2, -0.25f, 0.5f, 0.5f};
  ep_tensor *x = floats(session, data, 2, 2), *y;
  y = run(session, "unary", "{\"op\": \"hard_tanh\"}", x, NULL);
  EXPECT(session, y, hard_tanh);
  ep_tensor_free(y);
  y = run(session, "unary", "{\"op\": \"leaky_relu\"}", x, NULL);
  EXPECT(session, y, leaky);
  ep_tensor_free(y);
  y = run(session, "unary", "{\"op\": \"hard_shrink\"}", x, NULL);
  EXPECT(session, y, shrunk);
  ep_tensor_free(y);
  y = run(session, "unary", "{\"op\": \"hard_tanh\", \"attrs\": [\"-inf\", 0.5]}", x, NULL);
  EXPECT(session, y, bounded);
  ep_tensor_free(y);
  ep_tensor_free(x);
}

static void primitives(const ep_session *session) {
  static const float data[6] = {1, 2, 3, 0, 0, 0};
  static const float rows[6] = {0.09003057f, 0.24472847f, 0.66524096f, 1.0f / 3, 1.0f / 3, 1.0f / 3};
  ep_tensor *x = floats(session, data, 2, 3), *y = run(session, "zeros", "{\"dtype\": \"f32\", \"shape\": [2, 3]}", NULL, NULL);
  ep_primitive *softmax = NULL;
  char *about = NULL;
  uint64_t scratch = 99;
  EpSoftmaxDesc desc;
  EpSoftmaxArgs args;
  memset(&desc, 0, sizeof desc);
  memset(&args, 0, sizeof args);
  desc.struct_size = sizeof desc;
  desc.src = desc.dst = EP_DTYPE_F32;
  NEED(ep_primitive_new(session, "softmax", &desc, &softmax));
  NEED(ep_primitive_describe(softmax, &about));
  CHECK(strstr(about, "softmax") != NULL);
  ep_text_free(about);
  args.struct_size = sizeof args;
  args.rows = 2;
  args.cols = 3;
  args.inner = 1;
  NEED(ep_tensor_address(x, &args.src));
  NEED(ep_tensor_address(y, &args.dst));
  NEED(ep_primitive_workspace(softmax, &args, &scratch));
  CHECK(scratch != 99);
  NEED(ep_session_sync(session));
  NEED(ep_primitive_launch(session, softmax, &args));
  NEED(ep_session_sync(session));
  EXPECT(session, y, rows);
  args.struct_size = 24;
  FAILS(ep_primitive_launch(session, softmax, &args), EP_CODE_INVALID_ARGUMENT, "struct_size 24");
  FAILS(ep_primitive_launch(session, softmax, NULL), EP_CODE_INVALID_ARGUMENT, "null");
  args.struct_size = sizeof args;
  args.rows = -1;
  FAILS(ep_primitive_launch(session, softmax, &args), EP_CODE_INVALID_ARGUMENT, "rows");
  ep_primitive_free(softmax);
  softmax = NULL;
  desc.dst = EP_DTYPE_I32;
  FAILS(ep_primitive_new(session, "softmax", &desc, &softmax), EP_CODE_UNSUPPORTED, "dst");
  desc.struct_size = 8;
  FAILS(ep_primitive_new(session, "softmax", &desc, &softmax), EP_CODE_INVALID_ARGUMENT, "struct_size 8");
  desc.struct_size = sizeof desc;
  FAILS(ep_primitive_new(session, "softmx", &desc, &softmax), EP_CODE_NOT_FOUND, "softmax");
  FAILS(ep_primitive_new(session, "softmax", NULL, &softmax), EP_CODE_INVALID_ARGUMENT, "null");
  CHECK(softmax == NULL);
  ep_tensor_free(x);
  ep_tensor_free(y);
}

/* A session that is freed waits for its launches on addresses: what they wrote is there afterwards. */
static void closing(const ep_runtime *runtime, const char *device) {
  static const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  int round;
  for (round = 0; round < 20; round++) {
    ep_session *first = NULL, *second = NULL;
    ep_primitive *fill = NULL;
    ep_tensor *t;
    EpFillDesc desc;
    EpFillArgs args;
    NEED(ep_session_open(runtime, device, NULL, 0, &first));
    NEED(ep_session_open(runtime, device, NULL, 0, &second));
    /* The tensor remembers the stream of the session that ends. */
    t = run(second, "zeros", "{\"dtype\": \"f32\", \"shape\": [2, 4]}", NULL, NULL);
    NEED(ep_session_sync(second));
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.data = EP_DTYPE_F32;
    NEED(ep_primitive_new(second, "fill", &desc, &fill));
    memset(&args, 0, sizeof args);
    args.struct_size = sizeof args;
    args.count = 8;
    args.value.kind = EP_SCALAR_I64;
    args.value.re = 1;
    NEED(ep_tensor_address(t, &args.dst));
    NEED(ep_primitive_launch(second, fill, &args));
    ep_primitive_free(fill);
    ep_session_free(second);
    EXPECT(first, t, ones);
    ep_tensor_free(t);
    ep_session_free(first);
  }
}

static void sessions(const ep_runtime *runtime) {
  static const char *fallback[2] = {"cpu", NULL};
  ep_session *session = NULL;
  char *text = NULL;
  uint64_t native = 1;
  FAILS(ep_session_open(runtime, "gpu", NULL, 0, &session), EP_CODE_NOT_FOUND, "cpu:0");
  FAILS(ep_session_open(runtime, NULL, NULL, 0, &session), EP_CODE_INVALID_ARGUMENT, "null");
  FAILS(ep_session_open(runtime, "cpu", fallback, 2, &session), EP_CODE_INVALID_ARGUMENT, "fallback");
  FAILS(ep_session_open(runtime, "cpu", NULL, 1, &session), EP_CODE_INVALID_ARGUMENT, "fallback");
  FAILS(ep_session_adopt(runtime, "cpu", "CUstream", 1, NULL, 0, &session), EP_CODE_UNSUPPORTED, "");
  CHECK(session == NULL);
  NEED(ep_session_open(runtime, "sim", fallback, 1, &session));
  NEED(ep_session_fallbacks(session, &text));
  CHECK(strcmp(text, "[]") == 0);
  ep_text_free(text);
  ep_session_free(session);
  NEED(ep_session_open(runtime, "cpu", NULL, 0, &session));
  CHECK(strcmp(ep_session_device(session), "cpu:0") == 0);
  FAILS(ep_session_native(session, &text, &native), EP_CODE_UNSUPPORTED, "foreign_stream");
  CHECK(native == 1);
  ep_session_free(session);
}

int main(int argc, char **argv) {
  ep_runtime *runtime = NULL, *second = NULL;
  ep_session *session = NULL;
  ep_tensor *outlives = NULL;
  static const float data[2] = {1, 2};
  static const char *devices[2] = {"cpu:0", "sim:0"};
  int i;
  CHECK(argc == 2 && strchr(ep_host_version(), '.') != NULL);
  FAILS(ep_runtime_open("/nowhere/ep.toml", &runtime), EP_CODE_NOT_FOUND, "ep init");
  FAILS(ep_runtime_open_text("[[provider]]", "relative", &runtime), EP_CODE_INVALID_ARGUMENT, "absolute");
  FAILS(ep_runtime_open_text("[[provider]]\nnam = 1", "/", &runtime), EP_CODE_INVALID_ARGUMENT, "nam");
  CHECK(runtime == NULL);
  NEED(ep_runtime_open(argv[1], &runtime));
  NEED(ep_runtime_open_text("", "/", &second));
  ep_runtime_free(second);
  CHECK(ep_runtime_num_devices(runtime) > 1 && strcmp(ep_runtime_device(runtime, 1), "sim:0") == 0);
  CHECK(ep_runtime_device(runtime, ep_runtime_num_devices(runtime)) == NULL && ep_runtime_device(NULL, 0) == NULL && ep_runtime_num_devices(NULL) == 0);
  asking(runtime);
  names();
  sessions(runtime);
  for (i = 0; i < 2; i++) {
    NEED(ep_session_open(runtime, devices[i], NULL, 0, &session));
    computing(session);
    weighing(session);
    tensors(session);
    dlpack(session, i == 0);
    foreign(session, i == 0);
    primitives(session);
    parameters(session);
    if (i == 0) truths_of_others(session);
    ep_tensor_free(outlives);
    closing(runtime, devices[i]);
    outlives = floats(session, data, 1, 2);
    ep_session_free(session);
  }
  /* What was made outlives what it was made from. */
  NEED(ep_session_open(runtime, "sim:0", NULL, 0, &session));
  ep_runtime_free(runtime);
  EXPECT(session, outlives, data);
  ep_session_free(session);
  ep_tensor_free(outlives);
  ep_text_free(NULL);
  ep_tensor_free(NULL);
  ep_operator_free(NULL);
  ep_primitive_free(NULL);
  ep_session_free(NULL);
  ep_runtime_free(NULL);
  printf("all is as it should be\n");
  return 0;
}
