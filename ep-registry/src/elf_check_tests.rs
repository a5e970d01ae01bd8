use super::*;
use ep_core::Code;
use proptest::prelude::*;
use std::fs;
use std::io::Cursor;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

const PLUGIN: &str = "#include <math.h>\n\
    int data_only = 3;\n\
    __attribute__((visibility(\"hidden\"))) int hidden(void) { return 1; }\n\
    const void *ep_plugin_query(unsigned v, void *out) { (void)v; (void)out; return hidden() ? &data_only : 0; }\n\
    double other(double x) { return cos(x) + erf(x); }\n";

/// Compiles a C source to a library in `dir`.
fn compile(dir: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    build(dir, name, source, &[&["-shared", "-fPIC"], flags].concat())
}

fn build(dir: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let (input, output) = (dir.join(format!("{name}.c")), dir.join(name));
    fs::write(&input, source).unwrap();
    let status = Command::new("cc")
        .arg("-o")
        .arg(&output)
        .arg(&input)
        .args(flags)
        .status()
        .expect("these tests need a C compiler called `cc`");
    assert!(status.success(), "cc {flags:?}");
    output
}

/// A provider-like library, compiled once.
fn sample() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let dir = TempDir::new().unwrap();
        let flags = ["-lm", "-Wl,--no-as-needed,-soname,libsample.so.1,--build-id=0x0123abcd"];
        fs::read(compile(dir.path(), "libsample.so", PLUGIN, &flags)).unwrap()
    })
}

fn examine_bytes(bytes: &[u8]) -> Result<Inspection> {
    examine(Cursor::new(bytes), bytes.len() as u64).map_err(|problem| problem.into_error(Path::new("/x.so")))
}

/// Removes the section headers: their offset and counts become zero, their bytes go away.
fn drop_sections(bytes: &mut Vec<u8>) {
    let start = u64::from_ne_bytes(bytes[40..48].try_into().unwrap());
    bytes.truncate(usize::try_from(start).unwrap());
    bytes[40..48].fill(0);
    bytes[58..64].fill(0);
}

/// The error for a sample in which one place was overwritten.
fn patched(at: usize, with: &[u8]) -> Error {
    let mut bytes = sample().to_vec();
    bytes[at..at + with.len()].copy_from_slice(with);
    examine_bytes(&bytes).unwrap_err()
}

#[test]
fn a_real_library_is_read() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("x.so");
    fs::write(&path, sample()).unwrap();
    let inspection = inspect(&path).unwrap();
    assert_eq!(inspection.size, sample().len() as u64);
    assert_eq!(inspection.soname.as_deref(), Some("libsample.so.1"));
    assert_eq!(inspection.build_id.as_deref(), Some("0123abcd"));
    assert_eq!(inspection.exports_query, Some(true));
    assert_eq!(inspection.sanitizers, []);
    assert!(inspection.needed.iter().any(|name| name.starts_with("libm.so")), "{inspection:?}");
    judge(&inspection, &path).unwrap();
}

#[test]
fn both_kinds_of_symbol_tables_work_stripped_too() {
    let dir = TempDir::new().unwrap();
    for style in ["gnu", "sysv", "both"] {
        let flag = format!("-Wl,--hash-style={style}");
        let path = compile(dir.path(), &format!("lib{style}.so"), PLUGIN, &["-lm", "-s", &flag]);
        assert_eq!(inspect(&path).unwrap().exports_query, Some(true), "{style}");
        let mut bytes = fs::read(&path).unwrap();
        let mut image = Image::open(Cursor::new(&bytes), bytes.len() as u64).unwrap();
        for (name, expected) in [("other", true), ("data_only", false), ("hidden", false), ("cos", false)] {
            assert_eq!(image.exports_function(name).unwrap(), expected, "{style} {name}");
        }
        let undefined = image.undefined_symbols().unwrap();
        assert!(undefined.iter().any(|name| name == "cos"), "{style} {undefined:?}");
        drop_sections(&mut bytes);
        assert_eq!(examine_bytes(&bytes).unwrap().exports_query, Some(true), "{style}");
    }
}

#[test]
fn a_library_that_is_no_provider_is_told() {
    let dir = TempDir::new().unwrap();
    for (name, source) in [
        ("none.so", "int f(void) { return 0; }"),
        ("empty.so", "static int f(void) { return 0; } int (*unused[0])(void);"),
        ("data.so", "int ep_plugin_query = 3;"),
        ("label.so", "__asm__(\".data\\n.globl ep_plugin_query\\nep_plugin_query: .long 0\\n.text\");"),
        ("extern.so", "int ep_plugin_query(void); int f(void) { return ep_plugin_query(); }"),
        ("hidden.so", "__attribute__((visibility(\"hidden\"))) int ep_plugin_query(void) { return 0; }"),
        ("longer.so", "int ep_plugin_query_(void) { return 0; } int ep_plugin_quer(void) { return 0; }"),
    ] {
        let path = compile(dir.path(), name, source, &["-w"]);
        let inspection = inspect(&path).unwrap();
        let error = judge(&inspection, &path).unwrap_err();
        assert_eq!(error.code(), Code::AbiMismatch, "{name}");
        assert!(error.message().contains("no provider") && error.message().contains(name), "{error}");
    }
}

#[test]
fn the_wrong_machine_is_named_with_the_right_one() {
    let here = std::env::consts::ARCH;
    for (number, name) in
        [(183u16, "aarch64"), (62, "x86_64"), (243, "riscv64"), (0x7777, "machine number 30583")]
    {
        if name != here {
            let error = patched(18, &number.to_ne_bytes());
            assert_eq!(error.code(), Code::InvalidArgument);
            assert!(
                error.message().contains(&format!("is for {name}, and this machine is {here}")),
                "{error}"
            );
        }
    }
}

#[test]
fn other_headers_are_told_apart() {
    let other_order = if cfg!(target_endian = "little") { 2 } else { 1 };
    for (at, with, needle) in [
        (4, vec![1], "32-bit"),
        (4, vec![9], "class 9"),
        (5, vec![other_order], "byte order"),
        (16, 1u16.to_ne_bytes().to_vec(), "is an object file"),
        (16, 2u16.to_ne_bytes().to_vec(), "is a program"),
        (16, 4u16.to_ne_bytes().to_vec(), "is a core dump"),
        (16, 99u16.to_ne_bytes().to_vec(), "file type 99"),
        (32, u64::MAX.to_ne_bytes().to_vec(), "program header table ends at a byte past 2^64"),
        (40, u64::MAX.to_ne_bytes().to_vec(), "section header table"),
        (54, 1u16.to_ne_bytes().to_vec(), "of 1 bytes"),
        (56, 0u16.to_ne_bytes().to_vec(), "0 program headers"),
        (56, u16::MAX.to_ne_bytes().to_vec(), "65535 program headers"),
    ] {
        let error = patched(at, &with);
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().contains(needle), "{needle}: {error}");
    }
}

#[test]
fn a_program_is_no_library() {
    let dir = TempDir::new().unwrap();
    for kind in ["-pie", "-no-pie", "-static"] {
        let path = build(dir.path(), "prog", "int main(void) { return 0; }", &["-fPIE", kind]);
        let error = inspect(&path).unwrap_err();
        assert!(error.message().contains("is a program"), "{kind}: {error}");
    }
}

#[test]
fn files_of_other_kinds_are_named() {
    for (bytes, needle) in [
        (&b""[..], "but empty"),
        (b"MZ\x90\0", "Windows"),
        (b"\xcf\xfa\xed\xfe\x07", "Mach-O"),
        (b"!<arch>\n/ ", "static library"),
        (b"#!/bin/sh\n", "script"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"/* GNU ld script\n*/\nGROUP ( x )", "linker script"),
        ("Grüße\n".as_bytes(), "but text"),
        (b"PK\x03\x04", "zip"),
        (b"\x7fEL", "data that begins with 7f 45 4c"),
        (b"\0\x01\xff", "data that begins with 00 01 ff"),
        (b"\x7fELF", "the header ends at byte 64 but the file has 4"),
    ] {
        let error = examine_bytes(bytes).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().starts_with("/x.so: ") && error.message().contains(needle), "{error}");
    }
}

#[test]
fn what_is_no_regular_file_is_refused_without_waiting() {
    let dir = TempDir::new().unwrap();
    assert_eq!(inspect(dir.path()).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(inspect(&dir.path().join("none.so")).unwrap_err().code(), Code::NotFound);
    assert_eq!(inspect(Path::new("/dev/null")).unwrap_err().code(), Code::InvalidArgument);
    let pipe = dir.path().join("pipe.so");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert_eq!(inspect(&pipe).unwrap_err().code(), Code::InvalidArgument);
}

#[test]
fn a_file_cut_at_any_length_is_refused() {
    for len in 0..sample().len() {
        let error = examine_bytes(&sample()[..len]).expect_err("a part of the file passed");
        assert_eq!(error.code(), Code::InvalidArgument);
    }
    // Without section headers only the segments tell. What follows the last one is not missed.
    let mut bytes = sample().to_vec();
    drop_sections(&mut bytes);
    let end = segments(&bytes).map(|(_, offset, len)| offset + len).max().unwrap();
    for len in 0..bytes.len() {
        let outcome = examine_bytes(&bytes[..len]);
        assert_eq!(outcome.is_ok(), len >= end, "{len} of {end}");
    }
    let error = examine_bytes(&bytes[..end - 1]).unwrap_err();
    let needle = format!("ends at byte {end} but the file has {}", end - 1);
    assert!(error.message().contains("is cut short") && error.message().contains(&needle), "{error}");
}

#[test]
fn sanitizers_are_recognised_and_the_host_is_asked() {
    let dir = TempDir::new().unwrap();
    let entry = "int ep_plugin_query(void) { return 0; }\n";
    for (symbol, sanitizer) in [
        ("__asan_init", Sanitizer::Address),
        ("__tsan_init", Sanitizer::Thread),
        ("__msan_init", Sanitizer::Memory),
        ("__ubsan_handle_add_overflow", Sanitizer::Undefined),
    ] {
        let source = format!("{entry}void {symbol}(void); void f(void) {{ {symbol}(); }}");
        let path = compile(dir.path(), "lib.so", &source, &[]);
        let inspection = inspect(&path).unwrap();
        assert_eq!(inspection.sanitizers, [sanitizer]);
        let error = judge_with(&inspection, &path, |_| false).unwrap_err();
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.message().contains(&format!("-fsanitize={}", sanitizer.flag())), "{error}");
        judge_with(&inspection, &path, |asked| asked == sanitizer).unwrap();

        // A weak reference is how code asks whether a sanitizer is there.
        let source = format!(
            "{entry}void {symbol}(void) __attribute__((weak)); void f(void) {{ if ({symbol}) {symbol}(); }}"
        );
        let path = compile(dir.path(), "weak.so", &source, &[]);
        assert_eq!(inspect(&path).unwrap().sanitizers, []);
    }
    // A needed library is enough.
    compile(dir.path(), "libtsan.so", "int g(void) { return 0; }", &["-Wl,-soname,libtsan.so.2"]);
    let folder = format!("-L{}", dir.path().display());
    let path = compile(dir.path(), "lib.so", entry, &["-Wl,--no-as-needed", &folder, "-ltsan"]);
    assert_eq!(inspect(&path).unwrap().sanitizers, [Sanitizer::Thread]);
}

#[test]
fn the_process_is_really_asked_for_symbols() {
    assert_eq!(platform::process_has_symbol(c"malloc"), Some(true));
    assert_eq!(platform::process_has_symbol(c"ep_no_such_symbol"), Some(false));
}

#[test]
fn a_huge_sparse_file_is_not_read_whole() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("huge.so");
    fs::write(&path, sample()).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4 << 30).unwrap();
    let start = std::time::Instant::now();
    assert_eq!(inspect(&path).unwrap().exports_query, Some(true));
    // Reading 4 GiB takes far longer on any machine.
    assert!(start.elapsed().as_millis() < 200);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn no_damage_panics(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12), near_start: bool) {
        let mut bytes = sample().to_vec();
        // Half of the cases hit headers and symbol tables, which lie in front.
        let reach = if near_start { bytes.len().min(1200) } else { bytes.len() };
        for (at, with) in flips {
            bytes[at.index(reach)] = with;
        }
        let _ = examine_bytes(&bytes);
    }

    #[test]
    fn no_hostile_number_panics(at in any::<prop::sample::Index>(), value in prop_oneof![
        Just(0u64), Just(1), Just(u64::MAX), Just(1 << 63), Just((1 << 32) - 1), 0..40_000u64, any::<u64>()
    ], wide: bool, dynamic: bool) {
        let mut bytes = sample().to_vec();
        let size = if wide { 8 } else { 4 };
        let (start, len) = if dynamic { dynamic_section(&bytes) } else { (0, bytes.len().min(1600)) };
        let at = start + at.index((len - 8) / 4) * 4;
        bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
        let _ = examine_bytes(&bytes);
    }

    #[test]
    fn no_bytes_panic(tail in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut bytes = sample()[..20].to_vec();
        bytes.extend(tail);
        prop_assert!(examine_bytes(&bytes).is_err());
    }
}

/// Type, offset and length in the file of each segment.
fn segments(bytes: &[u8]) -> impl Iterator<Item = (u8, usize, usize)> {
    let number =
        |at: usize| usize::try_from(u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())).unwrap();
    let table = number(32);
    (0..usize::from(bytes[56])).map(move |i| {
        let at = table + i * 56;
        (bytes[at], number(at + 8), number(at + 32))
    })
}

/// Offset and length of the dynamic section.
fn dynamic_section(bytes: &[u8]) -> (usize, usize) {
    let (_, offset, len) =
        segments(bytes).find(|(kind, ..)| *kind == 2).expect("libraries have a dynamic section");
    (offset, len)
}
