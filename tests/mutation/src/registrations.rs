//! Factories and primitives as the host sees them: each call finds its way to the honest function by way of what the
//! registration was made of.

use crate::tables::{current, sdk};
use ep_core::abi::*;
use ep_core::schema::{Schema, core_schema};
use std::ffi::c_void;

/// A factory that is to be registered: its info, which a defect may change, and what makes its primitives.
pub struct Registration {
    /// As the SDK has it, but for what a defect changes. Its lists live at least as long as this.
    pub info: EpFactoryInfo,
    /// Another name than the honest one.
    pub name: Option<String>,
    /// Other rows than the honest ones.
    pub selectors: Option<Vec<u32>>,
    /// As above.
    pub dtypes: Option<Vec<u32>>,
}

/// The honest functions behind a factory.
pub struct Maker {
    /// The op.
    pub op: String,
    /// The name that the factory is registered by.
    pub name: String,
    context: *mut EpFactoryContext,
    create: unsafe extern "C" fn(
        *mut EpFactoryContext,
        *mut EpDevice,
        *const c_void,
        *mut *mut EpPrimitive,
    ) -> *const EpStatus,
    table: PrimitiveTable,
}

/// A primitive that the host holds.
struct Made {
    maker: &'static Maker,
    honest: *mut EpPrimitive,
}

impl Maker {
    /// The op's schema.
    pub fn schema(&self) -> &'static Schema {
        core_schema(&self.op).unwrap_or_else(|| unreachable!("sim registers ops of the core only"))
    }

    /// Makes a primitive as it should be.
    ///
    /// # Safety
    /// As `EpFactoryInfo.create`.
    pub unsafe fn build(
        &self,
        device: *mut EpDevice,
        desc: *const c_void,
        out: *mut *mut EpPrimitive,
    ) -> *const EpStatus {
        // SAFETY: as the caller promises.
        unsafe { (self.create)(self.context, device, desc, out) }
    }

    /// Launches a primitive as it should be.
    ///
    /// # Safety
    /// As `EpPrimitiveTable.launch`, with a primitive that [`Maker::build`] has made.
    pub unsafe fn launch(
        &self,
        primitive: *mut EpPrimitive,
        stream: *mut EpStream,
        args: *const c_void,
    ) -> *const EpStatus {
        // SAFETY: as the caller promises.
        unsafe { (self.table.launch)(primitive, stream, args) }
    }
}

unsafe extern "C" fn create(
    context: *mut EpFactoryContext,
    device: *mut EpDevice,
    desc: *const c_void,
    out: *mut *mut EpPrimitive,
) -> *const EpStatus {
    // SAFETY: the context of a registration is its maker, which lives as long as the process.
    let maker: &'static Maker = unsafe { &*context.cast() };
    let mut honest = std::ptr::null_mut();
    // SAFETY: the host's call, with an out-pointer of ours.
    let status = unsafe { (current().build)(maker, device, desc, &mut honest) };
    if status.is_null() {
        // SAFETY: the host's out-pointer, for a primitive that the SDK has made.
        unsafe { out.write(Box::into_raw(Box::new(Made { maker, honest })).cast()) };
    }
    (current().answer)(status)
}

/// # Safety
/// A primitive that [`create`] has made and nobody has destroyed.
unsafe fn made<'a>(primitive: *mut EpPrimitive) -> &'a Made {
    // SAFETY: as the caller promises.
    unsafe { &*primitive.cast() }
}

/// The SDK's primitive behind one of ours.
///
/// # Safety
/// As [`made`].
pub(crate) unsafe fn honest_primitive(primitive: *mut EpPrimitive) -> *mut EpPrimitive {
    // SAFETY: as the caller promises.
    unsafe { made(primitive) }.honest
}

unsafe extern "C" fn destroy(primitive: *mut EpPrimitive) {
    // SAFETY: the host destroys a primitive of ours once.
    let made = unsafe { Box::from_raw(primitive.cast::<Made>()) };
    // SAFETY: as above, for the SDK's.
    unsafe { (made.maker.table.destroy)(made.honest) };
}

unsafe extern "C" fn launch(
    primitive: *mut EpPrimitive,
    stream: *mut EpStream,
    args: *const c_void,
) -> *const EpStatus {
    // SAFETY: the host's call on a live primitive.
    (current().answer)(unsafe {
        let made = made(primitive);
        (current().launch)(made.maker, made.honest, stream, args)
    })
}

unsafe extern "C" fn workspace_size(
    primitive: *mut EpPrimitive,
    args: *const c_void,
    out: *mut u64,
) -> *const EpStatus {
    // SAFETY: as above.
    (current().answer)(unsafe {
        let made = made(primitive);
        (made.maker.table.workspace_size)(made.honest, args, out)
    })
}

unsafe extern "C" fn describe(primitive: *mut EpPrimitive, out: *mut EpStr) -> *const EpStatus {
    // SAFETY: as above.
    (current().answer)(unsafe {
        let made = made(primitive);
        (made.maker.table.describe)(made.honest, out)
    })
}

static PRIMITIVE: EpPrimitiveTable = EpPrimitiveTable {
    destroy: Some(destroy),
    launch: Some(launch),
    workspace_size: Some(workspace_size),
    describe: Some(describe),
    ..EpPrimitiveTable::EMPTY
};

/// Has a provider register everything with a registrar, by way of makers.
///
/// # Safety
/// As `EpProviderTable.register_all`.
pub unsafe extern "C" fn register_all(
    provider: *mut EpProvider,
    registrar: *const EpRegistrar,
) -> *const EpStatus {
    let Some(register) = sdk().provider.register_all else { unreachable!("the SDK has it") };
    // SAFETY: the host's registrar.
    let theirs = match unsafe { RegistrarTable::load(registrar) } {
        Ok(theirs) => theirs,
        Err(e) => return report(e),
    };
    let ours = EpRegistrar {
        context: (&raw const theirs).cast_mut().cast(),
        add_schema: Some(add_schema),
        add_factory: Some(add_factory),
        ..EpRegistrar::EMPTY
    };
    // SAFETY: the host's call, with a registrar that lives during it.
    unsafe { register(provider, &ours) }
}

unsafe extern "C" fn add_schema(context: *mut c_void, schema: *const EpOpSchema) -> *const EpStatus {
    // SAFETY: the context is the host's registrar, which lives during `register_all`.
    unsafe {
        let theirs = &*context.cast::<RegistrarTable>();
        (theirs.add_schema)(theirs.context, schema)
    }
}

unsafe extern "C" fn add_factory(context: *mut c_void, info: *const EpFactoryInfo) -> *const EpStatus {
    // SAFETY: as above; the SDK's info of this version lives during the call.
    let (theirs, info) = unsafe { (&*context.cast::<RegistrarTable>(), *info) };
    let whole = Registration { info, name: None, selectors: None, dtypes: None };
    for registration in (current().registrations)(whole) {
        // SAFETY: the texts and the table are those of the SDK's info.
        let maker = unsafe {
            Maker {
                op: string_of(info.op),
                name: registration.name.clone().unwrap_or_else(|| string_of(info.name)),
                context: info.context,
                create: info.create.unwrap_or_else(|| unreachable!("the SDK has it")),
                table: match PrimitiveTable::load(info.primitive) {
                    Ok(table) => table,
                    Err(e) => return report(e),
                },
            }
        };
        // As long as an instance, of which a test process has a few.
        let maker: &'static Maker = Box::leak(Box::new(maker));
        let mut info = EpFactoryInfo {
            name: EpStr::new(&maker.name),
            context: std::ptr::from_ref(maker).cast_mut().cast(),
            create: Some(create),
            primitive: &PRIMITIVE,
            ..registration.info
        };
        if let Some(rows) = &registration.selectors {
            info.selectors = rows.as_ptr();
        }
        if let Some(rows) = &registration.dtypes {
            info.dtypes = rows.as_ptr();
        }
        // SAFETY: the host's function, with an info that lives during the call.
        let status = unsafe { (theirs.add_factory)(theirs.context, &info) };
        if !status.is_null() {
            return status;
        }
    }
    std::ptr::null()
}
