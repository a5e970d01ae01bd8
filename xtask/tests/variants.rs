//! Headers of versions that never were: they compile, and what they say about themselves follows the change.

use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::Change;

fn header(changes: &[&str]) -> Result<String, String> {
    let changes: Vec<Change> = changes.iter().map(|c| c.parse().expect("a change")).collect();
    xtask::header(&changes)
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("the temporary folder is writable");
    folder
}

/// The fingerprints of one struct's prefixes, as the header's text has them.
fn prefixes(header: &str, name: &str) -> Vec<String> {
    let start = header.find(&format!("{name}_prefixes_[] = {{")).expect("the struct is listed");
    let list = &header[start..start + header[start..].find("};").expect("the list ends")];
    let hashes: Vec<_> = list.split("UINT64_C(").skip(1).map(|h| h[..18].to_owned()).collect();
    assert!(!hashes.is_empty());
    hashes
}

fn common(a: &[String], b: &[String]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

const VARIANTS: &[(&str, &[&str])] = &[
    ("older_table", &["drop-last=EpDeviceTable"]),
    ("newer_table", &["append=EpDeviceTable.reset=fn(*mut EpDevice, u64)", "append=EpPlugin.license=EpStr"]),
    ("newer_struct", &["append=EpCopy.flags=u64", "append=EpDeviceInfo.cores=u64"]),
    ("swapped", &["swap=EpStreamTable.sync,query"]),
    ("retyped", &["retype=EpCopy.bytes=i64", "retype=EpEventTable.query=fn(*mut EpEvent, *mut u64)"]),
    ("frozen", &["retype=EpScalar.im=f64"]),
    ("schema_struct", &["swap=EpOpSchema.summary,contract", "swap=EpField.offset,size"]),
    ("older_op", &["drop-last=EpSoftmaxDesc", "drop-last=EpElementwiseUnaryDesc"]),
    ("newer_op", &["append=EpSoftmaxDesc.temperature=f64", "append=EpFillArgs.step=EpScalar"]),
    ("newer_key", &["append=EpSoftmaxDesc.mode=transpose", "append=EpFillDesc.mode=transpose"]),
    ("swapped_op", &["swap=EpSoftmaxDesc.src,dst", "swap=EpMatmulArgs.m,n"]),
    ("minor", &["minor=7"]),
];

#[test]
fn variants_compile() {
    for (compiler, standard, ending) in [("cc", "-std=c11", "c"), ("c++", "-std=c++17", "cpp")] {
        if Command::new(compiler).arg("--version").output().is_err() {
            println!("skipped {standard}: no compiler `{compiler}`");
            continue;
        }
        for (name, changes) in VARIANTS {
            let folder = folder(&format!("{name}_{ending}"));
            std::fs::write(folder.join("ep_plugin.h"), header(changes).expect(name)).expect("writable");
            let source = folder.join(format!("use.{ending}"));
            let text = "#include \"ep_plugin.h\"\nconst EpOpSchema *f(void);\n\
                        const EpOpSchema *f(void) { return ep_softmax_schema(); }\n";
            std::fs::write(&source, text).expect("writable");
            let output = Command::new(compiler)
                .args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"])
                .arg(&source)
                .output()
                .expect("the compiler starts");
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

#[test]
fn fingerprints_follow_the_change() {
    let base = header(&[]).unwrap();
    let check = |changes: &[&str], name: &str, shared: usize, count: usize| {
        let (a, b) = (prefixes(&base, name), prefixes(&header(changes).unwrap(), name));
        assert_eq!((common(&a, &b), b.len()), (shared, count), "{changes:?}");
    };
    let n = |name: &str| prefixes(&base, name).len();
    let table = n("EpDeviceTable");
    check(&[], "EpDeviceTable", table, table);
    check(&["drop-last=EpDeviceTable"], "EpDeviceTable", table - 1, table - 1);
    check(&["append=EpDeviceTable.reset=fn(*mut EpDevice)"], "EpDeviceTable", table, table + 1);
    // struct_size, destroy, then the two that are exchanged.
    check(&["swap=EpStreamTable.sync,query"], "EpStreamTable", 2, n("EpStreamTable"));
    check(&["retype=EpCopy.bytes=i64"], "EpCopy", n("EpCopy") - 1, n("EpCopy"));
    check(&["retype=EpCopy.bytes=i64"], "EpStreamTable", n("EpStreamTable"), n("EpStreamTable"));
    // A frozen struct counts wherever it is used, in the arguments of functions too.
    check(&["retype=EpStr.len=i64"], "EpCopy", 2, n("EpCopy"));
    check(&["retype=EpStr.len=i64"], "EpHostServices", 5, n("EpHostServices"));
}

#[test]
fn the_whole_hash_sees_ops_and_constants() {
    let whole = |changes: &[&str]| {
        let text = header(changes).unwrap();
        text.lines().find(|l| l.contains("EP_ABI_FINGERPRINT")).expect("defined").to_owned()
    };
    let mut all: Vec<_> = VARIANTS.iter().map(|(_, changes)| whole(changes)).collect();
    all.push(whole(&[]));
    let total = all.len();
    all.sort();
    all.dedup();
    // `minor` alone changes no layout.
    assert_eq!(all.len(), total - 1);
}

#[test]
fn schemas_follow_the_change() {
    let softmax = |changes: &[&str]| {
        let text = header(changes).unwrap();
        let start = text.find("static inline const EpOpSchema *ep_softmax_schema").expect("there");
        text[start..start + text[start..].find("\n}\n").expect("ends")].to_owned()
    };
    assert!(softmax(&[]).contains("EP_STR(\"cols\"), EP_STR(\"The largest"));
    assert!(!softmax(&["drop-last=EpSoftmaxDesc"]).contains("The largest"));
    let newer = softmax(&["append=EpSoftmaxDesc.temperature=f64"]);
    assert!(
        newer.contains("EP_STR(\"temperature\"), EP_STR(\"Added by a test.\"), EP_FIELD_ATTR, 32, 8"),
        "{newer}"
    );
    let swapped = softmax(&["swap=EpSoftmaxDesc.src,dst"]);
    assert!(
        swapped.contains("EP_STR(\"dst\"), EP_STR(\"The destination elements.\"), EP_FIELD_DTYPE, 16"),
        "{swapped}"
    );
    assert!(swapped.contains("{EP_STR(\"src\"), 1, EP_ACCESS_READ"), "{swapped}");
}

#[test]
fn impossible_changes_are_refused_by_name() {
    for (change, said) in [
        ("drop-last=EpNothing", "no struct `EpNothing`"),
        ("drop-last=EpSoftmaxArgs", "cannot do without its last field `dst`"),
        ("append=EpCopy.x=float", "unknown type `float`"),
        ("append=EpCopy.x=fn(u64", "lacks its `)`"),
        ("append=EpSoftmaxDesc.x=u64", "cannot be given a field of type `u64`"),
        ("retype=EpCopy.nothing=u64", "no field `nothing`"),
        ("retype=EpSoftmaxDesc.src=u64", "kinds, not types"),
        ("swap=EpCopy.dst,nothing", "no field `nothing`"),
        ("append=EpCopy.x=u8", "EpCopy would need implicit padding at its end"),
        ("retype=EpExprNode.op=u64", "EpExprNode.value would need implicit padding"),
        ("append=EpCopy.bytes=u64", "EpCopy: there would be two fields `bytes`"),
        ("append=EpSoftmaxArgs.rows=i64", "EpSoftmaxArgs: there would be two fields `rows`"),
        ("append=EpCopy.1 x=u64", "EpCopy: `1 x` is no name of a field"),
        ("append=EpStr.x=EpStr", "EpStr.x: EpStr would be part of itself"),
        ("append=EpStr.x=*const EpExprNode", "EpExprNode.text: EpStr would be part of itself"),
        // By what it returns.
        ("retype=EpStr.len=fn()", "EpStr would be part of itself"),
        ("append=EpElementwiseUnaryDesc.x=transpose", "EpElementwiseUnaryDesc: padding in two places"),
        ("append=EpScalar.x=u64", "EpArangeArgs.start does not lie where the schema of the op has it"),
    ] {
        let error = header(&[change]).unwrap_err();
        assert!(error.contains(said), "{change}: {error}");
    }
}

#[test]
fn the_command_writes_what_the_function_returns() {
    let out = folder("command").join("variant.h");
    let run =
        |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_xtask")).args(args).output().expect("xtask starts");
    let path = out.to_str().expect("UTF-8");
    let result = run(&[
        "header",
        "--out",
        path,
        "--minor",
        "3",
        "--append",
        "EpCopy.flags=u64",
        "--drop-last",
        "EpEventTable",
    ]);
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    let expected = header(&["drop-last=EpEventTable", "append=EpCopy.flags=u64", "minor=3"]).unwrap();
    assert_eq!(std::fs::read_to_string(&out).expect("written"), expected);
    for (change, told) in [
        (["--swap", "EpCopy.dst"], "is no change"),
        (["--append", "EpCopy.x=u8"], "error: EpCopy would need implicit padding at its end"),
    ] {
        let result = run(&["header", "--out", path, change[0], change[1]]);
        let said = String::from_utf8_lossy(&result.stderr);
        assert!(result.status.code() == Some(1) && said.contains(told), "{said}");
    }
}

#[test]
fn generated_files_are_current() {
    assert_eq!(xtask::generate(true), Vec::<PathBuf>::new(), "run `cargo xtask gen`");
}

#[test]
fn every_clause_is_proven_by_tests_that_exist() {
    assert_eq!(xtask::contract_problems(), [""; 0]);
}
