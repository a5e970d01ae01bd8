/**
 * The one symbol that a plugin exports.
 *
 * The host passes the newest version that it speaks. The plugin sets `*out` to the best version that it has at
 * or below that one and returns NULL; if it has none, it returns a status (EP_CODE_ABI_MISMATCH) and leaves
 * `*out` alone. `*out` points to static data.
 *
 * Pure: it starts no thread, opens no device and keeps no state. It may be called often, by several hosts in one
 * process, and on several threads at once. State begins in `EpPlugin.create_provider`.
 */
EP_EXPORT const EpStatus *ep_plugin_query(uint32_t host_major, uint32_t host_minor, const EpPlugin **out);
