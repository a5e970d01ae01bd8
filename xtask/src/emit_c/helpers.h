/** A view of terminated text, or of nothing when `text` is NULL; valid as long as `text`. */
static inline EpStr ep_str(const char *text) {
  EpStr s;
  s.ptr = text;
  s.len = text != NULL ? (uint64_t)strlen(text) : 0;
  return s;
}

/** Whether `s` is the terminated `text`. */
static inline int ep_str_equals(EpStr s, const char *text) {
  const size_t len = strlen(text);
  return s.len == len && (len == 0 || memcmp(s.ptr, text, len) == 0);
}

/** No value: the receiver's default. */
static inline EpScalar ep_scalar_none(void) {
  EpScalar s;
  memset(&s, 0, sizeof s);
  return s;
}

/** An integer. */
static inline EpScalar ep_scalar_i64(int64_t value) {
  EpScalar s = ep_scalar_none();
  s.kind = EP_SCALAR_I64;
  memcpy(&s.re, &value, sizeof value);
  return s;
}

/** A float. */
static inline EpScalar ep_scalar_f64(double value) {
  EpScalar s = ep_scalar_none();
  s.kind = EP_SCALAR_F64;
  memcpy(&s.re, &value, sizeof value);
  return s;
}

/** The value as a float: the real part of a complex one, 0 for none and for unknown kinds. */
static inline double ep_scalar_as_f64(EpScalar s) {
  int64_t i;
  uint64_t u;
  double f;
  memcpy(&i, &s.re, sizeof i);
  memcpy(&u, &s.re, sizeof u);
  memcpy(&f, &s.re, sizeof f);
  switch (s.kind) {
    case EP_SCALAR_BOOL:
    case EP_SCALAR_U64:
      return (double)u;
    case EP_SCALAR_I64:
      return (double)i;
    case EP_SCALAR_F64:
    case EP_SCALAR_COMPLEX:
      return f;
    default:
      return 0.0;
  }
}

/**
 * Copies the growable struct `in`, of whatever version, into `out`, whose type here has `size` bytes. Fields
 * that an older sender lacks become zero, which means the former behaviour. Returns 0, or
 * EP_CODE_ABI_MISMATCH for a `struct_size` that no version has, or EP_CODE_UNSUPPORTED when a newer sender set a
 * field that this version does not know. `out->struct_size` becomes `size`.
 */
static inline int32_t ep_read_struct(void *out, uint64_t size, const void *in) {
  const unsigned char *bytes = (const unsigned char *)in;
  uint64_t given, i;
  if (in == NULL) return EP_CODE_ABI_MISMATCH;
  memcpy(&given, in, sizeof given);
  if (given < 8 || given % 8 != 0 || given > (UINT64_C(1) << 20)) return EP_CODE_ABI_MISMATCH;
  for (i = size; i < given; ++i) {
    if (bytes[i] != 0) return EP_CODE_UNSUPPORTED;
  }
  memset(out, 0, (size_t)size);
  memcpy(out, in, (size_t)(given < size ? given : size));
  memcpy(out, &size, sizeof size);
  return 0;
}

/**
 * Fills the growable struct `out` of the other side, which has room for its `struct_size` bytes, from `value`,
 * whose type here has `size` bytes. `out->struct_size` stays; what this version does not know becomes zero.
 */
static inline void ep_write_struct(void *out, const void *value, uint64_t size) {
  uint64_t room;
  memcpy(&room, out, sizeof room);
  if (room <= sizeof room) return;
  memset((unsigned char *)out + sizeof room, 0, (size_t)(room - sizeof room));
  if (size > room) size = room;
  if (size > sizeof room) {
    memcpy((unsigned char *)out + sizeof room, (const unsigned char *)value + sizeof room,
           (size_t)(size - sizeof room));
  }
}

/**
 * Whether all bytes of the descriptor `desc`, as `ep_read_struct` copies it, that belong to no field of its schema are
 * zero. Where they are not, refuse it with EP_CODE_UNSUPPORTED: a newer host may want something by them.
 */
static inline int ep_reserved_is_zero(const EpOpSchema *schema, const void *desc) {
  const unsigned char *bytes = (const unsigned char *)desc;
  uint64_t at, i;
  /* Behind `struct_size` and `alignment`. */
  for (at = 16; at < schema->desc_size; ++at) {
    int ok = bytes[at] == 0;
    for (i = 0; i < schema->num_desc_fields && !ok; ++i) {
      const EpField *field = &schema->desc_fields[i];
      ok = at >= field->offset && at < (uint64_t)field->offset + field->size;
    }
    if (!ok) return 0;
  }
  return 1;
}

/** Releases a status that another function has returned, once; NULL, which means success, is fine. */
static inline void ep_status_release(const EpStatus *status) {
  if (status != NULL && status->release != NULL) status->release(status);
}

/** The `release` of a status that is static. */
static inline void ep_status_keep(const EpStatus *status) { (void)status; }
