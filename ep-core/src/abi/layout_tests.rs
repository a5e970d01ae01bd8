use super::*;
use crate::abi::INFOS;

/// A version of a small contract: `Copy` by value, by pointer and as a parameter.
macro_rules! version {
    ($name:ident { $($field:ident: $ty:ty),* } ($($param:ident: $param_ty:ty),*)) => {
        mod $name {
            #![allow(dead_code, reason = "only the layouts are read")]
            use abi_stable::StableAbi;

            #[repr(C)]
            #[derive(StableAbi)]
            pub struct Copy {
                $($field: $ty,)*
            }

            #[repr(C)]
            #[derive(StableAbi)]
            pub struct Stream {
                run: Option<unsafe extern "C" fn($($param: $param_ty),*) -> *const Copy>,
            }

            #[repr(C)]
            #[derive(StableAbi)]
            pub struct ByValue {
                copy: Copy,
            }

            #[repr(C)]
            #[derive(StableAbi)]
            pub struct ByPointer {
                stream: *const Stream,
            }
        }
    };
}

version!(ours { dst: u64, src: u64 } (stream: *mut u8, bytes: u64));
version!(same { dst: u64, src: u64 } (stream: *mut u8, bytes: u64));
version!(retyped { dst: u64, src: i64 } (stream: *mut u8, bytes: u64));
version!(reordered { src: u64, dst: u64 } (stream: *mut u8, bytes: u64));
version!(longer { dst: u64, src: u64, bytes: u64 } (stream: *mut u8, bytes: u64));
version!(pointer { dst: u64, src: *const u64 } (stream: *mut u8, bytes: u64));
version!(pointee { dst: u64, src: *const u32 } (stream: *mut u8, bytes: u64));
version!(signature { dst: u64, src: u64 } (stream: *mut u8, bytes: u32));

fn by_value<T: StableAbi>() -> Result<(), String> {
    explain(ours::ByValue::LAYOUT, T::LAYOUT)
}

fn by_pointer<T: StableAbi>() -> Result<(), String> {
    explain(ours::ByPointer::LAYOUT, T::LAYOUT)
}

fn first_line(result: Result<(), String>) -> String {
    result.unwrap_err().lines().next().unwrap_or_default().to_owned()
}

#[test]
fn equal_layouts_fit() {
    assert_eq!(explain(plugin_layout(), plugin_layout()), Ok(()));
    assert_eq!(by_value::<same::ByValue>(), Ok(()));
    assert_eq!(by_pointer::<same::ByPointer>(), Ok(()));
}

#[test]
fn a_difference_names_struct_field_and_both_sides() {
    assert_eq!(first_line(by_value::<retyped::ByValue>()), "Copy.src: type `u64` here and `i64` there");
    assert_eq!(first_line(by_value::<reordered::ByValue>()), "Copy: field `dst` here and `src` there");
    let longer = by_value::<longer::ByValue>().unwrap_err();
    assert!(longer.contains("Copy: size in bytes `16` here and `24` there"), "{longer}");
    assert!(longer.contains("Copy: count of fields `2` here and `3` there"), "{longer}");
    let full = by_value::<retyped::ByValue>().unwrap_err();
    assert!(full.contains("\n\nCompared <this>:"), "the full text follows after an empty line: {full}");
}

#[test]
fn the_check_goes_through_pointers_and_signatures() {
    let line = first_line(by_pointer::<signature::ByPointer>());
    assert_eq!(line, "Stream.run.param_1: type `u64` here and `u32` there");
    let line = first_line(explain(pointer::ByValue::LAYOUT, pointee::ByValue::LAYOUT));
    assert_eq!(line, "Copy.src: type `u64` here and `u32` there");
    assert_eq!(first_line(by_pointer::<retyped::ByPointer>()), "Copy.src: type `u64` here and `i64` there");
}

#[test]
fn every_table_is_covered() {
    let fields = plugin_layout().get_fields().expect("a struct");
    let covered: Vec<_> = fields.iter().map(|f| f.layout().name()).collect();
    // SAFETY: generated static text.
    let named: Vec<_> = INFOS.iter().map(|i| unsafe { crate::abi::string_of(i.name) }).collect();
    assert_eq!(covered, named);
}

/// What the generator writes for a function that takes a callback.
macro_rules! callback {
    ($name:ident $end:ty) => {
        mod $name {
            #![allow(dead_code, reason = "only the layouts are read")]
            use abi_stable::StableAbi;

            type Task = unsafe extern "C" fn(begin: u64, end: $end);
            type HostRun = unsafe extern "C" fn(task: Option<Task>);

            #[repr(transparent)]
            #[derive(StableAbi)]
            struct TaskLayout(Option<unsafe extern "C" fn(begin: u64, end: $end)>);

            #[repr(transparent)]
            #[derive(StableAbi)]
            struct HostRunLayout(Option<unsafe extern "C" fn(task: TaskLayout)>);

            #[repr(C)]
            #[derive(StableAbi)]
            pub struct Host {
                #[sabi(unsafe_change_type = HostRunLayout)]
                run: Option<HostRun>,
            }
        }
    };
}

callback!(wide u64);
callback!(narrow u32);

#[test]
fn a_callbacks_signature_counts() {
    let line = first_line(explain(wide::Host::LAYOUT, narrow::Host::LAYOUT));
    assert_eq!(line, "Task.param_1: type `u64` here and `u32` there");
    let fields = plugin_layout().get_fields().expect("a struct");
    let host = fields.iter().find(|f| f.layout().name() == "EpHostServices").expect("in the contract");
    let mut members = host.layout().get_fields().expect("a struct").iter().map(|f| (f.name(), f.layout()));
    let run = members.find(|m| m.0 == "parallel_for").expect("in the contract").1;
    assert_eq!(run.name(), "EpHostServicesParallelForLayout");
    assert!(run.to_string().contains("EpTaskLayout"), "{run}");
}
