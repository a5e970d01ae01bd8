/*
 * Launches with known results, for the conformance kit: what acme.c computes, found in another way. The kit asks for
 * `ep.conformance`, launches each case on guarded memory, and compares.
 */

typedef struct { const char *name; int64_t kernel, images, height, width, in, out; } Conv2dCase;
/* Both kernels, windows of every size, sides that are no multiple of anything, and nothing at all. */
static const Conv2dCase CONV2D[] = {
  {"one pixel", 1, 1, 1, 1, 1, 1},      {"pointwise", 1, 2, 5, 7, 3, 4},  {"pointwise, many channels", 1, 1, 3, 3, 33, 17},
  {"window of two", 2, 1, 5, 4, 2, 3},  {"window of three", 3, 2, 7, 6, 3, 2}, {"window of five", 5, 1, 9, 5, 1, 3},
  {"window of seven", 7, 1, 7, 11, 2, 1}, {"no images", 3, 0, 4, 4, 2, 2}, {"no channels", 3, 1, 4, 4, 0, 2},
  {"window larger than the image", 5, 1, 3, 8, 2, 2}, {"shapes that do not fit", 2, 1, 4, 4, 1, -1}};
enum { NUM_CONV2D = sizeof CONV2D / sizeof *CONV2D, NUM_CASTS = 4 };

/* Values for Fill: exact ones, ties, both ends, and what is no number. */
static const double FILLS[] = {0.0, -0.0, 1.0, -2.75, 1.0625, 240.0, 1e9, -1e-9, 0.00048828125, NAN, INFINITY};
enum { NUM_FILLS = sizeof FILLS / sizeof *FILLS };

/* A case and all that it points to. */
typedef struct {
  union { Conv2dDesc conv2d; EpFillDesc fill; EpCastDesc cast; } desc;
  union { Conv2dArgs conv2d; EpFillArgs fill; EpCastArgs cast; } args;
  int64_t dims[3][4];
  EpCaseOperand operands[3];
  void *memory[3];
} Known;

static void known_free(Known *known) {
  if (known == NULL) return;
  for (int i = 0; i < 3; ++i) free(known->memory[i]);
  free(known);
}

/* Memory of operand `i`; null where there is none left. */
static void *known_operand(Known *known, int i, uint64_t bytes, int written) {
  known->memory[i] = calloc(1, bytes == 0 ? 1 : bytes);
  known->operands[i] = (EpCaseOperand){written ? NULL : known->memory[i], written ? known->memory[i] : NULL, bytes};
  return known->memory[i];
}

/* From -2 to 2, in steps of 1/64. */
static float draw(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (float)((int64_t)(*state >> 40) % 257 - 128) / 64;
}

/* Each weight is added where it contributes; the kernels collect what contributes to a result. */
static int known_conv2d(Known *known, const Conv2dCase *c, uint64_t seed, EpConformanceCase *out) {
  const int64_t k = c->kernel, o = c->out < 0 ? 1 : c->out;
  const int64_t h = c->height < k ? 0 : c->height - k + 1, w = c->width < k ? 0 : c->width - k + 1;
  const int64_t src[4] = {c->images, c->height, c->width, c->in}, weight[4] = {k, k, c->in, o};
  /* A negative number of channels stands for a result that is one row too low. */
  const int64_t dst[4] = {c->images, c->out < 0 ? h - 1 : h, w, o};
  const int64_t counts[3] = {src[0] * src[1] * src[2] * src[3], k * k * c->in * o, dst[0] * dst[1] * dst[2] * dst[3]};
  memcpy(known->dims[0], src, sizeof src), memcpy(known->dims[1], weight, sizeof weight);
  memcpy(known->dims[2], dst, sizeof dst);
  known->desc.conv2d = (Conv2dDesc){sizeof(Conv2dDesc), 0, EP_DTYPE_F32, 0, (double)k};
  known->args.conv2d = (Conv2dArgs){.struct_size = sizeof(Conv2dArgs), .num_dims = 4, .src_dims = known->dims[0],
                                    .weight_dims = known->dims[1], .dst_dims = known->dims[2]};
  float *x = known_operand(known, 0, (uint64_t)counts[0] * 4, 0), *f = known_operand(known, 1, (uint64_t)counts[1] * 4, 0);
  float *y = known_operand(known, 2, (uint64_t)counts[2] * 4, 1);
  double *sums = calloc(counts[2] == 0 ? 1 : (size_t)counts[2], sizeof *sums);
  if (x == NULL || f == NULL || y == NULL || sums == NULL) return free(sums), 0;
  for (int64_t i = 0; i < counts[0]; ++i) x[i] = draw(&seed);
  for (int64_t i = 0; i < counts[1]; ++i) f[i] = draw(&seed);
  for (int64_t at = 0; c->out >= 0 && at < counts[1]; ++at) {
    const int64_t to = at % o, from = at / o % c->in, j = at / o / c->in % k, i = at / o / c->in / k;
    for (int64_t p = 0; p < c->images * h * w; ++p) {
      const int64_t n = p / (h * w), row = p / w % h + i, column = p % w + j;
      sums[p * o + to] += (double)f[at] * (double)x[((n * c->height + row) * c->width + column) * c->in + from];
    }
  }
  for (int64_t i = 0; i < counts[2]; ++i) y[i] = (float)sums[i];
  free(sums);
  /* Sums of products of numbers with few digits are exact, so nothing depends on their order. */
  out->refusal = c->out < 0 ? EP_CODE_INVALID_ARGUMENT : 0;
  out->num_operands = 3;
  return 1;
}

/* What a code means, from its definition; the kernel takes it apart into bits. */
static double fp8_meaning(int code) {
  const int low = code % 128;
  if (code == 128) return NAN;
  const double size = low < 8 ? low * pow(2, -10) : (8 + low % 8) * pow(2, low / 8 - 11);
  return code < 128 ? size : -size;
}

/* The code of the number nearest to `x`, of two that are as near the even one: all are tried. */
static uint8_t fp8_nearest(double x) {
  int best = 0;
  if (isnan(x)) return 128;
  x = x > 240 ? 240 : x < -240 ? -240 : x;
  for (int code = 1; code < 256; ++code) {
    const double gain = code == 128 ? -1 : fabs(x - fp8_meaning(best)) - fabs(x - fp8_meaning(code));
    if (gain > 0 || (gain == 0 && code % 2 == 0)) best = code;
  }
  return (uint8_t)best;
}

static int known_fill(Known *known, uint64_t index, uint32_t fp8, EpConformanceCase *out) {
  const uint64_t count = 1 + 37 * index;
  known->desc.fill = (EpFillDesc){.struct_size = sizeof(EpFillDesc), .data = fp8};
  known->args.fill = (EpFillArgs){.struct_size = sizeof(EpFillArgs), .count = (int64_t)count, .value = ep_scalar_f64(FILLS[index])};
  uint8_t *y = known_operand(known, 0, count, 1);
  if (y != NULL) memset(y, fp8_nearest(FILLS[index]), count);
  out->num_operands = 1;
  return y != NULL;
}

/* To the dtype and from it; random numbers, and numbers between two codes, where rounding decides. */
static int known_cast(Known *known, uint64_t index, uint64_t seed, uint32_t fp8, EpConformanceCase *out) {
  const int from = index == 0;
  const uint64_t count = 256;
  known->desc.cast = (EpCastDesc){.struct_size = sizeof(EpCastDesc), .src = from ? fp8 : EP_DTYPE_F32,
                                  .dst = from ? EP_DTYPE_F32 : fp8};
  known->args.cast = (EpCastArgs){.struct_size = sizeof(EpCastArgs), .count = (int64_t)count};
  uint8_t *codes = known_operand(known, from ? 0 : 1, count, !from);
  float *numbers = known_operand(known, from ? 1 : 0, count * sizeof(float), from);
  if (codes == NULL || numbers == NULL) return 0;
  for (int i = 0; i < (int)count; ++i) {
    const double here = fp8_meaning(i), next = fp8_meaning(i % 128 == 127 ? i : i + 1);
    if (from) codes[i] = (uint8_t)i, numbers[i] = (float)here;
    else if (index == 1) numbers[i] = (float)(isnan(here) || isnan(next) ? here : (here + next) / 2);
    else numbers[i] = index == 2 ? (float)here : draw(&seed) * (float)(i + 1);
    if (!from) codes[i] = fp8_nearest((double)numbers[i]);
  }
  out->num_operands = 2;
  return 1;
}

static const EpStatus *case_count(EpProvider *provider, EpStr op, uint64_t *out) {
  (void)provider;
  *out = ep_str_equals(op, "acme.conv2d") ? NUM_CONV2D : ep_str_equals(op, "fill") ? NUM_FILLS
         : ep_str_equals(op, "cast") ? NUM_CASTS : 0;
  return NULL;
}

static const EpStatus *case_get(EpProvider *provider, EpStr op, uint64_t index, uint64_t seed, EpConformanceCase *raw) {
  static const char *const CASTS[NUM_CASTS] = {"every code", "ties", "every number", "random numbers"};
  uint64_t count = 0;
  uint32_t fp8 = EP_DTYPE_INVALID;
  EpConformanceCase out = {.struct_size = sizeof out};
  const EpStatus *error = case_count(provider, op, &count);
  if (error == NULL && index >= count) error = fail(EP_CODE_NOT_FOUND, "case %" PRIu64 ": there are %" PRIu64, index, count);
  if (error == NULL) error = intern_fp8(provider, &fp8);
  if (error != NULL) return error;
  Known *known = calloc(1, sizeof *known);
  int made = 0;
  if (known != NULL && ep_str_equals(op, "acme.conv2d"))
    out.name = ep_str(CONV2D[index].name), made = known_conv2d(known, &CONV2D[index], seed, &out);
  else if (known != NULL && ep_str_equals(op, "fill"))
    out.name = ep_str("value"), made = known_fill(known, index, fp8, &out);
  else if (known != NULL)
    out.name = ep_str(CASTS[index]), made = known_cast(known, index, seed, fp8, &out);
  if (!made) return known_free(known), fail(EP_CODE_OUT_OF_MEMORY, "no memory for a case");
  out.desc = &known->desc, out.args = &known->args, out.operands = known->operands, out.owner = known;
  return ep_write_struct(raw, &out, sizeof out), NULL;
}

static void case_release(EpProvider *provider, const EpConformanceCase *got) {
  (void)provider;
  known_free(got->owner);
}

static const EpStatus *get_interface(EpProvider *provider, EpStr name, uint32_t version, const EpInterface **out) {
  static const EpConformanceInterface CASES = {
    sizeof CASES, EP_INFO(EpConformanceInterface), case_count, case_get, case_release};
  const int known = ep_str_equals(name, EP_CONFORMANCE_INTERFACE) && version == 1;
  (void)provider;
  *out = known ? (const EpInterface *)(const void *)&CASES : NULL;
  return NULL;
}
