/* Everything of a provider but its kernels: an instance, the CPU as its device, streams, events, memory. */
#include "ep_plugin.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* ---------------------------------------------------------------------------------------------- Errors */
typedef struct { EpStatus status; char text[256]; } Failure; /* The status first: it has the address of the whole. */
static void failure_release(const EpStatus *status) { free((void *)(uintptr_t)status); }
/* An error with a message made for the occasion. */
static const EpStatus *fail(int32_t code, const char *format, ...) {
  EP_STATIC_STATUS(NO_MEMORY, EP_CODE_OUT_OF_MEMORY, "no memory is left for an error message; free some");
  va_list values;
  Failure *failure = malloc(sizeof *failure);
  if (failure == NULL) return &NO_MEMORY;
  va_start(values, format);
  vsnprintf(failure->text, sizeof failure->text, format, values);
  va_end(values);
  failure->status = (EpStatus){code, 0, ep_str(failure->text), failure_release};
  return &failure->status;
}

/* Copies a struct of the host, whatever its version, to one of `size` bytes. */
static const EpStatus *receive(void *out, uint64_t size, const void *in, const char *what) {
  const int32_t code = ep_read_struct(out, size, in);
  if (code == 0) return NULL;
  return fail(code, "%s: its size is impossible, or a field is set that this version does not know", what);
}

/* Allocates a zeroed object of `size` bytes; `out` is the address of a pointer. */
static const EpStatus *make(size_t size, void *out) {
  void *object = calloc(1, size);
  if (object == NULL) return fail(EP_CODE_OUT_OF_MEMORY, "no memory for an object of %zu bytes", size);
  memcpy(out, &object, sizeof object);
  return NULL;
}

/* --------------------------------------------------- Streams and events: work is done when a call returns */
struct EpStream { char unused; };
struct EpEvent { char unused; };
static void stream_destroy(EpStream *stream) { free(stream); }
static const EpStatus *stream_sync(EpStream *stream) { return (void)stream, NULL; }
static const EpStatus *stream_query(EpStream *stream, uint32_t *out) { return (void)stream, *out = 1, NULL; }
static const EpStatus *stream_event(EpStream *stream, EpEvent *event) { return (void)stream, (void)event, NULL; }
static void event_destroy(EpEvent *event) { free(event); }
static const EpStatus *event_query(EpEvent *event, uint32_t *out) { return (void)event, *out = 1, NULL; }
static const EpStatus *event_sync(EpEvent *event) { return (void)event, NULL; }

static const EpStatus *stream_copy(EpStream *stream, const EpCopy *raw) {
  EpCopy copy;
  const EpStatus *error = receive(&copy, sizeof copy, raw, "EpCopy");
  (void)stream;
  if (error == NULL && !(ep_str_equals(copy.src_space, "host") && ep_str_equals(copy.dst_space, "host")))
    error = fail(EP_CODE_UNSUPPORTED, "this device copies within `host` only");
  if (error == NULL && copy.bytes != 0)
    memmove((void *)(uintptr_t)copy.dst, (void *)(uintptr_t)copy.src, (size_t)copy.bytes);
  return error;
}

static const EpEventTable EVENT = {sizeof EVENT, event_destroy, event_query, event_sync};
static const EpStreamTable STREAM = {
  sizeof STREAM, stream_destroy, stream_sync, stream_query, stream_copy, stream_event, stream_event, NULL};

/* ---------------------------------------------------------------------------------------------- Memory */
struct EpAllocator { _Atomic uint64_t in_use_bytes, in_use_blocks, peak_bytes, total_allocs; };
static void allocator_destroy(EpAllocator *allocator) { free(allocator); }

static const EpStatus *memory_alloc(EpAllocator *allocator, const EpAllocRequest *raw, uint64_t *out) {
  EpAllocRequest request;
  const EpStatus *error = receive(&request, sizeof request, raw, "EpAllocRequest");
  if (error != NULL) return error;
  const uint64_t alignment = request.alignment < 64 ? 64 : request.alignment;
  if ((request.alignment & (request.alignment - 1)) != 0)
    return fail(EP_CODE_INVALID_ARGUMENT, "alignment %" PRIu64 " is not a power of two", request.alignment);
  /* One unit more than needed, so that a size of 0 has an address too. */
  const int fits = alignment < PTRDIFF_MAX / 4 && request.bytes < PTRDIFF_MAX - 2 * alignment;
  void *memory = fits ? aligned_alloc((size_t)alignment, (size_t)((request.bytes / alignment + 1) * alignment)) : NULL;
  if (memory == NULL) return fail(EP_CODE_OUT_OF_MEMORY, "the system has no %" PRIu64 " bytes left", request.bytes);
  const uint64_t in_use = atomic_fetch_add(&allocator->in_use_bytes, request.bytes) + request.bytes;
  uint64_t peak = atomic_load(&allocator->peak_bytes);
  while (peak < in_use && !atomic_compare_exchange_weak(&allocator->peak_bytes, &peak, in_use)) {}
  atomic_fetch_add(&allocator->in_use_blocks, 1);
  atomic_fetch_add(&allocator->total_allocs, 1);
  return *out = (uint64_t)(uintptr_t)memory, NULL;
}

static const EpStatus *memory_free(EpAllocator *allocator, uint64_t address, uint64_t bytes) {
  free((void *)(uintptr_t)address);
  atomic_fetch_sub(&allocator->in_use_bytes, bytes);
  atomic_fetch_sub(&allocator->in_use_blocks, 1);
  return NULL;
}

static const EpStatus *memory_stats(EpAllocator *allocator, EpMemoryStats *out) {
  const EpMemoryStats stats = {sizeof stats, allocator->in_use_bytes, allocator->in_use_blocks,
                               allocator->in_use_bytes, allocator->peak_bytes, allocator->total_allocs};
  return ep_write_struct(out, &stats, sizeof stats), NULL;
}

static const EpAllocatorTable ALLOCATOR = {
  sizeof ALLOCATOR, allocator_destroy, memory_alloc, memory_free, NULL, memory_stats, NULL};

/* ---------------------------------------------------------------------------------------------- Device */
struct EpDevice { char unused; };
static void device_destroy(EpDevice *device) { free(device); }
static const EpStatus *device_info(EpDevice *device, EpDeviceInfo *out) {
  static const EpStr SPACES[] = {EP_STR("host")};
  (void)device;
  EpDeviceInfo info = {.struct_size = sizeof info, .kind = EP_STR("cpu"), .name = EP_STR("host CPU"),
                       .flags = EP_DEVICE_INLINE, .memory_space = EP_STR("host"), .reads = SPACES, .num_reads = 1,
                       .writes = SPACES, .num_writes = 1};
  /* The identity that all providers for the CPU use, which makes their devices one logical device. */
  memcpy(info.uuid.bytes, "ep:host-cpu", sizeof "ep:host-cpu");
  return ep_write_struct(out, &info, sizeof info), NULL;
}

static const EpStatus *stream_create(EpDevice *device, const EpStreamOptions *raw, EpStream **out) {
  EpStreamOptions options;
  const EpStatus *error = receive(&options, sizeof options, raw, "EpStreamOptions");
  (void)device;
  if (error == NULL && options.flags != 0) error = fail(EP_CODE_UNSUPPORTED, "stream flags are not known here");
  return error != NULL ? error : make(sizeof(EpStream), out);
}

static const EpStatus *event_create(EpDevice *device, uint64_t flags, EpEvent **out) {
  (void)device;
  return flags != 0 ? fail(EP_CODE_UNSUPPORTED, "event flags are not known here") : make(sizeof(EpEvent), out);
}

static const EpStatus *allocator_open(EpDevice *device, uint32_t kind, EpAllocator **out) {
  (void)device;
  if (kind == EP_MEMORY_DEVICE) return make(sizeof(EpAllocator), out);
  return fail(EP_CODE_UNSUPPORTED, "memory of kind %" PRIu32 " does not exist here; use device memory", kind);
}

static const EpDeviceTable DEVICE = {
  sizeof DEVICE, device_destroy, device_info, stream_create, event_create, allocator_open, NULL};

/* -------------------------------------------------------------------------------------------- Provider */
struct EpProvider { const EpHostServices *host; };
static const EpStatus *provider_create(const EpHostServices *host, const EpProviderOptions *raw, EpProvider **out) {
  EpProviderOptions o;
  const EpStatus *error = receive(&o, sizeof o, raw, "EpProviderOptions");
  if (error == NULL && o.num_options != 0)
    error = fail(EP_CODE_INVALID_ARGUMENT, "unknown option `%.*s`: there are none", (int)o.options->key.len,
                 o.options->key.ptr);
  if (error == NULL) error = make(sizeof(EpProvider), out);
  if (error == NULL) (*out)->host = host;
  return error;
}

static void provider_destroy(EpProvider *provider) { free(provider); }
static const EpStatus *device_count(EpProvider *provider, uint32_t *out) { return (void)provider, *out = 1, NULL; }
static const EpStatus *device_open(EpProvider *provider, uint32_t index, EpDevice **out) {
  (void)provider;
  if (index == 0) return make(sizeof(EpDevice), out);
  return fail(EP_CODE_NOT_FOUND, "device %" PRIu32 ": there is one device, 0", index);
}

/* ------------------------------------------------------------------------------ Factories and primitives */
/* A factory: a kernel and the requests that it takes. */
struct EpFactoryContext {
  const char *name;
  const EpOpSchema *(*schema)(void);
  const uint32_t *selectors; /* A row, or null where the op has none. */
  EpPrimitiveTable table;
  const EpExprNode *predicate;
  uint64_t num_predicate;
  int32_t priority;
};

/* A primitive is its descriptor: the op's struct. */
static const EpStatus *primitive_create(EpFactoryContext *k, EpDevice *device, const void *raw, EpPrimitive **out) {
  const EpOpSchema *schema = k->schema();
  const EpStatus *error = make(schema->desc_size, out);
  if (error != NULL) return error;
  if ((error = receive(*out, schema->desc_size, raw, "the descriptor")) == NULL && !ep_reserved_is_zero(schema, *out))
    error = fail(EP_CODE_UNSUPPORTED, "reserved bytes of the descriptor are set, which mean nothing yet; leave them 0");
  return (void)device, error != NULL ? free(*out), error : NULL;
}

static void primitive_destroy(EpPrimitive *primitive) { free(primitive); }
#define TABLE(launch) {sizeof(EpPrimitiveTable), primitive_destroy, launch, NULL, NULL}
/* Registers a kernel and its op. `dtypes` is a row, read during the call; null where the op has none. */
static const EpStatus *add_kernel(const EpRegistrar *registrar, EpFactoryContext *k, const uint32_t *dtypes) {
  const EpOpSchema *schema = k->schema();
  const EpFactoryInfo factory = {
    .struct_size = sizeof factory, .op = schema->name, .name = ep_str(k->name), .schema_version = schema->version,
    .priority = k->priority, .device_kind = EP_STR("cpu"), .selectors = k->selectors,
    .num_selector_rows = k->selectors != NULL, .dtypes = dtypes, .num_dtype_rows = dtypes != NULL,
    .predicate = k->predicate, .num_predicate = k->num_predicate, .context = k, .primitive = &k->table,
    .create = primitive_create};
  const EpStatus *error = registrar->add_schema(registrar->context, schema);
  return error != NULL ? error : registrar->add_factory(registrar->context, &factory);
}

/* Copies the arguments of a launch; refuses flags, which have no meaning yet. They follow `struct_size` in every op. */
static const EpStatus *receive_args(void *out, uint64_t size, const void *in) {
  const EpStatus *error = receive(out, size, in, "the arguments");
  const int flags = error == NULL && ((const uint64_t *)out)[1] != 0;
  return flags ? fail(EP_CODE_UNSUPPORTED, "launch flags are not known here; set none") : error;
}

/* Refuses a count below 0, and an address that `count` elements of `size` bytes cannot have. */
static const EpStatus *check_operand(const char *name, uint64_t address, int64_t count, uint64_t size) {
  if (count == 0 || (count > 0 && address != 0 && address % size == 0)) return NULL;
  return fail(EP_CODE_INVALID_ARGUMENT, "`%s` has %" PRId64 " elements at %#" PRIx64 "; the count must not be negative "
              "and the address a multiple of %" PRIu64, name, count, address, size);
}

/* `ep_plugin_query`: a host that speaks a newer version decides for itself whether this one will do. */
static const EpStatus *answer_query(const EpPlugin *plugin, uint32_t major, uint32_t minor, const EpPlugin **out) {
  const uint64_t own = (uint64_t)EP_ABI_MAJOR << 32 | EP_ABI_MINOR, host = (uint64_t)major << 32 | minor;
  if (out == NULL) return fail(EP_CODE_INVALID_ARGUMENT, "ep_plugin_query: the out-pointer is null");
  if (host < own)
    return fail(EP_CODE_ABI_MISMATCH, "built for ABI %" PRIu32 ".%" PRIu32 ", and the host speaks %" PRIu32 ".%" PRIu32
                "; update the host, or use an older build of the provider", EP_ABI_MAJOR, EP_ABI_MINOR, major, minor);
  return *out = plugin, NULL;
}
