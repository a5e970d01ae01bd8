//! The C header against C and C++ compilers, and against Rust's view of the same contract.

#[path = "header/layout.rs"]
mod layout;

use ep_core::abi::{
    self, ABI_MAJOR, ABI_MINOR, EpCopy, EpExprNode, EpOpSchema, EpPlugin, EpScalar, EpStatus, EpStr,
    EpTableInfo, INFOS,
};
use ep_core::hob::{decode, device, limit};
use ep_core::primitive::core_schemas;
use ep_core::schema::{DescKind, decode_schema};
use ep_core::{Code, Scalar};
use layout::{CONSTANTS, LAYOUTS};
use libloading::{Library, Symbol};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A language with its compiler, its standard and the ending of its sources.
struct Language {
    compiler: String,
    standard: &'static str,
    ending: &'static str,
}

/// C and C++, as far as a compiler for them exists here. An absent one is said aloud.
fn languages() -> Vec<Language> {
    let all = [("CC", "cc", "-std=c11", "c"), ("CXX", "c++", "-std=c++17", "cpp")];
    all.into_iter()
        .filter_map(|(variable, default, standard, ending)| {
            let compiler = std::env::var(variable).unwrap_or_else(|_| default.to_owned());
            if Command::new(&compiler).arg("--version").output().is_ok_and(|o| o.status.success()) {
                return Some(Language { compiler, standard, ending });
            }
            println!("skipped {standard}: no compiler `{compiler}`");
            None
        })
        .collect()
}

impl Language {
    /// Compiles `source` with every warning an error and returns the result's path.
    fn compile(&self, name: &str, source: &str, flags: &[&str]) -> PathBuf {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let file = folder.join(format!("{name}.{}", self.ending));
        let out = folder.join(format!("{name}_{}.out", self.ending));
        std::fs::write(&file, source).expect("the temporary folder is writable");
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
        let result = Command::new(&self.compiler)
            .args([
                self.standard,
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Wshadow",
                "-Wconversion",
                "-Werror",
                "-I",
            ])
            .arg(include)
            .args(flags)
            .arg("-o")
            .args([&out, &file])
            .output()
            .expect("the compiler starts");
        assert!(result.status.success(), "{name}: {}", String::from_utf8_lossy(&result.stderr));
        out
    }

    /// The functions of `probe.c`, loaded.
    fn probe(&self, test: &str) -> Library {
        let source = include_str!("header/probe.c");
        let path =
            self.compile(&format!("probe_{test}"), source, &["-shared", "-fPIC", "-fvisibility=hidden"]);
        // SAFETY: built from probe.c just now; it has no initialisers.
        unsafe { Library::new(path) }.expect("the probe loads")
    }
}

#[test]
fn compiles_without_a_warning() {
    let once = "#include \"ep_plugin.h\"\n";
    let nothing = "int nothing(void);\nint nothing(void) { return 0; }\n";
    for language in languages() {
        let source = format!("{once}{once}{nothing}");
        for (name, flags) in
            [("all", &["-c"][..]), ("bare", &["-c", "-DEP_NO_SCHEMAS"]), ("fast", &["-c", "-O2"])]
        {
            language.compile(name, &source, flags);
        }
        // Included before anything else, and linked twice into one program.
        let second = format!("{once}int main(void) {{ uint64_t n; return ep_abi_infos(&n) == NULL; }}\n");
        let object = language.compile("object", &format!("{once}{nothing}"), &["-c"]);
        language.compile("linked", &second, &[object.to_str().expect("UTF-8")]);
    }
}

#[test]
fn sizes_offsets_and_constants_agree() {
    let mut source = String::from("#include \"ep_plugin.h\"\n#include <stdio.h>\nint main(void) {\n");
    let mut expected = BTreeMap::new();
    for (name, size, fields) in LAYOUTS {
        source += &format!("printf(\"{name} %zu\\n\", sizeof({name}));\n");
        expected.insert((*name).to_owned(), *size as i64);
        for (field, offset) in *fields {
            source += &format!("printf(\"{name}.{field} %zu\\n\", offsetof({name}, {field}));\n");
            expected.insert(format!("{name}.{field}"), *offset as i64);
        }
    }
    for (name, value) in CONSTANTS {
        source += &format!("printf(\"{name} %lld\\n\", (long long)({name}));\n");
        expected.insert((*name).to_owned(), *value);
    }
    source += "return 0;\n}\n";
    assert_eq!(expected.len(), LAYOUTS.iter().map(|l| 1 + l.2.len()).sum::<usize>() + CONSTANTS.len());
    for language in languages() {
        let program = language.compile("layout", &source, &[]);
        let output = Command::new(program).output().expect("the program runs");
        let output = String::from_utf8(output.stdout).expect("UTF-8");
        let found: BTreeMap<String, i64> = output
            .lines()
            .map(|l| l.split_once(' ').expect("two words"))
            .map(|(name, value)| (name.to_owned(), value.parse().expect("a number")))
            .collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn dtypes_have_the_same_ids() {
    for dtype in (0..64).map(ep_core::DType) {
        let constant = format!("EP_DTYPE_{}", dtype.to_string().to_uppercase());
        let found = CONSTANTS.iter().find(|c| c.0 == constant).map(|c| c.1);
        let known = dtype == ep_core::DType::INVALID || dtype.bits().is_some();
        assert_eq!(found.is_some(), known, "{constant}");
        assert!(found.is_none_or(|id| id == i64::from(dtype.0)), "{constant}");
    }
    assert!(CONSTANTS.contains(&("EP_DTYPE_VENDOR_BASE", i64::from(ep_core::DType::VENDOR_BASE))));
}

fn words(infos: &[EpTableInfo]) -> Vec<(String, Vec<String>, Vec<u64>)> {
    // SAFETY: static data of this crate or of the loaded probe, which is never unloaded while in use.
    let list = |i: &EpTableInfo| unsafe {
        let fields = abi::list(i.fields, i.count, "fields").unwrap();
        let names = fields.iter().map(|f| abi::string_of(*f)).collect();
        (abi::string_of(i.name), names, abi::list(i.prefixes, i.count, "prefixes").unwrap().to_vec())
    };
    infos.iter().map(list).collect()
}

#[test]
fn fingerprints_agree() {
    for language in languages() {
        let library = language.probe("fingerprints");
        // SAFETY: the signatures are those in probe.c, and `count` is set before it is read.
        let (theirs, device) = unsafe {
            let infos: Symbol<'_, extern "C" fn(*mut u64) -> *const EpTableInfo> =
                library.get(b"probe_infos").unwrap();
            let device: Symbol<'_, extern "C" fn() -> *const EpTableInfo> =
                library.get(b"probe_device_info").unwrap();
            let mut count = 0;
            let list = infos(&raw mut count);
            (abi::list(list, count, "infos").unwrap(), *device())
        };
        assert_eq!(words(theirs), words(INFOS));
        assert_eq!(words(&[device]), words(&[abi::EPDEVICETABLE_INFO]));
    }
}

#[test]
fn schemas_agree() {
    for language in languages() {
        let library = language.probe("schemas");
        // SAFETY: the signature is the one in probe.c.
        let get: Symbol<'_, extern "C" fn(u64, *mut u64) -> *const EpOpSchema> =
            unsafe { library.get(b"probe_schema") }.unwrap();
        let mut count = 0;
        assert!(get(u64::MAX, &raw mut count).is_null());
        let ours = core_schemas();
        assert_eq!(count as usize, ours.len());
        for (i, ours) in ours.into_iter().enumerate() {
            // SAFETY: static data of the probe and of this crate.
            let (theirs, ours) =
                unsafe { (decode_schema(get(i as u64, &raw mut count)), decode_schema(ours)) };
            assert_eq!(theirs, ours);
        }
    }
}

#[test]
fn helpers_read_and_write_structs_of_every_version() {
    for language in languages() {
        let library = language.probe("structs");
        // SAFETY: the signatures are those in probe.c.
        let (read, write, has_bytes) = unsafe {
            (
                library.get::<extern "C" fn(*mut EpCopy, *const u64) -> i32>(b"probe_read").unwrap(),
                library.get::<extern "C" fn(*mut u64, *const EpCopy)>(b"probe_write").unwrap(),
                library.get::<extern "C" fn(*const u64) -> i32>(b"probe_has_bytes").unwrap(),
            )
        };
        let full = size_of::<EpCopy>();
        let words = full / 8;
        for given in (0..=words as u64 + 3).map(|n| n * 8).chain([7, 9, u64::MAX, (1 << 20) + 8]) {
            for tail in [0, 1] {
                let mut input = [u64::MAX; 32];
                input[0] = given;
                input[words..].fill(tail);
                let mut out = EpCopy { dst: 7, ..EpCopy::EMPTY };
                let code = read(&raw mut out, input.as_ptr());
                // SAFETY: `input` is longer than any size that the reader believes.
                let rust = unsafe { abi::read_struct(input.as_ptr().cast::<EpCopy>()) };
                assert_eq!(
                    code,
                    rust.as_ref().err().map_or(0, |e| e.code() as i32),
                    "{given} bytes, tail {tail}"
                );
                if rust.is_ok() {
                    let present = |i: u64| if i * 8 < given { u64::MAX } else { 0 };
                    let seen = [out.struct_size, out.dst, out.src_space.len, out.bytes];
                    assert_eq!(seen, [full as u64, present(1), present(6), present(7)], "{given}");
                }
            }
        }
        let value = EpCopy { dst: 1, src: 2, bytes: 3, ..EpCopy::EMPTY };
        for room in 1..=words + 2 {
            let mut out = [0xAAAA; 16];
            out[0] = (room * 8) as u64;
            write(out.as_mut_ptr(), &raw const value);
            let all = [out[0], 1, 0, 0, 2, 0, 0, 3, 0, 0];
            assert_eq!(out[..room], all[..room]);
            assert!(out[room..].iter().all(|w| *w == 0xAAAA), "wrote beyond {room} words");
            let mut rust = [0xAAAA; 16];
            rust[0] = out[0];
            // SAFETY: room for 16 words, of which at most `words + 2` are said to be there.
            unsafe { abi::write_struct(rust.as_mut_ptr().cast::<EpCopy>(), &value) }.unwrap();
            assert_eq!(rust, out, "{room} words, by C and by Rust");
            assert_eq!(has_bytes(out.as_ptr()) != 0, room >= words);
        }
    }
}

#[test]
fn helpers_make_scalars_texts_and_statuses() {
    for language in languages() {
        let library = language.probe("values");
        // SAFETY: the signatures are those in probe.c.
        let (scalar, as_f64, text, equals, status) = unsafe {
            (
                library.get::<extern "C" fn(u32, i64, f64) -> EpScalar>(b"probe_scalar").unwrap(),
                library.get::<extern "C" fn(EpScalar) -> f64>(b"probe_as_f64").unwrap(),
                library.get::<extern "C" fn(*const std::ffi::c_char) -> EpStr>(b"probe_str").unwrap(),
                library
                    .get::<extern "C" fn(EpStr, *const std::ffi::c_char) -> i32>(b"probe_str_equals")
                    .unwrap(),
                library.get::<extern "C" fn() -> *const EpStatus>(b"probe_status").unwrap(),
            )
        };
        for (i, f) in [(0, 0.0), (-3, -0.5), (i64::MIN, f64::NEG_INFINITY), (i64::MAX, f64::MIN_POSITIVE)] {
            assert_eq!(Scalar::try_from(scalar(abi::EP_SCALAR_I64, i, f)), Ok(Scalar::I64(i)));
            assert_eq!(Scalar::try_from(scalar(abi::EP_SCALAR_F64, i, f)), Ok(Scalar::F64(f)));
            assert_eq!(Scalar::try_from(scalar(abi::EP_SCALAR_NONE, i, f)), Ok(Scalar::None));
            let all =
                [Scalar::None, Scalar::Bool(true), Scalar::I64(i), Scalar::U64(i as u64), Scalar::F64(f)];
            for s in all.into_iter().chain([Scalar::Complex(f, 9.0)]) {
                assert_eq!(as_f64(s.into()), s.as_f64(), "{s}");
            }
        }
        assert!(as_f64(Scalar::F64(f64::NAN).into()).is_nan());
        // SAFETY: literals live for ever.
        unsafe {
            assert_eq!(abi::str_of(text(c"gr\u{fc}n".as_ptr())), Ok("gr\u{fc}n"));
            assert_eq!(abi::str_of(text(std::ptr::null())), Ok(""));
        }
        assert_ne!(equals(EpStr::new("abc"), c"abc".as_ptr()), 0);
        assert_eq!(equals(EpStr::new("abc"), c"ab".as_ptr()), 0);
        assert_eq!(equals(EpStr::new("abd"), c"abc".as_ptr()), 0);
        assert_ne!(equals(EpStr::ZERO, c"".as_ptr()), 0);
        for _ in 0..2 {
            // SAFETY: a static status, which may be taken any number of times.
            let error = unsafe { abi::take(status()) }.unwrap_err();
            assert_eq!((error.code(), error.message()), (Code::OutOfMemory, "no \"room\"; free some"));
        }
    }
}

#[test]
fn the_helper_releases_a_status_once_where_there_is_something_to_free() {
    for language in languages() {
        let library = language.probe("release");
        // SAFETY: the signature is the one in probe.c.
        let release = unsafe { library.get::<extern "C" fn() -> i32>(b"probe_release") }.unwrap();
        assert_eq!(release(), 5);
    }
}

#[test]
fn the_helper_finds_every_reserved_byte_and_no_other() {
    for language in languages() {
        let library = language.probe("reserved");
        // SAFETY: the signature is the one in probe.c.
        let is_zero =
            unsafe { library.get::<extern "C" fn(u64, *const u8) -> i32>(b"probe_reserved") }.unwrap();
        let mut reserved = 0;
        for (i, raw) in core_schemas().into_iter().enumerate() {
            // SAFETY: static data of this crate.
            let schema = unsafe { decode_schema(raw) }.unwrap();
            let size =
                |k: &DescKind| if matches!(k, DescKind::Selector(_) | DescKind::DType) { 4 } else { 8 };
            let known = |at| schema.desc.iter().any(|f| (f.offset..f.offset + size(&f.kind)).contains(&at));
            for at in 0..schema.desc_size {
                let mut desc = vec![0u8; schema.desc_size];
                desc[at] = 1;
                let zero = at < 16 || known(at);
                reserved += usize::from(!zero);
                assert_eq!(is_zero(i as u64, desc.as_ptr()) != 0, zero, "byte {at} of {}", schema.name);
            }
        }
        assert!(reserved > 0 && reserved % 4 == 0, "{reserved} reserved bytes");
    }
}

#[test]
fn predicates_are_written_with_macros() {
    let expected = limit("cols").le(-1024) & device("isa").is_in(["avx2", "avx512"]);
    for language in languages() {
        let library = language.probe("predicates");
        // SAFETY: the signature is the one in probe.c, and the nodes are static data of the probe.
        let found = unsafe {
            let get: Symbol<'_, extern "C" fn(*mut u64) -> *const EpExprNode> =
                library.get(b"probe_predicate").unwrap();
            let mut count = 0;
            let nodes = get(&raw mut count);
            decode(nodes, count)
        };
        assert_eq!(found, Ok(Some(expected.clone())));
    }
}

#[test]
fn the_frame_in_the_introduction_works() {
    for language in languages().iter().filter(|l| l.ending == "c") {
        let library = language.probe("frame");
        // SAFETY: the signature is the entry point's.
        let query: Symbol<'_, unsafe extern "C" fn(u32, u32, *mut *const EpPlugin) -> *const EpStatus> =
            unsafe { library.get(b"ep_plugin_query") }.unwrap();
        let mut plugin = std::ptr::null();
        // SAFETY: as the entry point's contract says; statuses are taken once.
        unsafe {
            let error = abi::take(query(ABI_MAJOR, ABI_MINOR + 1, &raw mut plugin)).unwrap_err();
            assert_eq!((error.code(), plugin.is_null()), (Code::AbiMismatch, true));
            abi::take(query(ABI_MAJOR, ABI_MINOR, &raw mut plugin)).unwrap();
            let table = abi::read_table(plugin).unwrap();
            assert_eq!(abi::str_of(table.name), Ok("probe"));
            assert_eq!(words(abi::list(table.infos, table.num_infos, "infos").unwrap()), words(INFOS));
        }
    }
}
