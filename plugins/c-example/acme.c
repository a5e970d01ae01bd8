/*
 * A provider with an op and a dtype of its own, neither of which the core has heard of: `acme.conv2d`, with two
 * kernels of which a predicate chooses, and `acme.fp8`, which Fill, Cast and Memcpy take. acme_cases.h says what they
 * have to compute.
 */
#include "provider.h"

#include <math.h>

/* ------------------------------------------------------------------------------------------- acme.conv2d */

typedef struct {
  uint64_t struct_size, alignment; /* Every descriptor begins with these two, */
  uint32_t data, reserved;
  double kernel;
} Conv2dDesc;

typedef struct {
  uint64_t struct_size, flags, workspace, workspace_bytes; /* and all arguments with these four. */
  int64_t num_dims;
  const int64_t *src_dims, *weight_dims, *dst_dims;
  uint64_t src, weight, dst;
} Conv2dArgs;

/* The schema as data: hosts list, check, explain and launch the op from it alone. */
static const EpField DESC_FIELDS[] = {
  {.name = EP_STR("data"), .doc = EP_STR("The elements."), .kind = EP_FIELD_DTYPE,
   .offset = offsetof(Conv2dDesc, data), .size = 4},
  {.name = EP_STR("kernel"), .doc = EP_STR("Height and width of the window: 1, 2, 3, 5 or 7."), .kind = EP_FIELD_ATTR,
   .offset = offsetof(Conv2dDesc, kernel), .size = 8, .default_value = {EP_SCALAR_I64, 0, 3, 0}}};

enum { NUM_DIMS, SRC_DIMS, WEIGHT_DIMS, DST_DIMS, SRC, WEIGHT, DST };
static const EpField ARG_FIELDS[] = {
  {.name = EP_STR("num_dims"), .doc = EP_STR("The rank of all three: 4."), .kind = EP_FIELD_SIZE,
   .offset = offsetof(Conv2dArgs, num_dims), .size = 8},
  {.name = EP_STR("src_dims"), .doc = EP_STR("Images, height, width, channels."), .kind = EP_FIELD_DIMS,
   .offset = offsetof(Conv2dArgs, src_dims), .size = 8, .link = NUM_DIMS},
  {.name = EP_STR("weight_dims"), .doc = EP_STR("Kernel, kernel, channels of src, channels of dst."),
   .kind = EP_FIELD_DIMS, .offset = offsetof(Conv2dArgs, weight_dims), .size = 8, .link = NUM_DIMS},
  {.name = EP_STR("dst_dims"), .doc = EP_STR("Images, height, width, channels."), .kind = EP_FIELD_DIMS,
   .offset = offsetof(Conv2dArgs, dst_dims), .size = 8, .link = NUM_DIMS},
  {.name = EP_STR("src"), .doc = EP_STR("Images."), .kind = EP_FIELD_ADDRESS,
   .offset = offsetof(Conv2dArgs, src), .size = 8},
  {.name = EP_STR("weight"), .doc = EP_STR("Weights."), .kind = EP_FIELD_ADDRESS,
   .offset = offsetof(Conv2dArgs, weight), .size = 8},
  {.name = EP_STR("dst"), .doc = EP_STR("Result."), .kind = EP_FIELD_ADDRESS,
   .offset = offsetof(Conv2dArgs, dst), .size = 8}};

static const EpExprNode SRC_COUNT[] = {EP_NODE_FACT(EP_EXPR_PROD, "src_dims")};
static const EpExprNode WEIGHT_COUNT[] = {EP_NODE_FACT(EP_EXPR_PROD, "weight_dims")};
static const EpExprNode DST_COUNT[] = {EP_NODE_FACT(EP_EXPR_PROD, "dst_dims")};
static const EpOperand OPERANDS[] = {
  {.name = EP_STR("src"), .dtype = 0, .access = EP_ACCESS_READ, .arg = SRC, .scalar = EP_NO_INDEX,
   .count = SRC_COUNT, .num_count = 1},
  {.name = EP_STR("weight"), .dtype = 0, .access = EP_ACCESS_READ, .arg = WEIGHT, .scalar = EP_NO_INDEX,
   .count = WEIGHT_COUNT, .num_count = 1},
  {.name = EP_STR("dst"), .dtype = 0, .access = EP_ACCESS_WRITE, .arg = DST, .scalar = EP_NO_INDEX,
   .count = DST_COUNT, .num_count = 1}};

static const EpOpSchema *conv2d_schema(void) {
  static const EpOpSchema SCHEMA = {
    .struct_size = sizeof SCHEMA, .name = EP_STR("acme.conv2d"), .version = 1, .flags = EP_OP_DETERMINISTIC,
    .summary = EP_STR("Slides a square window of weights over images, channels last, without padding."),
    .contract = EP_STR("- dst[n, y, x, o] is the sum of src[n, y + i, x + j, c] * weight[i, j, c, o] over i, j, c.\n"
                       "- Accumulates in f64 and rounds once. An empty dst is fine; in place is not."),
    .desc_size = sizeof(Conv2dDesc), .desc_fields = DESC_FIELDS, .num_desc_fields = 2,
    .args_size = sizeof(Conv2dArgs), .arg_fields = ARG_FIELDS, .num_arg_fields = 7,
    .operands = OPERANDS, .num_operands = 3};
  return &SCHEMA;
}

/* Copies the arguments of a launch, and refuses shapes that do not fit together. */
static const EpStatus *conv2d_args(EpPrimitive *primitive, const void *raw, Conv2dArgs *args) {
  const double kernel = ((const Conv2dDesc *)(const void *)primitive)->kernel;
  const EpStatus *error = receive_args(args, sizeof *args, raw);
  if (error != NULL) return error;
  if (args->num_dims != 4 || args->src_dims == NULL || args->weight_dims == NULL || args->dst_dims == NULL)
    return fail(EP_CODE_INVALID_ARGUMENT, "rank %" PRId64 "; give three shapes of rank 4", args->num_dims);
  const int64_t *s = args->src_dims, *w = args->weight_dims, *d = args->dst_dims;
  int64_t counts[3] = {1, 1, 1};
  for (int i = 0; i < 4; ++i) {
    const int64_t dims[3] = {s[i], w[i], d[i]};
    for (int j = 0; j < 3; ++j)
      if (dims[j] < 0 || __builtin_mul_overflow(counts[j], dims[j], &counts[j]))
        return fail(EP_CODE_INVALID_ARGUMENT, "a dimension is %" PRId64 ": negative, or too large", dims[j]);
  }
  if ((double)w[0] != kernel || w[1] != w[0] || w[2] != s[3])
    return fail(EP_CODE_INVALID_ARGUMENT,
                "weight is [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]; a window of %g over %" PRId64
                " channels needs [%g, %g, %" PRId64 ", %" PRId64 "]", w[0], w[1], w[2], w[3], kernel, s[3], kernel,
                kernel, s[3], w[3]);
  const int64_t height = s[1] < w[0] ? 0 : s[1] - w[0] + 1, width = s[2] < w[0] ? 0 : s[2] - w[0] + 1;
  if (d[0] != s[0] || d[1] != height || d[2] != width || d[3] != w[3])
    return fail(EP_CODE_INVALID_ARGUMENT,
                "dst is [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]; the result is [%" PRId64 ", %" PRId64
                ", %" PRId64 ", %" PRId64 "]", d[0], d[1], d[2], d[3], s[0], height, width, w[3]);
  error = check_operand("dst", args->dst, counts[2], sizeof(float));
  if (error == NULL && counts[2] != 0) error = check_operand("src", args->src, counts[0], sizeof(float));
  if (error == NULL && counts[2] != 0) error = check_operand("weight", args->weight, counts[1], sizeof(float));
  return error;
}

static const EpStatus *conv2d_general(EpPrimitive *primitive, EpStream *stream, const void *raw) {
  Conv2dArgs args = {0};
  const EpStatus *error = conv2d_args(primitive, raw, &args);
  (void)stream;
  if (error != NULL) return error;
  const int64_t *s = args.src_dims, *d = args.dst_dims, k = args.weight_dims[0];
  const float *src = (const float *)(uintptr_t)args.src, *weight = (const float *)(uintptr_t)args.weight;
  float *dst = (float *)(uintptr_t)args.dst;
  for (int64_t n = 0; n < d[0]; ++n)
    for (int64_t y = 0; y < d[1]; ++y)
      for (int64_t x = 0; x < d[2]; ++x)
        for (int64_t o = 0; o < d[3]; ++o) {
          double sum = 0;
          for (int64_t i = 0; i < k; ++i)
            for (int64_t j = 0; j < k; ++j)
              for (int64_t c = 0; c < s[3]; ++c)
                sum += (double)src[((n * s[1] + y + i) * s[2] + x + j) * s[3] + c] *
                       (double)weight[((i * k + j) * s[3] + c) * d[3] + o];
          *dst++ = (float)sum;
        }
  return NULL;
}

/* A window of one pixel is a product of matrices: pixels by channels, times the weights. */
static const EpStatus *conv2d_pointwise(EpPrimitive *primitive, EpStream *stream, const void *raw) {
  Conv2dArgs args = {0};
  const EpStatus *error = conv2d_args(primitive, raw, &args);
  (void)stream;
  if (error != NULL) return error;
  const int64_t pixels = args.dst_dims[0] * args.dst_dims[1] * args.dst_dims[2];
  const int64_t in = args.src_dims[3], out = args.dst_dims[3];
  const float *src = (const float *)(uintptr_t)args.src, *weight = (const float *)(uintptr_t)args.weight;
  float *dst = (float *)(uintptr_t)args.dst;
  for (int64_t p = 0; p < pixels; ++p)
    for (int64_t o = 0; o < out; ++o) {
      double sum = 0;
      for (int64_t c = 0; c < in; ++c) sum += (double)src[p * in + c] * (double)weight[c * out + o];
      dst[p * out + o] = (float)sum;
    }
  return NULL;
}

/* ---------------------------------------------------------------------------------------------- acme.fp8 */

/* Sign, 4 bits of exponent with bias 8, 3 of mantissa. No infinity; 0x80, which would be -0, is NaN. */
static float fp8_decode(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if (code == 0x80) return NAN;
  const float magnitude = exponent == 0 ? ldexpf((float)mantissa, -10) : ldexpf((float)(8 + mantissa), exponent - 11);
  return code & 0x80 ? -magnitude : magnitude;
}

/* Nearest, ties to even; beyond 240, the largest number. */
static uint8_t fp8_encode(double x) {
  if (isnan(x)) return 0x80;
  if (x == 0) return 0;
  int exponent;
  double magnitude = fmin(fabs(x), 240);
  frexp(magnitude, &exponent);
  /* Numbers of this size are multiples of 2^(exponent - 4), the smallest ones of 2^-10. */
  const int unit = exponent - 4 < -10 ? -10 : exponent - 4;
  const int steps = (int)nearbyint(ldexp(magnitude, -unit));
  /* Codes follow each other as numbers do, so 16 steps of one unit are the 8 of the next. */
  const int code = (unit + 10) * 8 + steps;
  return (uint8_t)(code != 0 && x < 0 ? 0x80 | code : code);
}

static const EpStatus *fp8_fill(EpPrimitive *primitive, EpStream *stream, const void *raw) {
  EpFillArgs args = {0};
  const EpStatus *error = receive_args(&args, sizeof args, raw);
  (void)primitive, (void)stream;
  if (error == NULL) error = check_operand("dst", args.dst, args.count, 1);
  if (error == NULL && (args.value.kind == EP_SCALAR_NONE || args.value.kind > EP_SCALAR_COMPLEX))
    error = fail(EP_CODE_INVALID_ARGUMENT, "`value` is of kind %" PRIu32 "; give a number", args.value.kind);
  if (error == NULL && args.count != 0)
    memset((void *)(uintptr_t)args.dst, fp8_encode(ep_scalar_as_f64(args.value)), (size_t)args.count);
  return error;
}

static const EpStatus *fp8_from_f32(EpPrimitive *primitive, EpStream *stream, const void *raw) {
  EpCastArgs args = {0};
  const EpStatus *error = receive_args(&args, sizeof args, raw);
  (void)primitive, (void)stream;
  if (error == NULL) error = check_operand("src", args.src, args.count, sizeof(float));
  if (error == NULL) error = check_operand("dst", args.dst, args.count, 1);
  for (int64_t i = 0; error == NULL && i < args.count; ++i)
    ((uint8_t *)(uintptr_t)args.dst)[i] = fp8_encode(((const float *)(uintptr_t)args.src)[i]);
  return error;
}

static const EpStatus *fp8_to_f32(EpPrimitive *primitive, EpStream *stream, const void *raw) {
  EpCastArgs args = {0};
  const EpStatus *error = receive_args(&args, sizeof args, raw);
  (void)primitive, (void)stream;
  if (error == NULL) error = check_operand("src", args.src, args.count, 1);
  if (error == NULL) error = check_operand("dst", args.dst, args.count, sizeof(float));
  for (int64_t i = 0; error == NULL && i < args.count; ++i)
    ((float *)(uintptr_t)args.dst)[i] = fp8_decode(((const uint8_t *)(uintptr_t)args.src)[i]);
  return error;
}

static const EpStatus *copy_bytes(EpPrimitive *primitive, EpStream *stream, const void *raw) {
  EpMemcpyArgs args = {0};
  const EpStatus *error = receive_args(&args, sizeof args, raw);
  (void)primitive, (void)stream;
  if (error == NULL) error = check_operand("src", args.src, args.bytes, 1);
  if (error == NULL) error = check_operand("dst", args.dst, args.bytes, 1);
  if (error == NULL && args.bytes != 0)
    memmove((void *)(uintptr_t)args.dst, (const void *)(uintptr_t)args.src, (size_t)args.bytes);
  return error;
}

/* ---------------------------------------------------------------------------------------- What it can do */

static const EpExprNode IS_POINTWISE[] = {
  EP_NODE_FACT(EP_EXPR_ATTR, "kernel"), EP_NODE_I64(1), EP_NODE_OP(EP_EXPR_EQ)};
/* An attribute is any number; a window is a whole one. */
static const EpExprNode IS_POSSIBLE[] = {
  EP_NODE_FACT(EP_EXPR_ATTR, "kernel"), EP_NODE_I64(1), EP_NODE_I64(2), EP_NODE_I64(3), EP_NODE_I64(5),
  EP_NODE_I64(7), EP_NODE_IN(5)};
static const uint32_t AUTO[] = {EP_MEMCPY_KIND_AUTO};

/* Where both kernels can do a convolution, the one of higher priority does it. */
static EpFactoryContext GENERAL = {
  "conv2d.general", conv2d_schema, NULL, TABLE(conv2d_general), IS_POSSIBLE, 7, 0};
static EpFactoryContext POINTWISE = {
  "conv2d.pointwise", conv2d_schema, NULL, TABLE(conv2d_pointwise), IS_POINTWISE, 3, 1};
static EpFactoryContext FILL = {"fill.fp8", ep_fill_schema, NULL, TABLE(fp8_fill), NULL, 0, 0};
static EpFactoryContext FROM_F32 = {"cast.f32_fp8", ep_cast_schema, NULL, TABLE(fp8_from_f32), NULL, 0, 0};
static EpFactoryContext TO_F32 = {"cast.fp8_f32", ep_cast_schema, NULL, TABLE(fp8_to_f32), NULL, 0, 0};
static EpFactoryContext MEMCPY = {"memcpy", ep_memcpy_schema, AUTO, TABLE(copy_bytes), NULL, 0, 0};

/* The id of `acme.fp8` in this process. */
static const EpStatus *intern_fp8(EpProvider *provider, uint32_t *id) {
  const EpHostServices *host = provider->host;
  const EpDtypeInfo fp8 = {.struct_size = sizeof fp8, .name = EP_STR("acme.fp8"), .bits = 8, .alignment = 1};
  return host->intern_dtype(host->context, &fp8, id);
}

static const EpStatus *register_all(EpProvider *provider, const EpRegistrar *registrar) {
  uint32_t id = EP_DTYPE_INVALID;
  const EpStatus *error = intern_fp8(provider, &id);
  const uint32_t f32[] = {EP_DTYPE_F32}, from[] = {EP_DTYPE_F32, id}, to[] = {id, EP_DTYPE_F32};
  if (error == NULL) error = add_kernel(registrar, &GENERAL, f32);
  if (error == NULL) error = add_kernel(registrar, &POINTWISE, f32);
  if (error == NULL) error = add_kernel(registrar, &FILL, &id);
  if (error == NULL) error = add_kernel(registrar, &FROM_F32, from);
  if (error == NULL) error = add_kernel(registrar, &TO_F32, to);
  if (error == NULL) error = add_kernel(registrar, &MEMCPY, NULL);
  return error;
}

#include "acme_cases.h"

static const EpProviderTable PROVIDER = {sizeof PROVIDER, provider_destroy, device_count, device_open, register_all,
                                         get_interface};
static const EpPlugin PLUGIN = {
  .struct_size = sizeof PLUGIN, .abi_major = EP_ABI_MAJOR, .abi_minor = EP_ABI_MINOR, .name = EP_STR("acme"),
  .version = EP_STR("1.2.0"), .vendor = EP_STR("Acme"), .flags = EP_PLUGIN_FORK_SAFE, .infos = EP_ABI_INFOS,
  .num_infos = EP_ABI_NUM_INFOS, .provider = &PROVIDER, .device = &DEVICE, .stream = &STREAM, .event = &EVENT,
  .allocator = &ALLOCATOR, .create_provider = provider_create};

EP_EXPORT const EpStatus *ep_plugin_query(uint32_t major, uint32_t minor, const EpPlugin **out) {
  return answer_query(&PLUGIN, major, minor, out);
}
