//! Instances, what they tell of themselves, and what they register (rules 2, 6, 7, 8, 10 and 12).

use super::raw::{Host, Instance, OpenDevice, Subject};
use super::{checked, refused, text};
use crate::verdict::{Verdict, wrong};
use ep_core::abi::*;
use ep_core::{Code, Error, Result};
use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

const NO_DEVICE: &str = "there is no device to open here";

pub(super) fn create_and_destroy(subject: &Subject) -> Result<Verdict> {
    for _ in 0..16 {
        let instance = subject.instance()?;
        if let Some(device) = instance.open(0)? {
            device.with_stream(|_| Ok(()))?;
        }
        instance.manners()?;
    }
    Ok(Verdict::Pass)
}

pub(super) fn several_instances(subject: &Subject) -> Result<Verdict> {
    let mut all = (0..3).map(|_| subject.instance()).collect::<Result<Vec<_>>>()?;
    let count = all[0].device_count();
    // The second ends first, then the first; the third still works.
    drop(all.remove(1));
    drop(all.remove(0));
    let left = all[0].device_count();
    if count.is_ok() != left.is_ok() || count.unwrap_or(0) != left.unwrap_or(0) {
        return wrong("an instance has other devices when two others have been destroyed");
    }
    if let Some(device) = all[0].open(0)? {
        device.with_stream(|_| Ok(()))?;
    }
    Ok(Verdict::Pass)
}

pub(super) fn create_on_threads(subject: &Subject) -> Result<Verdict> {
    let instances = (0..4).map(|_| subject.instance()).collect::<Result<Vec<_>>>()?;
    // Destroyed on other threads than those that made them, all at once.
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let use_and_drop =
            |i: Instance| move || i.open(0).and_then(|d| d.map_or(Ok(()), |d| d.info().map(drop)));
        let threads: Vec<_> = instances.into_iter().map(|i| scope.spawn(use_and_drop(i))).collect();
        let lost = |_| Err(Error::internal("a thread panicked"));
        threads.into_iter().map(|t| t.join().unwrap_or_else(lost)).collect()
    });
    results.into_iter().collect::<Result<()>>()?;
    Ok(Verdict::Pass)
}

pub(super) fn device_count(subject: &Subject) -> Result<Verdict> {
    let instance = subject.instance()?;
    let counts = [instance.device_count(), instance.device_count()];
    match counts {
        [Ok(a), Ok(b)] if a != b => wrong(format!("there were {a} devices and then {b}")),
        [Ok(a), _] if a > 4096 => wrong(format!("{a} devices are not believed")),
        [Err(e), _] if e.code() == Code::Unavailable => Ok(Verdict::Unsupported(e.to_string())),
        [Err(e), _] | [_, Err(e)] => Err(e),
        [Ok(_), Ok(_)] => Ok(Verdict::Pass),
    }
}

pub(super) fn device_out_of_range(subject: &Subject) -> Result<Verdict> {
    let instance = subject.instance()?;
    let count = match instance.device_count() {
        Ok(count) => count,
        Err(e) if e.code() == Code::Unavailable => return Ok(Verdict::Unsupported(e.to_string())),
        Err(e) => return Err(e),
    };
    for index in [count, count.saturating_add(1), u32::MAX] {
        let mut raw = null_mut();
        let codes = [Code::InvalidArgument, Code::NotFound, Code::Unavailable];
        // SAFETY: a live instance and a valid out-pointer.
        let status = unsafe { (instance.tables.provider.device_open)(instance.raw, index, &mut raw) };
        // SAFETY: the status is ours.
        unsafe { refused(&format!("device_open({index}) of {count} devices"), status, &codes) }?;
    }
    Ok(Verdict::Pass)
}

pub(super) fn device_description(subject: &Subject) -> Result<Verdict> {
    let instance = subject.instance()?;
    let mut index = 0;
    while let Some(device) = instance.open(index)? {
        describes(&device)?;
        // Asked again, and opened once more, it is the same. Another instance may count and name its devices in another way.
        let again = instance.open(index)?;
        for other in [Some(&device), again.as_ref()].into_iter().flatten() {
            // What the first answer points to is read when there is a second one.
            let (first, found) = (device.info()?, other.info()?);
            // SAFETY: both devices are open.
            let (first, found) = unsafe { (description(&first)?, description(&found)?) };
            if let Some((was, is)) = first.iter().zip(&found).find(|(was, is)| was != is) {
                return wrong(format!(
                    "device {index} describes itself differently when asked again or opened again: {was}, then {is}"
                ));
            }
        }
        index += 1;
    }
    if index == 0 { Ok(Verdict::Unsupported(NO_DEVICE.to_owned())) } else { Ok(Verdict::Pass) }
}

/// What a device says of itself and what may not change, in words.
///
/// # Safety
/// The device is open.
unsafe fn description(info: &EpDeviceInfo) -> Result<Vec<String>> {
    // SAFETY: texts and lists that live as long as the device.
    unsafe {
        let mut all = vec![
            format!("kind `{}`", string_of(info.kind)),
            format!("name `{}`", string_of(info.name)),
            format!("uuid {:02x?}", info.uuid.bytes),
            format!("flags {:#x}", info.flags),
            format!("memory_space `{}`", string_of(info.memory_space)),
        ];
        for (what, ptr, count) in
            [("reads", info.reads, info.num_reads), ("writes", info.writes, info.num_writes)]
        {
            let spaces: Vec<String> = list(ptr, count, what)?.iter().map(|s| string_of(*s)).collect();
            all.push(format!("{what} {spaces:?}"));
        }
        Ok(all)
    }
}

/// Checks what one device says of itself.
fn describes(device: &OpenDevice<'_>) -> Result<()> {
    let info = device.info()?;
    let unknown = info.flags & !u64::from(EP_DEVICE_INLINE);
    if unknown != 0 {
        return wrong(format!("EpDeviceInfo.flags has bits {unknown:#x}, which have no meaning"));
    }
    // SAFETY: texts and lists that live as long as the device.
    unsafe {
        let space = text("memory_space", info.memory_space)?;
        for (what, s) in [("kind", info.kind), ("name", info.name)] {
            if text(what, s)?.is_empty() {
                return wrong(format!("EpDeviceInfo.{what} is empty"));
            }
        }
        text("pci", info.pci)?;
        let of = |what: &str, ptr, count| {
            let spaces: &[EpStr] = list(ptr, count, what)?;
            spaces.iter().map(|s| text(what, *s)).collect::<Result<Vec<_>>>()
        };
        let (reads, writes) =
            (of("reads", info.reads, info.num_reads)?, of("writes", info.writes, info.num_writes)?);
        if !reads.contains(&space) || !writes.contains(&space) {
            return wrong(format!("it allocates in `{space}`, but reads {reads:?} and writes {writes:?}"));
        }
        let mut names = Vec::new();
        for a in list(info.attributes, info.num_attributes, "attributes")? {
            let name = text("the name of an attribute", a.name)?;
            if name.is_empty() || names.contains(&name) {
                return wrong(format!("an attribute is called `{name}`: empty, or the second of that name"));
            }
            names.push(name);
        }
    }
    Ok(())
}

/// Asks an object for an interface.
type Ask<'a> = &'a dyn Fn(EpStr, u32, *mut *const EpInterface) -> *const EpStatus;

fn absent(what: &str, ask: Ask<'_>) -> Result<()> {
    for (name, version) in [("ep.no-such-interface", 1), ("", 0), ("ep.timing", u32::MAX), ("acme.\u{e9}", 7)]
    {
        // A pointer that only success with an answer may leave.
        let mut out = std::ptr::dangling();
        // SAFETY: the status is ours.
        match unsafe { checked(ask(EpStr::new(name), version, &mut out)) }? {
            Ok(()) if out.is_null() => {}
            Ok(()) => return wrong(format!("{what} claims to have interface `{name}`, version {version}")),
            Err(e) => {
                return wrong(format!(
                    "{what}: an unknown interface is absent, not an error ({:?}: {e})",
                    e.code()
                ));
            }
        }
    }
    Ok(())
}

pub(super) fn unknown_interfaces(subject: &Subject) -> Result<Verdict> {
    let instance = subject.instance()?;
    let t = instance.tables;
    let mut asked = 0;
    if t.provider.has_get_interface {
        asked += 1;
        // SAFETY: a live instance; the text and the out-pointer live during the call.
        absent("the provider", &|n, v, out| unsafe { (t.provider.get_interface)(instance.raw, n, v, out) })?;
    }
    if let Some(device) = instance.open(0)? {
        if t.device.has_get_interface {
            asked += 1;
            // SAFETY: as above, with a live device.
            absent("the device", &|n, v, out| unsafe { (t.device.get_interface)(device.raw, n, v, out) })?;
        }
        if t.stream.has_get_interface {
            asked += 1;
            device.with_stream(|stream| {
                // SAFETY: as above, with a live stream.
                absent("the stream", &|n, v, out| unsafe { (t.stream.get_interface)(stream, n, v, out) })
            })?;
        }
    }
    if asked == 0 {
        return Ok(Verdict::Unsupported("it offers no get_interface".to_owned()));
    }
    Ok(Verdict::Pass)
}

/// The optional interfaces of a provider, and of a device.
const OF_PROVIDER: [(&str, &EpTableInfo); 2] =
    [("ep.warm", &EPWARMINTERFACE_INFO), ("ep.conformance", &EPCONFORMANCEINTERFACE_INFO)];
const OF_DEVICE: [(&str, &EpTableInfo); 4] = [
    ("ep.timing", &EPTIMINGINTERFACE_INFO),
    ("ep.foreign_stream", &EPFOREIGNSTREAMINTERFACE_INFO),
    ("ep.graph", &EPGRAPHINTERFACE_INFO),
    ("ep.prepack", &EPPREPACKINTERFACE_INFO),
];

/// Compares the descriptions of the interfaces that are there with ours, and counts them.
fn described(known: &[(&str, &EpTableInfo)], ask: Ask<'_>) -> Result<usize> {
    let mut found = 0;
    for (name, ours) in known {
        let mut out = null();
        // SAFETY: the status is ours; a non-null answer is a static table of the plugin that begins as EpInterface says.
        unsafe {
            checked(ask(EpStr::new(name), 1, &mut out))??;
            if out.is_null() {
                continue;
            }
            found += 1;
            let info = read_table(out)?.info;
            if info.is_null() || !info.is_aligned() {
                return wrong(format!("interface {name} has no description"));
            }
            if let Some(difference) = compare(ours, &*info)? {
                return wrong(format!("interface {name}: {difference}"));
            }
        }
    }
    Ok(found)
}

pub(super) fn known_interfaces(subject: &Subject) -> Result<Verdict> {
    let instance = subject.instance()?;
    let t = instance.tables;
    let mut found = 0;
    if t.provider.has_get_interface {
        // SAFETY: a live instance; the text and the out-pointer live during the call.
        let ask = |n, v, out| unsafe { (t.provider.get_interface)(instance.raw, n, v, out) };
        found += described(&OF_PROVIDER, &ask)?;
    }
    let device = if t.device.has_get_interface { instance.open(0)? } else { None };
    if let Some(device) = device {
        // SAFETY: as above, with a live device.
        let ask = |n, v, out| unsafe { (t.device.get_interface)(device.raw, n, v, out) };
        found += described(&OF_DEVICE, &ask)?;
    }
    if found == 0 {
        let names = OF_PROVIDER.iter().chain(&OF_DEVICE).map(|(name, _)| *name).collect::<Vec<_>>();
        return Ok(Verdict::Unsupported(format!("it offers none of {}", names.join(", "))));
    }
    Ok(Verdict::Pass)
}

/// A status that another thread releases.
struct Moved(*const EpStatus);
// SAFETY: any thread may release a status (rule 7).
unsafe impl Send for Moved {}

pub(super) fn statuses(subject: &Subject) -> Result<Verdict> {
    let instance = subject.instance()?;
    let fail = |index| {
        let mut raw = null_mut();
        // SAFETY: a live instance and a valid out-pointer; no provider has this device.
        unsafe { (instance.tables.provider.device_open)(instance.raw, index, &mut raw) }
    };
    // Many alive at once, each released once, the first ones last, half of them on another thread.
    // SAFETY: a status is live, and its message with it, until it is released.
    let text = |s: *const EpStatus| unsafe { string_of((*s).message) };
    let (mut all, mut texts) = (Vec::new(), Vec::new());
    for i in 0..64 {
        let status = fail(u32::MAX - i * 12_345_678);
        if status.is_null() {
            return wrong("device_open of a device that does not exist succeeds");
        }
        texts.push(text(status));
        all.push(status);
    }
    if let Some(i) = (0..all.len()).find(|i| text(all[*i]) != texts[*i]) {
        let now = text(all[i]);
        return wrong(format!(
            "the message of a status was `{}`, and became `{now}` with later ones",
            texts[i]
        ));
    }
    let moved: Vec<_> = all.split_off(32).into_iter().map(Moved).collect();
    let other = std::thread::scope(|scope| {
        let release = || {
            // SAFETY: each is ours, and released here once.
            moved.into_iter().rev().try_for_each(|s| unsafe { checked(s.0) }.map(drop))
        };
        scope.spawn(release).join().unwrap_or_else(|_| wrong("a thread panicked"))
    });
    other?;
    // SAFETY: as above.
    all.into_iter().rev().try_for_each(|s| unsafe { checked(s) }.map(drop))?;
    Ok(Verdict::Pass)
}

/// What a provider registers, in words, and when to refuse.
#[derive(Default)]
struct Registrations {
    seen: RefCell<Vec<String>>,
    /// Refuses the one with this number.
    refuse: Option<usize>,
}

/// What the registrar of the test answers when it refuses.
const REFUSAL: &str = "the conformance kit refuses this registration";

impl Registrations {
    fn add(&self, what: String) -> Result<()> {
        let mut seen = self.seen.borrow_mut();
        seen.push(what);
        if Some(seen.len() - 1) == self.refuse {
            return Err(Error::refused(REFUSAL));
        }
        Ok(())
    }

    /// Lets an instance register everything here.
    fn of(&self, instance: &Instance) -> Result<std::result::Result<(), Error>> {
        let registrar = EpRegistrar {
            context: std::ptr::from_ref(self).cast_mut().cast(),
            add_schema: Some(add_schema),
            add_factory: Some(add_factory),
            ..EpRegistrar::EMPTY
        };
        // SAFETY: a live instance; the registrar and its context live during the call.
        unsafe { checked((instance.tables.provider.register_all)(instance.raw, &registrar)) }
    }
}

unsafe extern "C" fn add_schema(context: *mut c_void, schema: *const EpOpSchema) -> *const EpStatus {
    finish(|| {
        // SAFETY: the context is a live `Registrations`; the plugin's schema lives during the call.
        let (all, schema) =
            unsafe { (&*context.cast::<Registrations>(), ep_core::schema::decode_schema(schema)?) };
        all.add(format!("schema {} {}", schema.name, schema.version))
    })
}

unsafe extern "C" fn add_factory(context: *mut c_void, info: *const EpFactoryInfo) -> *const EpStatus {
    finish(|| {
        // SAFETY: as above.
        unsafe {
            let (all, info) = (&*context.cast::<Registrations>(), read_struct(info)?);
            PrimitiveTable::load(info.primitive)?;
            all.add(format!("factory {} of {}", text("name", info.name)?, text("op", info.op)?))
        }
    })
}

pub(super) fn register_twice(subject: &Subject) -> Result<Verdict> {
    let instance = subject.instance()?;
    let (first, second) = (Registrations::default(), Registrations::default());
    first.of(&instance)??;
    second.of(&instance)??;
    let (mut first, mut second) = (first.seen.into_inner(), second.seen.into_inner());
    first.sort();
    second.sort();
    if first != second {
        return wrong(format!("it registered {} things, and {} the second time", first.len(), second.len()));
    }
    Ok(Verdict::Pass)
}

pub(super) fn registration_refused(subject: &Subject) -> Result<Verdict> {
    let instance = subject.instance()?;
    let all = Registrations::default();
    all.of(&instance)??;
    let count = all.seen.into_inner().len();
    if count == 0 {
        return Ok(Verdict::Unsupported("it registers nothing".to_owned()));
    }
    for at in [0, count / 2, count - 1] {
        let refusing = Registrations { refuse: Some(at), ..Registrations::default() };
        match refusing.of(&instance)? {
            Err(e) if e.message().contains(REFUSAL) => {}
            Err(e) => return wrong(format!("the host refused a registration, and register_all says: {e}")),
            Ok(()) => return wrong("the host refused a registration, and register_all succeeded"),
        }
    }
    // It works again where nobody refuses.
    Registrations::default().of(&instance)??;
    // An instance can end before a host has let it register anything.
    drop(Instance::new(subject, Host::new(), &subject.options())??);
    Ok(Verdict::Pass)
}
