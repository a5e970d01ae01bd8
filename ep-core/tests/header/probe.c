/* What ep-core/tests/header.rs loads: functions that use the header, for C and C++. */
#include "ep_plugin.h"
#include "ep_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

EP_EXPORT const EpTableInfo *probe_infos(uint64_t *count) { return ep_abi_infos(count); }

EP_EXPORT const EpTableInfo *probe_device_info(void) { return EP_INFO(EpDeviceTable); }

EP_EXPORT const EpOpSchema *probe_schema(uint64_t index, uint64_t *count) {
  return ep_core_schema(index, count);
}

EP_EXPORT int32_t probe_read(EpCopy *out, const void *in) { return ep_read_struct(out, sizeof *out, in); }

EP_EXPORT void probe_write(void *out, const EpCopy *value) { ep_write_struct(out, value, sizeof *value); }

EP_EXPORT int probe_has_bytes(const EpCopy *copy) { return EP_HAS_FIELD(EpCopy, copy, bytes); }

EP_EXPORT EpScalar probe_scalar(uint32_t kind, int64_t i, double f) {
  return kind == EP_SCALAR_I64 ? ep_scalar_i64(i) : kind == EP_SCALAR_F64 ? ep_scalar_f64(f) : ep_scalar_none();
}

EP_EXPORT double probe_as_f64(EpScalar s) { return ep_scalar_as_f64(s); }

EP_EXPORT EpStr probe_str(const char *text) { return ep_str(text); }

EP_EXPORT int probe_str_equals(EpStr s, const char *text) { return ep_str_equals(s, text); }

EP_EXPORT const EpExprNode *probe_predicate(uint64_t *count) {
  static const EpExprNode nodes[] = {
    EP_NODE_FACT(EP_EXPR_LIMIT, "cols"), EP_NODE_I64(-1024), EP_NODE_OP(EP_EXPR_LE),
    EP_NODE_FACT(EP_EXPR_DEVICE, "isa"), EP_NODE_TEXT("avx2"), EP_NODE_TEXT("avx512"), EP_NODE_IN(2),
    EP_NODE_OP(EP_EXPR_AND)};
  *count = sizeof nodes / sizeof nodes[0];
  return nodes;
}

EP_EXPORT const EpStatus *probe_status(void) {
  EP_STATIC_STATUS(FULL, EP_CODE_OUT_OF_MEMORY, "no \"room\"; free some");
  return &FULL;
}

static int released;
static void count_release(const EpStatus *status) { released += status->code; }

EP_EXPORT int probe_release(void) {
  EP_STATIC_STATUS(KEPT, EP_CODE_INTERNAL, "static");
  EpStatus none = KEPT, counted = KEPT;
  none.release = NULL;
  counted.release = count_release;
  counted.code = 5;
  released = 0;
  ep_status_release(NULL);
  ep_status_release(&KEPT);
  ep_status_release(&none);
  ep_status_release(&counted);
  return released;
}

EP_EXPORT int probe_reserved(uint64_t op, const void *desc) {
  uint64_t count;
  return ep_reserved_is_zero(ep_core_schema(op, &count), desc);
}

#ifndef __cplusplus
/* The frame that the header's introduction shows. */
static const EpPlugin PLUGIN = {
  .struct_size = sizeof(EpPlugin), .abi_major = EP_ABI_MAJOR, .abi_minor = EP_ABI_MINOR,
  .name = EP_STR("probe"), .infos = EP_ABI_INFOS, .num_infos = EP_ABI_NUM_INFOS};

EP_EXPORT const EpStatus *ep_plugin_query(uint32_t major, uint32_t minor, const EpPlugin **out) {
  EP_STATIC_STATUS(OTHER_ABI, EP_CODE_ABI_MISMATCH, "probe needs another host");
  if (major != EP_ABI_MAJOR || minor != EP_ABI_MINOR) return &OTHER_ABI;
  *out = &PLUGIN;
  return NULL;
}
#endif

#ifdef __cplusplus
}
#endif
