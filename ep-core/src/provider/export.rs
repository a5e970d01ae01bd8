//! The entry point.

use super::Provider;
use super::table::{Tables, create_provider};
use crate::Error;
use crate::abi::{ABI_MAJOR, ABI_MINOR, EP_PLUGIN_FORK_SAFE, EpPlugin, EpStatus, INFOS, finish, text};

struct Plugin<P>(std::marker::PhantomData<P>);

impl<P: Provider> Plugin<P> {
    const PLUGIN: &'static EpPlugin = &EpPlugin {
        abi_major: ABI_MAJOR,
        abi_minor: ABI_MINOR,
        name: text(P::NAME),
        version: text(P::VERSION),
        vendor: text(P::VENDOR),
        flags: if P::FORK_SAFE { EP_PLUGIN_FORK_SAFE as u64 } else { 0 },
        infos: INFOS.as_ptr(),
        num_infos: INFOS.len() as u64,
        provider: Tables::<P>::PROVIDER,
        device: Tables::<P>::DEVICE,
        stream: Tables::<P>::STREAM,
        event: Tables::<P>::EVENT,
        allocator: Tables::<P>::ALLOCATOR,
        create_provider: Some(create_provider::<P>),
        ..EpPlugin::EMPTY
    };
}

/// The query function of provider `P` (rule 2): pure, and callable any number of times by any number of hosts.
/// [`crate::export_provider!`] exports it; a host that links the provider statically hands it over as is.
///
/// # Safety
/// `out` is null or valid for a write.
pub unsafe extern "C" fn query<P: Provider>(
    host_major: u32,
    host_minor: u32,
    out: *mut *const EpPlugin,
) -> *const EpStatus {
    finish(|| {
        if out.is_null() {
            return Err(Error::invalid("ep_plugin_query: the out-pointer is null"));
        }
        if (host_major, host_minor) < (ABI_MAJOR, ABI_MINOR) {
            return Err(Error::abi(format!(
                "provider {} {} speaks ABI {ABI_MAJOR}.{ABI_MINOR}, which is newer than the host's \
                 {host_major}.{host_minor}; update the host or use an older build of the provider",
                P::NAME,
                P::VERSION
            )));
        }
        // SAFETY: not null; valid as the caller promises.
        unsafe { out.write(Plugin::<P>::PLUGIN) };
        Ok(())
    })
}
