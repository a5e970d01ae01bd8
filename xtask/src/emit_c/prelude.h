#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
#define EP_STATIC_ASSERT(condition, text) static_assert(condition, text)
#else
#define EP_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** Marks the entry point, so that it is exported under `-fvisibility=hidden` too. */
#if defined(_WIN32)
#define EP_EXPORT __declspec(dllexport)
#else
#define EP_EXPORT __attribute__((visibility("default")))
#endif

#if defined(__GNUC__)
#define EP_UNUSED_ __attribute__((unused))
#else
#define EP_UNUSED_
#endif

EP_STATIC_ASSERT(sizeof(void *) == 8, "the contract is defined for 64-bit targets");

/** Whether the struct behind `pointer`, made by the other side, is long enough to have `field`. */
#define EP_HAS_FIELD(type, pointer, field) \
  ((pointer)->struct_size >= offsetof(type, field) + sizeof(((const type *)0)->field))

/** "No field" where an index is asked for. */
#define EP_NO_INDEX UINT32_MAX
