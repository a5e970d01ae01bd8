/*
 * A provider that the tests of version skew compile against many versions of ep_plugin.h: today's, older and
 * newer ones that never were, and ones that do not fit. The source is the same for all, so it names no field
 * that any of those versions lacks; SKEW_NEWER marks what only the newer ones have, and SKEW_KEYED a softmax that is
 * registered for values of a selector `mode` and for an attribute `temperature`, which only those ones have.
 *
 * Its one device computes on the calling thread, but does not say so: the host takes it for an asynchronous one
 * with memory of its own, and every kind of object crosses the boundary. C11 and malloc, nothing else.
 */

#include "ep_plugin.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* The provider's id, so that several versions of it can be loaded side by side. */
#ifndef SKEW_ID
#define SKEW_ID "skew"
#endif

/* The memory space of its device, and the device's identity: another space is another device. */
#ifndef SKEW_SPACE
#define SKEW_SPACE "skew"
#endif

#define QUEUE_KIND "skew-queue"
#define MEMORY_LIMIT (UINT64_C(64) << 20)
#define PREFERRED_ALIGNMENT UINT64_C(64)

/* ---------------------------------------------------------------------------------------------- Errors */

typedef struct {
  EpStatus status;
  char text[256];
} Failure;

static void failure_release(const EpStatus *status) {
  /* The status is the first member of what was allocated. */
  free((void *)(uintptr_t)status);
}

/* A status with a message made for the occasion. */
static const EpStatus *fail(int32_t code, const char *format, ...) {
  EP_STATIC_STATUS(NO_MEMORY, EP_CODE_OUT_OF_MEMORY, SKEW_ID ": no memory is left for an error message");
  Failure *failure = malloc(sizeof *failure);
  if (failure == NULL) return &NO_MEMORY;
  va_list values;
  va_start(values, format);
  vsnprintf(failure->text, sizeof failure->text, format, values);
  va_end(values);
  failure->status = (EpStatus){code, 0, ep_str(failure->text), failure_release};
  return &failure->status;
}

/* Reads a struct of whatever version that the host handed over. */
static const EpStatus *receive(void *out, uint64_t size, const void *in, const char *what) {
  const int32_t code = ep_read_struct(out, size, in);
  if (code == 0) return NULL;
  return fail(code, "%s: its size is impossible, or a field is set that this version does not know", what);
}

/* --------------------------------------------------------------------------------------------- Objects */

struct EpProvider {
  const EpHostServices *host;
};

struct EpDevice {
  _Atomic uint64_t in_use_bytes, in_use_blocks, peak_bytes, total_allocs;
};

struct EpStream {
  EpDevice *device;
};

struct EpEvent {
  uint64_t recorded_ns;
};

struct EpAllocator {
  EpDevice *device;
};

struct EpPrimitive {
  int unused;
};

/* Allocates an object of `size` bytes into `*out`. */
static const EpStatus *make(size_t size, void *out) {
  void *object = calloc(1, size);
  if (object == NULL) return fail(EP_CODE_OUT_OF_MEMORY, "no memory for an object of %zu bytes", size);
  memcpy(out, &object, sizeof object);
  return NULL;
}

static void provider_destroy(EpProvider *provider) { free(provider); }
static void device_destroy(EpDevice *device) { free(device); }
static void stream_destroy(EpStream *stream) { free(stream); }
static void event_destroy(EpEvent *event) { free(event); }
static void allocator_destroy(EpAllocator *allocator) { free(allocator); }
static void primitive_destroy(EpPrimitive *primitive) { free(primitive); }

/* --------------------------------------------------------------------------------- Events and streams */

static uint64_t now_ns(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static const EpStatus *event_query(EpEvent *event, uint32_t *out) {
  (void)event;
  *out = 1;
  return NULL;
}

static const EpStatus *event_sync(EpEvent *event) {
  (void)event;
  return NULL;
}

static const EpEventTable EVENT = {
  .struct_size = sizeof(EpEventTable),
  .destroy = event_destroy,
  .query = event_query,
  .sync = event_sync,
};

static const EpStatus *stream_sync(EpStream *stream) {
  (void)stream;
  return NULL;
}

static const EpStatus *stream_query(EpStream *stream, uint32_t *out) {
  (void)stream;
  *out = 1;
  return NULL;
}

static int reachable(EpStr space) { return ep_str_equals(space, SKEW_SPACE) || ep_str_equals(space, "host"); }

static const EpStatus *stream_copy(EpStream *stream, const EpCopy *raw) {
  EpCopy copy;
  const EpStatus *error = receive(&copy, sizeof copy, raw, "EpCopy");
  (void)stream;
  if (error != NULL) return error;
  if (!reachable(copy.src_space) || !reachable(copy.dst_space)) {
    return fail(EP_CODE_UNSUPPORTED, "this device copies between `" SKEW_SPACE "` and `host` only");
  }
  if (copy.bytes != 0) {
    memmove((void *)(uintptr_t)copy.dst, (const void *)(uintptr_t)copy.src, (size_t)copy.bytes);
  }
  return NULL;
}

static const EpStatus *stream_record(EpStream *stream, EpEvent *event) {
  (void)stream;
  event->recorded_ns = now_ns();
  return NULL;
}

static const EpStatus *stream_wait(EpStream *stream, EpEvent *event) {
  (void)stream;
  (void)event;
  return NULL;
}

static const EpStreamTable STREAM = {
  .struct_size = sizeof(EpStreamTable),
  .destroy = stream_destroy,
  .sync = stream_sync,
  .query = stream_query,
  .copy = stream_copy,
  .record = stream_record,
  .wait = stream_wait,
};

/* ---------------------------------------------------------------------------------------------- Memory */

static const EpStatus *memory_alloc(EpAllocator *allocator, const EpAllocRequest *raw, uint64_t *out) {
  EpDevice *device = allocator->device;
  EpAllocRequest request;
  const EpStatus *error = receive(&request, sizeof request, raw, "EpAllocRequest");
  if (error != NULL) return error;
  const uint64_t alignment = request.alignment > PREFERRED_ALIGNMENT ? request.alignment : PREFERRED_ALIGNMENT;
  const uint64_t before = atomic_fetch_add(&device->in_use_bytes, request.bytes);
  if (request.bytes > MEMORY_LIMIT || before > MEMORY_LIMIT - request.bytes) {
    atomic_fetch_sub(&device->in_use_bytes, request.bytes);
    return fail(EP_CODE_OUT_OF_MEMORY,
                "%" PRIu64 " bytes were asked for, and %" PRIu64 " of %" PRIu64
                " are in use; free some or ask for less",
                request.bytes, before, MEMORY_LIMIT);
  }
  /* At least one unit, so that a size of 0 has an address too. */
  const uint64_t units = request.bytes / alignment + 1;
  void *memory = aligned_alloc((size_t)alignment, (size_t)(units * alignment));
  if (memory == NULL) {
    atomic_fetch_sub(&device->in_use_bytes, request.bytes);
    return fail(EP_CODE_OUT_OF_MEMORY, "the system has no %" PRIu64 " bytes left", request.bytes);
  }
  /* What was never written must not look like a result. */
  memset(memory, 0xA5, (size_t)(units * alignment));
  uint64_t peak = atomic_load(&device->peak_bytes);
  while (peak < before + request.bytes &&
         !atomic_compare_exchange_weak(&device->peak_bytes, &peak, before + request.bytes)) {
  }
  atomic_fetch_add(&device->in_use_blocks, 1);
  atomic_fetch_add(&device->total_allocs, 1);
  *out = (uint64_t)(uintptr_t)memory;
  return NULL;
}

static const EpStatus *memory_free(EpAllocator *allocator, uint64_t address, uint64_t bytes) {
  free((void *)(uintptr_t)address);
  atomic_fetch_sub(&allocator->device->in_use_bytes, bytes);
  atomic_fetch_sub(&allocator->device->in_use_blocks, 1);
  return NULL;
}

static const EpStatus *memory_stats(EpAllocator *allocator, EpMemoryStats *out) {
  EpDevice *device = allocator->device;
  EpMemoryStats stats = {.struct_size = sizeof stats};
  stats.in_use_bytes = atomic_load(&device->in_use_bytes);
  stats.in_use_blocks = atomic_load(&device->in_use_blocks);
  stats.reserved_bytes = stats.in_use_bytes;
  stats.peak_in_use_bytes = atomic_load(&device->peak_bytes);
#ifndef SKEW_OLDER
  stats.total_allocs = atomic_load(&device->total_allocs);
#endif
#ifdef SKEW_NEWER
  stats.largest_free = MEMORY_LIMIT - stats.in_use_bytes;
#endif
  ep_write_struct(out, &stats, sizeof stats);
  return NULL;
}

static const EpAllocatorTable ALLOCATOR = {
  .struct_size = sizeof(EpAllocatorTable),
  .destroy = allocator_destroy,
  .alloc = memory_alloc,
  .free = memory_free,
  .stats = memory_stats,
};

/* ------------------------------------------------------------------------------- Optional interfaces */

static const EpStatus *timing_elapsed(EpEvent *start, EpEvent *end, uint64_t *out) {
  *out = end->recorded_ns > start->recorded_ns ? end->recorded_ns - start->recorded_ns : 0;
  return NULL;
}

static const EpTimingInterface TIMING = {
  .struct_size = sizeof(EpTimingInterface),
  .info = EP_INFO(EpTimingInterface),
  .elapsed = timing_elapsed,
};

static const EpStatus *foreign_native(EpStream *stream, EpStr *kind, uint64_t *out) {
  *kind = ep_str(QUEUE_KIND);
  *out = (uint64_t)(uintptr_t)stream;
  return NULL;
}

#ifndef SKEW_NO_ADOPT
static const EpStatus *foreign_adopt(EpDevice *device, EpStr kind, uint64_t handle, EpStream **out) {
  if (!ep_str_equals(kind, QUEUE_KIND) || handle == 0) {
    return fail(EP_CODE_UNSUPPORTED, "only streams of kind `" QUEUE_KIND "` can be adopted");
  }
  const EpStatus *error = make(sizeof(EpStream), out);
  if (error == NULL) (*out)->device = device;
  return error;
}
#endif

static const EpForeignStreamInterface FOREIGN = {
  .struct_size = sizeof(EpForeignStreamInterface),
  .info = EP_INFO(EpForeignStreamInterface),
  .native = foreign_native,
#ifndef SKEW_NO_ADOPT
  .adopt = foreign_adopt,
#endif
};

/* ---------------------------------------------------------------------------------------------- Device */

static const EpStatus *device_info(EpDevice *device, EpDeviceInfo *out) {
  static const EpStr SPACES[] = {EP_STR(SKEW_SPACE)};
  (void)device;
  EpDeviceInfo info = {.struct_size = sizeof info};
  info.kind = ep_str("skew");
  info.name = ep_str("a device between versions");
  memcpy(info.uuid.bytes, "device:" SKEW_SPACE, sizeof "device:" SKEW_SPACE);
  info.memory_bytes = MEMORY_LIMIT;
  info.memory_space = ep_str(SKEW_SPACE);
  info.reads = SPACES;
  info.num_reads = 1;
  info.writes = SPACES;
  info.num_writes = 1;
#ifdef SKEW_NEWER
  info.cores = 4;
#endif
  ep_write_struct(out, &info, sizeof info);
  return NULL;
}

static const EpStatus *stream_create(EpDevice *device, const EpStreamOptions *raw, EpStream **out) {
  EpStreamOptions options;
  const EpStatus *error = receive(&options, sizeof options, raw, "EpStreamOptions");
  if (error == NULL) error = make(sizeof(EpStream), out);
  if (error == NULL) (*out)->device = device;
  return error;
}

static const EpStatus *event_create(EpDevice *device, uint64_t flags, EpEvent **out) {
  (void)device;
  if (flags != 0) return fail(EP_CODE_UNSUPPORTED, "event flags %#" PRIx64 " are not known", flags);
  return make(sizeof(EpEvent), out);
}

static const EpStatus *allocator_open(EpDevice *device, uint32_t kind, EpAllocator **out) {
  if (kind != EP_MEMORY_DEVICE) {
    return fail(EP_CODE_UNSUPPORTED, "memory of kind %" PRIu32 " does not exist here; use device memory", kind);
  }
  const EpStatus *error = make(sizeof(EpAllocator), out);
  if (error == NULL) (*out)->device = device;
  return error;
}

#ifndef SKEW_OLDER
static const EpStatus *device_interface(EpDevice *device, EpStr name, uint32_t version,
                                        const EpInterface **out) {
  (void)device;
  *out = NULL;
  if (version != 1) return NULL;
  if (ep_str_equals(name, EP_TIMING_INTERFACE)) *out = (const EpInterface *)&TIMING;
  if (ep_str_equals(name, EP_FOREIGN_STREAM_INTERFACE)) *out = (const EpInterface *)&FOREIGN;
  return NULL;
}
#endif

#ifdef SKEW_NEWER
static const EpStatus *device_reset(EpDevice *device) {
  (void)device;
  return fail(EP_CODE_INTERNAL, "a host of an older version has called a function that it cannot know");
}
#endif

static const EpDeviceTable DEVICE = {
  .struct_size = sizeof(EpDeviceTable),
  .destroy = device_destroy,
  .info = device_info,
  .stream_create = stream_create,
  .event_create = event_create,
  .allocator_open = allocator_open,
#ifndef SKEW_OLDER
  .get_interface = device_interface,
#endif
#ifdef SKEW_NEWER
  .reset = device_reset,
#endif
};

/* ------------------------------------------------------------------------------------------------- Ops */

static const EpStatus *relu_launch(EpPrimitive *primitive, EpStream *stream, const void *raw) {
  EpElementwiseUnaryArgs args;
  const EpStatus *error = receive(&args, sizeof args, raw, "EpElementwiseUnaryArgs");
  (void)primitive;
  (void)stream;
  if (error != NULL) return error;
  if (args.flags != 0) return fail(EP_CODE_UNSUPPORTED, "launch flags %#" PRIx64 " are not known", args.flags);
  const float *src = (const float *)(uintptr_t)args.src;
  float *dst = (float *)(uintptr_t)args.dst;
  for (int64_t i = 0; i < args.count; ++i) dst[i] = isnan(src[i]) || src[i] > 0 ? src[i] : 0;
  return NULL;
}

static void softmax_row(const float *src, float *dst, int64_t cols) {
  float max = -INFINITY, sum = 0;
  for (int64_t j = 0; j < cols; ++j) max = fmaxf(max, src[j]);
  for (int64_t j = 0; j < cols; ++j) sum += dst[j] = expf(src[j] - max);
  for (int64_t j = 0; j < cols; ++j) dst[j] /= sum;
}

static const EpStatus *softmax_launch(EpPrimitive *primitive, EpStream *stream, const void *raw) {
  EpSoftmaxArgs args;
  const EpStatus *error = receive(&args, sizeof args, raw, "EpSoftmaxArgs");
  (void)primitive;
  (void)stream;
  if (error != NULL) return error;
  if (args.flags != 0) return fail(EP_CODE_UNSUPPORTED, "launch flags %#" PRIx64 " are not known", args.flags);
  if (args.inner > 1) return fail(EP_CODE_UNSUPPORTED, "softmax rows with gaps: inner is %" PRId64, args.inner);
  const float *src = (const float *)(uintptr_t)args.src;
  float *dst = (float *)(uintptr_t)args.dst;
  for (int64_t i = 0; i < args.rows; ++i) softmax_row(src + i * args.cols, dst + i * args.cols, args.cols);
  return NULL;
}

static const EpPrimitiveTable RELU = {
  .struct_size = sizeof(EpPrimitiveTable),
  .destroy = primitive_destroy,
  .launch = relu_launch,
};

static const EpPrimitiveTable SOFTMAX = {
  .struct_size = sizeof(EpPrimitiveTable),
  .destroy = primitive_destroy,
  .launch = softmax_launch,
};

static const EpStatus *relu_create(EpFactoryContext *context, EpDevice *device, const void *raw,
                                   EpPrimitive **out) {
  EpElementwiseUnaryDesc desc;
  const EpStatus *error = receive(&desc, sizeof desc, raw, "EpElementwiseUnaryDesc");
  (void)context;
  (void)device;
  return error != NULL ? error : make(sizeof(EpPrimitive), out);
}

static const EpStatus *softmax_create(EpFactoryContext *context, EpDevice *device, const void *raw,
                                      EpPrimitive **out) {
  EpSoftmaxDesc desc;
  const EpStatus *error = receive(&desc, sizeof desc, raw, "EpSoftmaxDesc");
  (void)context;
  (void)device;
  return error != NULL ? error : make(sizeof(EpPrimitive), out);
}

/* -------------------------------------------------------------------------------------------- Provider */

static const EpStatus *device_count(EpProvider *provider, uint32_t *out) {
  (void)provider;
  *out = 1;
  return NULL;
}

static const EpStatus *device_open(EpProvider *provider, uint32_t index, EpDevice **out) {
  (void)provider;
  if (index != 0) return fail(EP_CODE_NOT_FOUND, "device %" PRIu32 ": there is one device, 0", index);
  return make(sizeof(EpDevice), out);
}

static const EpStatus *register_all(EpProvider *provider, const EpRegistrar *registrar) {
  static const uint32_t F32_TO_F32[] = {EP_DTYPE_F32, EP_DTYPE_F32};
  static const uint32_t OP_RELU[] = {EP_UNARY_OP_RELU};
  const EpOpSchema *unary = ep_elementwise_unary_schema(), *softmax = ep_softmax_schema();
  const EpStatus *error;
  (void)provider;
  if ((error = registrar->add_schema(registrar->context, unary)) != NULL) return error;
  if ((error = registrar->add_schema(registrar->context, softmax)) != NULL) return error;
  EpFactoryInfo factory = {.struct_size = sizeof factory};
#ifdef SKEW_SETS_UNKNOWN
  factory.cost = 1;
#endif
  factory.device_kind = ep_str("skew");
  factory.dtypes = F32_TO_F32;
  factory.num_dtype_rows = 1;

  factory.op = unary->name;
  factory.name = ep_str("unary.relu");
  factory.schema_version = unary->version;
  factory.selectors = OP_RELU;
  factory.num_selector_rows = 1;
  factory.primitive = &RELU;
  factory.create = relu_create;
  if ((error = registrar->add_factory(registrar->context, &factory)) != NULL) return error;

  factory.op = softmax->name;
  factory.name = ep_str("softmax.rows");
  factory.schema_version = softmax->version;
  factory.selectors = NULL;
  factory.num_selector_rows = 0;
#ifdef SKEW_KEYED
  /* Of the second value and of the predicate's field no older host knows. */
  static const uint32_t MODES[] = {0, 1};
  static const EpExprNode WHEN[] = {
    EP_NODE_FACT(EP_EXPR_ATTR, "temperature"), EP_NODE_I64(0), EP_NODE_OP(EP_EXPR_EQ),
    EP_NODE_FACT(EP_EXPR_SELECTOR, "mode"), EP_NODE_TEXT("none"), EP_NODE_OP(EP_EXPR_EQ), EP_NODE_OP(EP_EXPR_AND)};
  static const EpExprNode HINT[] = {
    EP_NODE_FACT(EP_EXPR_ATTR, "temperature"), EP_NODE_I64(7), EP_NODE_OP(EP_EXPR_ADD)};
  factory.selectors = MODES;
  factory.num_selector_rows = 2;
  factory.predicate = WHEN;
  factory.num_predicate = sizeof WHEN / sizeof *WHEN;
  factory.hint = HINT;
  factory.num_hint = sizeof HINT / sizeof *HINT;
#endif
  factory.primitive = &SOFTMAX;
  factory.create = softmax_create;
  return registrar->add_factory(registrar->context, &factory);
}

static const EpProviderTable PROVIDER = {
  .struct_size = sizeof(EpProviderTable),
  .destroy = provider_destroy,
  .device_count = device_count,
  .device_open = device_open,
  .register_all = register_all,
};

static const EpStatus *create_provider(const EpHostServices *host, const EpProviderOptions *raw,
                                       EpProvider **out) {
  EpProviderOptions options;
  const EpStatus *error = receive(&options, sizeof options, raw, "EpProviderOptions");
  if (error != NULL) return error;
  if (options.num_options != 0) {
    const EpStr key = options.options[0].key;
    return fail(EP_CODE_INVALID_ARGUMENT, "option `%.*s` is not known: " SKEW_ID " has none; remove it",
                (int)key.len, key.ptr);
  }
#ifdef SKEW_NEWER
  if (EP_HAS_FIELD(EpHostServices, host, beep)) {
    return fail(EP_CODE_INTERNAL, "a host of an older version says that it has a newer one's function");
  }
#endif
  if ((error = make(sizeof(EpProvider), out)) != NULL) return error;
  (*out)->host = host;
  if (host->log_enabled(host->context, EP_LEVEL_INFO) != 0) {
    host->log(host->context, EP_LEVEL_INFO, ep_str(SKEW_ID), ep_str("started"));
  }
  return NULL;
}

static const EpPlugin PLUGIN = {
  .struct_size = sizeof(EpPlugin),
  .abi_major = EP_ABI_MAJOR,
  .abi_minor = EP_ABI_MINOR,
  .name = EP_STR(SKEW_ID),
  .version = EP_STR("1.0"),
  .vendor = EP_STR("EP project"),
  .infos = EP_ABI_INFOS,
  .num_infos = EP_ABI_NUM_INFOS,
  .provider = &PROVIDER,
  .device = &DEVICE,
  .stream = &STREAM,
  .event = &EVENT,
  .allocator = &ALLOCATOR,
  .create_provider = create_provider,
#ifdef SKEW_NEWER
  .license = EP_STR("MIT OR Apache-2.0"),
#endif
};

static int is_older(uint32_t major, uint32_t minor, uint32_t than_major, uint32_t than_minor) {
  return major < than_major || (major == than_major && minor < than_minor);
}

EP_EXPORT const EpStatus *ep_plugin_query(uint32_t host_major, uint32_t host_minor, const EpPlugin **out) {
  if (is_older(host_major, host_minor, EP_ABI_MAJOR, EP_ABI_MINOR)) {
    return fail(EP_CODE_ABI_MISMATCH,
                SKEW_ID " 1.0 speaks ABI %" PRIu32 ".%" PRIu32 ", and this host %" PRIu32 ".%" PRIu32
                        "; update the host, or use an older build of the provider",
                EP_ABI_MAJOR, EP_ABI_MINOR, host_major, host_minor);
  }
  *out = &PLUGIN;
  return NULL;
}
