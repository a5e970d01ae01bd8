/* A provider in C11 with nothing but ep_plugin.h: Fill, Add and ReLU of f32 on the CPU. */
#include "provider.h"

static const EpStatus *fill(EpPrimitive *primitive, EpStream *stream, const void *raw) {
  EpFillArgs args = {0};
  const EpStatus *error = receive_args(&args, sizeof args, raw);
  (void)primitive, (void)stream;
  if (error == NULL) error = check_operand("dst", args.dst, args.count, sizeof(float));
  if (error == NULL && (args.value.kind == EP_SCALAR_NONE || args.value.kind > EP_SCALAR_COMPLEX))
    error = fail(EP_CODE_INVALID_ARGUMENT, "`value` is of kind %" PRIu32 "; give a number", args.value.kind);
  /* An integer goes to f32 directly: by way of a double it would be rounded twice. */
  float value = (float)ep_scalar_as_f64(args.value);
  if (args.value.kind == EP_SCALAR_I64) value = (float)(int64_t)args.value.re;
  if (args.value.kind == EP_SCALAR_U64) value = (float)args.value.re;
  for (int64_t i = 0; error == NULL && i < args.count; ++i) ((float *)(uintptr_t)args.dst)[i] = value;
  return error;
}

static const EpStatus *add(EpPrimitive *primitive, EpStream *stream, const void *raw) {
  const uint64_t limit = ((const EpAddDesc *)(const void *)primitive)->max_arity;
  const int64_t most = limit == 0 || limit > 256 ? 256 : (int64_t)limit;
  EpAddArgs args = {0};
  const EpStatus *error = receive_args(&args, sizeof args, raw);
  (void)stream;
  if (error == NULL) error = check_operand("dst", args.dst, args.count, sizeof(float));
  if (error == NULL && (args.arity < 0 || args.arity > most || (args.arity != 0 && args.srcs == NULL)))
    error = fail(EP_CODE_INVALID_ARGUMENT, "`arity` is %" PRId64 "; 0 to %" PRId64 " sources are possible here",
                 args.arity, most);
  for (int64_t j = 0; error == NULL && j < args.arity; ++j)
    error = check_operand("srcs", args.srcs[j], args.count, sizeof(float));
  for (int64_t i = 0; error == NULL && i < args.count; ++i) {
    /* An element of all sources is read before that of dst is written: dst may be one of them. */
    float sum = args.arity == 0 ? 0 : ((const float *)(uintptr_t)args.srcs[0])[i];
    for (int64_t j = 1; j < args.arity; ++j) sum += ((const float *)(uintptr_t)args.srcs[j])[i];
    ((float *)(uintptr_t)args.dst)[i] = sum;
  }
  return error;
}

static const EpStatus *relu(EpPrimitive *primitive, EpStream *stream, const void *raw) {
  EpElementwiseUnaryArgs args = {0};
  const EpStatus *error = receive_args(&args, sizeof args, raw);
  (void)primitive, (void)stream;
  if (error == NULL) error = check_operand("src", args.src, args.count, sizeof(float));
  if (error == NULL) error = check_operand("dst", args.dst, args.count, sizeof(float));
  const float *src = (const float *)(uintptr_t)args.src;
  float *dst = (float *)(uintptr_t)args.dst;
  /* The condition is false for NaN, which stays one. */
  for (int64_t i = 0; error == NULL && i < args.count; ++i) dst[i] = src[i] <= 0 ? 0 : src[i];
  return error;
}

static const uint32_t RELU[] = {EP_UNARY_OP_RELU}, F32[] = {EP_DTYPE_F32, EP_DTYPE_F32};
static EpFactoryContext KERNELS[] = {
  {"fill.f32", ep_fill_schema, NULL, TABLE(fill), NULL, 0, 0},
  {"add.f32", ep_add_schema, NULL, TABLE(add), NULL, 0, 0},
  {"relu.f32", ep_elementwise_unary_schema, RELU, TABLE(relu), NULL, 0, 0},
};

static const EpStatus *register_all(EpProvider *provider, const EpRegistrar *registrar) {
  const EpStatus *error = NULL;
  (void)provider;
  for (size_t i = 0; error == NULL && i < 3; ++i) error = add_kernel(registrar, &KERNELS[i], F32);
  return error;
}

static const EpProviderTable PROVIDER = {sizeof PROVIDER, provider_destroy, device_count, device_open, register_all,
                                         NULL};
/* It has no threads and no driver, so a forked child may go on with it. */
static const EpPlugin PLUGIN = {
  .struct_size = sizeof PLUGIN, .abi_major = EP_ABI_MAJOR, .abi_minor = EP_ABI_MINOR, .name = EP_STR("c-example"),
  .version = EP_STR("0.1.0"), .vendor = EP_STR("EP project"), .flags = EP_PLUGIN_FORK_SAFE, .infos = EP_ABI_INFOS,
  .num_infos = EP_ABI_NUM_INFOS, .provider = &PROVIDER, .device = &DEVICE, .stream = &STREAM, .event = &EVENT,
  .allocator = &ALLOCATOR, .create_provider = provider_create};

EP_EXPORT const EpStatus *ep_plugin_query(uint32_t major, uint32_t minor, const EpPlugin **out) {
  return answer_query(&PLUGIN, major, minor, out);
}
