//! Loading, and everything that can be wrong with what is loaded or asked for. Each bad input ends in an error with
//! the right code that says what was wrong, where, and what to do; the process lives, and what is good still works.
//!
//! The good provider is `plugins/skew/skew.c`, the misbehaving one `plugins/hostile`.

use ep_core::primitive::{Softmax, SoftmaxCall, SoftmaxDesc};
use ep_core::{Code, DType, Error};
use ep_registry::config::{Config, ProviderConfig};
use ep_registry::elf_check::Sanitizer;
use ep_registry::trust::{Digest, Policy};
use ep_registry::{Runtime, Status};
use ep_tests::loading::{compile_text, folder, good, load, only, refused, says, skew};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Writes a file that nobody else may write.
fn file(path: PathBuf, content: impl AsRef<[u8]>) -> PathBuf {
    fs::write(&path, content).unwrap();
    chmod(&path, 0o644);
    path
}

/// The error of a config with this text.
fn config_error(text: impl AsRef<[u8]>) -> (Error, PathBuf) {
    let folder = folder();
    let path = file(folder.path().join("ep.toml"), text);
    (Runtime::from_config(&path).unwrap_err(), path)
}

/// A softmax that shows that the runtime works.
fn works(runtime: &Runtime) {
    let device = runtime.device("skew").unwrap();
    let primitive = runtime.primitive::<Softmax>(device, SoftmaxDesc::new(DType::F32, DType::F32)).unwrap();
    let (src, mut dst) =
        (device.upload(&[1f32, 1.0, 1.0, 1.0]).unwrap(), device.alloc(DType::F32, 4).unwrap());
    let stream = device.stream().unwrap();
    primitive.launch(&stream, SoftmaxCall { rows: 2, cols: 2, inner: 1, src: &src, dst: &mut dst }).unwrap();
    assert_eq!(dst.download::<f32>().unwrap(), [0.5; 4]);
}

// ------------------------------------------------------------------------------------------------ config

#[test]
fn a_missing_config_names_the_command_that_writes_one() {
    let folder = folder();
    let path = folder.path().join("nowhere/ep.toml");
    let error = Runtime::from_config(&path).unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    says(error.message(), &[path.to_str().unwrap(), "no such config", "`ep init --output "]);
    // Nothing here has read that variable.
    assert!(!error.message().contains("EP_CONFIG"), "{error}");
}

#[test]
fn malformed_toml_shows_the_line() {
    let (error, path) = config_error("[[provider]]\nname = \"cpu\"\npath = lib.so\"\n");
    assert_eq!(error.code(), Code::InvalidArgument);
    says(error.message(), &[&format!("{}:3:", path.display()), "3 | path = lib.so\"", "^"]);
}

#[test]
fn wrong_configs_point_at_the_place_and_name_what_is_possible() {
    for (text, parts) in [
        (
            "[[provider]]\nname = \"cpu\"\npth = \"x\"\n",
            [":3:1", "unknown key `pth`", "did you mean `path`?"],
        ),
        ("[[provider]]\nname = \"cpu\"\n", [":1:1", "has no `path`", "add one"]),
        ("[[provider]]\nname = \"a b\"\npath = \"x\"\n", [":2:8", "\"a b\"", "letters, digits"]),
        ("[[provider]]\nname = \"a\"\npath = \"x\"\npriority = 9e9\n", [":4:12", "`priority`", "an integer"]),
        (
            "[[provider]]\nname = \"a\"\npath = \"x\"\nsha256 = \"12\"\n",
            [":4:10", "64 hexadecimal digits", "sha256sum"],
        ),
        (
            "[[provider]]\nname = \"a\"\npath = \"x\"\n[[provider]]\nname = \"a\"\npath = \"y\"\n",
            [":5:8", "second provider is called `a`", "a name of its own"],
        ),
        ("[runtime]\nthreads = 0\n", [":2:11", "`threads`", "at least 1"]),
    ] {
        let (error, path) = config_error(text);
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        says(error.message(), &parts);
        says(error.message(), &[path.to_str().unwrap()]);
    }
    let (error, _) = config_error(b"name = \"\xff\"");
    assert_eq!(error.code(), Code::InvalidArgument);
    says(error.message(), &["byte 8 is not UTF-8", "save the file as UTF-8"]);
}

#[test]
fn a_config_that_everybody_may_write_to_is_refused() {
    let folder = folder();
    let path = file(folder.path().join("ep.toml"), "");
    Runtime::from_config(&path).unwrap();
    chmod(&path, 0o666);
    let error = Runtime::from_config(&path).unwrap_err();
    assert_eq!(error.code(), Code::Refused);
    says(error.message(), &[path.to_str().unwrap(), "every user may write", "chmod o-w"]);
}

#[test]
fn a_config_loads_relative_to_itself() {
    let folder = folder();
    let name = good(folder.path()).file_name().unwrap().to_str().unwrap().to_owned();
    let text = format!("[[provider]]\nname = \"one\"\npath = \"{name}\"\nrequired = true\n");
    let runtime = Runtime::from_config(file(folder.path().join("ep.toml"), text)).unwrap();
    let entry = only(&runtime);
    assert_eq!((entry.status, entry.instance.as_str()), (Status::Loaded, "one"));
    assert_eq!(entry.path.as_deref(), Some(folder.path().join(name).as_path()));
    assert!(entry.required);
    works(&runtime);
}

// ------------------------------------------------------------------------------------------------- files

#[test]
fn a_missing_file_is_not_found() {
    let folder = folder();
    let path = folder.path().join("libnone.so");
    let message = refused(&path, Code::NotFound);
    says(&message, &[path.to_str().unwrap(), "does not exist", "build or install"]);
}

#[test]
fn what_is_no_library_is_told() {
    let folder = folder();
    for (name, content, parts) in [
        ("libtext.so", "#!/bin/sh\necho hello\n".as_bytes(), ["is not a shared library", "script"]),
        ("libempty.so", b"".as_slice(), ["not a shared library but empty", "build it again"]),
        ("libshort.so", b"\x7fELF\x02\x01\x01".as_slice(), ["cut short", "build it again"]),
    ] {
        let path = file(folder.path().join(name), content);
        let message = refused(&path, Code::InvalidArgument);
        says(&message, &parts);
        says(&message, &[path.to_str().unwrap()]);
    }
    let message = refused(folder.path(), Code::InvalidArgument);
    says(&message, &["is a folder", "name the file itself"]);
}

#[test]
fn a_truncated_library_is_refused_at_every_length_and_never_mapped() {
    let folder = folder();
    let whole = fs::read(good(folder.path())).unwrap();
    // A prime step meets the headers, every segment, the symbols and the section headers at odd places.
    let lengths = (0..whole.len()).step_by(211).chain([1, 63, 64, 4096, whole.len() - 1]);
    let mut count = 0;
    for (i, length) in lengths.enumerate() {
        let path = file(folder.path().join(format!("lib{i}.so")), &whole[..length]);
        let runtime = load(&path);
        let entry = only(&runtime);
        assert_eq!(entry.status, Status::Failed, "{length} of {} bytes: {entry}", whole.len());
        says(&entry.reason, &[path.to_str().unwrap()]);
        let told = if length < 4 { "is not a shared library" } else { "is cut short" };
        says(&entry.reason, &[told]);
        count += 1;
    }
    assert!(count > 80, "{count}");
    works(&load(&file(folder.path().join("libwhole.so"), &whole)));
}

#[test]
fn damaged_libraries_are_refused_or_work_but_never_kill() {
    let folder = folder();
    let whole = fs::read(good(folder.path())).unwrap();
    // Headers only: what they say is believed by nobody. Code and data of a library are trusted.
    for at in (0..64).chain(64..64 + 56 * 3) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0xff;
        let path = file(folder.path().join(format!("lib{at}.so")), bytes);
        if let Err(error) = ep_registry::elf_check::inspect(&path) {
            assert_eq!(error.code(), Code::InvalidArgument, "byte {at}: {error}");
            says(error.message(), &[path.to_str().unwrap(), ";"]);
            assert_eq!(only(&load(&path)).status, Status::Failed);
        }
    }
}

#[test]
fn a_library_for_another_machine_is_refused_with_both_names() {
    let folder = folder();
    let mut bytes = fs::read(good(folder.path())).unwrap();
    let (number, other) = if cfg!(target_arch = "aarch64") { (62u16, "x86_64") } else { (183, "aarch64") };
    bytes[18..20].copy_from_slice(&number.to_le_bytes());
    let path = file(folder.path().join("libother.so"), bytes);
    let message = refused(&path, Code::InvalidArgument);
    says(&message, &[path.to_str().unwrap(), other, std::env::consts::ARCH, "build"]);
}

#[test]
fn a_library_that_is_no_plugin_is_told_what_it_lacks() {
    let folder = folder();
    let path = compile_text(
        folder.path(),
        "libplain.so",
        "int f(void);\nint f(void) { return 1; }\n",
        &["-fvisibility=default"],
    );
    let message = refused(&path, Code::AbiMismatch);
    says(&message, &[path.to_str().unwrap(), "no provider", "`ep_plugin_query`", "export_provider!"]);
}

#[test]
fn a_library_that_needs_another_is_refused_with_its_name() {
    let folder = folder();
    let needed = compile_text(folder.path(), "libneeded.so", "int needed = 1;\n", &["-fvisibility=default"]);
    let text =
        "extern int needed;\nint *ep_plugin_query(void);\nint *ep_plugin_query(void) { return &needed; }\n";
    let path =
        compile_text(folder.path(), "libuser.so", text, &["-fvisibility=default", needed.to_str().unwrap()]);
    fs::remove_file(&needed).unwrap();
    let message = refused(&path, Code::Unavailable);
    says(&message, &[path.to_str().unwrap(), "cannot load it", "libneeded.so"]);
}

#[test]
fn a_plugin_that_needs_a_sanitizer_is_refused() {
    let folder = folder();
    let text = "int *ep_plugin_query(int *x);\nint *ep_plugin_query(int *x) { ++*x; return x; }\n";
    let mut count = 0;
    for sanitizer in [Sanitizer::Address, Sanitizer::Thread, Sanitizer::Undefined] {
        // Tests of this program under a sanitizer bring its run time along.
        if sanitizer.is_in_process() {
            continue;
        }
        let flag = format!("-fsanitize={}", sanitizer.flag());
        let name = format!("lib{}.so", sanitizer.flag());
        let path = compile_text(folder.path(), &name, text, &["-fvisibility=default", &flag]);
        let message = refused(&path, Code::Unavailable);
        says(
            &message,
            &[path.to_str().unwrap(), &flag, "no run time for it", "build the provider without it"],
        );
        count += 1;
    }
    assert!(count > 0, "one program cannot hold every sanitizer");
}

// ------------------------------------------------------------------------------------------------- trust

#[test]
fn a_file_or_folder_that_everybody_may_write_to_is_refused() {
    let folder = folder();
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let path = good(&inner);
    chmod(&path, 0o666);
    let message = refused(&path, Code::Refused);
    says(&message, &[path.to_str().unwrap(), "every user may write to the file", "run `chmod o-w"]);
    chmod(&path, 0o644);
    chmod(&inner, 0o777);
    let message = refused(&path, Code::Refused);
    says(&message, &[path.to_str().unwrap(), "every user may write to the folder", "run `chmod o-w"]);
    let runtime =
        Runtime::builder().threads(1).policy(Policy::permissive()).provider("x", &path).build().unwrap();
    works(&runtime);
}

#[test]
fn another_content_than_the_hash_says_is_refused_and_the_right_one_loads() {
    let folder = folder();
    let path = good(folder.path());
    let digest = Digest::of(&fs::read(&path).unwrap());
    let wrong = Digest::of(b"something else");
    let build = |sha256: Digest| {
        let settings = ProviderConfig { sha256: Some(sha256), ..ProviderConfig::new("x", &path) };
        Runtime::builder().threads(1).provider_with(settings).build().unwrap()
    };
    let runtime = build(wrong);
    let entry = only(&runtime);
    assert_eq!(entry.status, Status::Failed);
    let (found, expected) = (digest.to_string(), wrong.to_string());
    says(&entry.reason, &[path.to_str().unwrap(), &found, &expected, "put the new hash into the config"]);
    works(&build(digest));
    // From a config, in the letters that `sha256sum` prints.
    let text =
        format!("[[provider]]\nname = \"x\"\npath = {path:?}\nsha256 = \"{found}\"\nrequired = true\n");
    works(&Runtime::from_config(file(folder.path().join("ep.toml"), text)).unwrap());
}

#[test]
fn a_hash_is_that_of_what_runs_where_the_file_was_replaced_after_it_was_loaded() {
    let folder = folder();
    let path = good(folder.path());
    let other = skew(folder.path(), "other", &[], &["-DSKEW_ID=\"other\""]);
    let (old, new) = (fs::read(&path).unwrap(), fs::read(&other).unwrap());
    let build = |content: Option<&Vec<u8>>| {
        let sha256 = content.map(|bytes| Digest::of(bytes));
        let settings = ProviderConfig { sha256, ..ProviderConfig::new("x", &path) };
        Runtime::builder().threads(1).provider_with(settings).build().unwrap()
    };
    works(&build(Some(&old)));
    fs::rename(&other, &path).unwrap();
    // The old code is what the dynamic linker still hands out for this path.
    let runtime = build(Some(&new));
    let entry = only(&runtime);
    assert_eq!((entry.status, entry.code, &entry.provider), (Status::Failed, Some(Code::Refused), &None));
    says(&entry.reason, &[path.to_str().unwrap(), "another version", "already in this process", "restart"]);
    says(&only(&build(Some(&old))).reason, &["its SHA-256 is", "restore the file"]);
    // Without a hash it may run, and that is told.
    let runtime = build(None);
    let entry = only(&runtime);
    assert_eq!((entry.status, entry.provider.as_ref().unwrap().0.as_str()), (Status::Loaded, "skew"));
    says(&entry.reason, &["changed or replaced", "that version is what runs", "restart the process"]);
    works(&runtime);
    // The same bytes in another file: those that run.
    file(path.clone(), &old);
    let runtime = build(Some(&old));
    assert_eq!((only(&runtime).status, only(&runtime).reason.as_str()), (Status::Loaded, ""));
    works(&runtime);
}

#[test]
fn a_file_that_could_not_be_loaded_is_loaded_once_it_is_mended() {
    let folder = folder();
    let needed = compile_text(folder.path(), "libneeded.so", "int needed = 1;\n", &["-fvisibility=default"]);
    let text =
        "extern int needed;\nint *ep_plugin_query(void);\nint *ep_plugin_query(void) { return &needed; }\n";
    let flags = ["-fvisibility=default", needed.to_str().unwrap()];
    let path = compile_text(folder.path(), "libuser.so", text, &flags);
    fs::remove_file(&needed).unwrap();
    refused(&path, Code::Unavailable);
    fs::rename(good(folder.path()), &path).unwrap();
    let sha256 = Some(Digest::of(&fs::read(&path).unwrap()));
    let settings = ProviderConfig { sha256, ..ProviderConfig::new("x", &path) };
    works(&Runtime::builder().threads(1).provider_with(settings).build().unwrap());
}

// ------------------------------------------------------------------------------------ several providers

#[test]
fn one_bad_provider_does_not_stop_the_others() {
    let folder = folder();
    let path = good(folder.path());
    let text_file = file(folder.path().join("libtext.so"), "text");
    let missing = folder.path().join("libnone.so");
    let disabled = ProviderConfig { enabled: false, ..ProviderConfig::new("off", &path) };
    let runtime = Runtime::builder()
        .threads(1)
        .provider("first", &missing)
        .provider("good", &path)
        .provider("last", &text_file)
        .provider_with(disabled)
        .build()
        .unwrap();
    works(&runtime);
    let entry = |name: &str| runtime.report().entries.iter().find(|e| e.instance == name).unwrap();
    for (name, path, status, reason) in [
        ("first", &missing, Status::Failed, "does not exist"),
        ("good", &path, Status::Loaded, ""),
        ("last", &text_file, Status::Failed, "not a shared library"),
        ("off", &path, Status::Skipped, "disabled by `enabled = false`"),
    ] {
        let e = entry(name);
        assert_eq!((e.path.as_ref(), e.status), (Some(path), status), "{e}");
        assert_eq!(e.reason.is_empty(), reason.is_empty(), "{e}");
        says(&e.reason, &[reason]);
        says(&e.to_string(), &[name, path.to_str().unwrap(), &status.to_string(), reason]);
    }
    assert_eq!(entry("good").devices, ["skew:0"]);
    assert_eq!(runtime.report().entries.len(), 4);
    assert_eq!(runtime.report().with_status(Status::Failed).count(), 2);
}

#[test]
fn a_required_provider_that_fails_fails_the_whole() {
    let folder = folder();
    let path = good(folder.path());
    let missing = folder.path().join("libnone.so");
    let required = ProviderConfig { required: true, ..ProviderConfig::new("needed", &missing) };
    let error =
        Runtime::builder().threads(1).provider("good", &path).provider_with(required).build().unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    says(error.message(), &["`needed` is required", missing.to_str().unwrap(), "does not exist"]);
}

#[test]
fn the_same_id_from_another_file_is_a_duplicate_and_the_first_wins() {
    let folder = folder();
    let path = good(folder.path());
    let copy = file(folder.path().join("libcopy.so"), fs::read(&path).unwrap());
    let runtime =
        Runtime::builder().threads(1).provider("one", &path).provider("two", &copy).build().unwrap();
    let [one, two] = runtime.report().entries.as_slice() else { panic!("{}", runtime.report()) };
    assert_eq!((one.status, two.status), (Status::Loaded, Status::Failed));
    let parts = ["a duplicate", "`skew`", "as `one`", path.to_str().unwrap(), "remove one of them"];
    says(&two.reason, &parts);
    assert_eq!(two.path.as_ref(), Some(&copy));
    works(&runtime);
    // The same file twice is two instances of one plugin, with a device each.
    let runtime =
        Runtime::builder().threads(1).provider("one", &path).provider("two", &path).build().unwrap();
    assert_eq!(runtime.report().with_status(Status::Loaded).count(), 2, "{}", runtime.report());
    works(&runtime);
}

#[test]
fn two_instances_of_one_name_are_refused() {
    let folder = folder();
    let path = good(folder.path());
    let runtime = Runtime::builder().threads(1).provider("x", &path).provider("x", &path).build().unwrap();
    let [one, two] = runtime.report().entries.as_slice() else { panic!("{}", runtime.report()) };
    assert_eq!((one.status, two.status), (Status::Loaded, Status::Failed));
    says(&two.reason, &["instance name `x` is taken"]);
    works(&runtime);
    let text = format!("[[provider]]\nname = \"x\"\npath = {path:?}\n").repeat(2);
    let error = Config::from_str(&text, folder.path()).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    says(error.message(), &["config:5:", "second provider is called `x`"]);
}

#[test]
fn an_unknown_option_is_refused_by_the_provider() {
    let folder = folder();
    let mut settings = ProviderConfig::new("x", good(folder.path()));
    settings.options.insert("speed".into(), "11".into());
    let runtime = Runtime::builder().threads(1).provider_with(settings).build().unwrap();
    let entry = only(&runtime);
    assert_eq!(entry.status, Status::Failed);
    says(&entry.reason, &["option `speed`", "remove it"]);
}

#[test]
fn a_device_that_the_config_does_not_select_is_not_there() {
    let folder = folder();
    let text =
        format!("[[provider]]\nname = \"x\"\npath = {:?}\ndevices = [\"skew:7\"]\n", good(folder.path()));
    let runtime = Runtime::from_config(file(folder.path().join("ep.toml"), text)).unwrap();
    let entry = only(&runtime);
    assert_eq!(entry.status, Status::Absent, "{entry}");
    says(&entry.reason, &["`devices` in the config selects none of its devices: no `skew:7` among skew:0;"]);
    let error = runtime.device("skew").unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    says(error.message(), &["device `skew` is absent", "selects none"]);
}

// ---------------------------------------------------------------------------------------------- requests

#[test]
fn unknown_ops_dtypes_and_devices_are_not_found_with_what_there_is() {
    let folder = folder();
    let runtime = load(&good(folder.path()));
    for (error, parts) in [
        (runtime.request("sofmax").unwrap_err(), ["`sofmax`", "softmax", "`ep query` lists all"]),
        (runtime.request("softmax").unwrap().dtype("src", "f33").unwrap_err(), ["f33", "f32", "f64"]),
        (
            runtime.request("softmax").unwrap().dtype("sorce", "f32").unwrap_err(),
            ["`sorce`", "\"src\"", "\"dst\""],
        ),
        (
            runtime.request("elementwise_unary").unwrap().selector("op", "rely").unwrap_err(),
            ["`rely`", "relu", "most similar"],
        ),
        (runtime.request("softmax").unwrap().limit("rows", 3).unwrap_err(), ["`rows`", "cols", "softmax"]),
        (runtime.device("cuda").unwrap_err(), ["no device `cuda`", "there are", "skew:0"]),
        (runtime.device("skew:1").unwrap_err(), ["no device `skew:1`", "there are", "skew:0"]),
        (runtime.deregister("y").unwrap_err(), ["`y`", "no provider instance", ""]),
    ] {
        assert_eq!(error.code(), Code::NotFound, "{error}");
        says(error.message(), &parts);
    }
}

#[test]
fn a_combination_that_nobody_has_is_unsupported_and_the_nearest_is_named() {
    let folder = folder();
    let runtime = load(&good(folder.path()));
    let device = runtime.device("skew").unwrap();
    let error = runtime.primitive::<Softmax>(device, SoftmaxDesc::new(DType::F16, DType::F32)).unwrap_err();
    assert_eq!(error.code(), Code::Unsupported);
    says(
        error.message(),
        &["softmax", "f16", "skew:0", "x/softmax.rows: needs src in [f32], but src is f16", "nearest", "f32"],
    );
    let unset =
        runtime.primitive::<Softmax>(device, SoftmaxDesc::new(DType::INVALID, DType::F32)).unwrap_err();
    assert_eq!(unset.code(), Code::InvalidArgument);
    says(unset.message(), &["softmax", "`src` is not set"]);
    // An op of the core that this provider does not have at all.
    let request = runtime.request("fill").unwrap().dtype("data", "f32").unwrap();
    let error = runtime.primitive_dyn(device, &request).unwrap_err();
    assert_eq!(error.code(), Code::Unsupported);
    says(error.message(), &["fill", "skew:0"]);
}

#[test]
fn wrong_devices_buffers_and_sizes_are_invalid_and_the_operand_is_named() {
    let folder = folder();
    let path = good(folder.path());
    let far = skew(folder.path(), "far", &[], &["-DSKEW_ID=\"far\"", "-DSKEW_SPACE=\"far\""]);
    let runtime = Runtime::builder().threads(1).provider("x", &path).provider("far", &far).build().unwrap();
    let (device, other) = (runtime.device("skew:0").unwrap(), runtime.device("skew:1").unwrap());
    let desc = SoftmaxDesc::new(DType::F32, DType::F32);
    let stranger = load(&path);
    let error = runtime.primitive::<Softmax>(stranger.device("skew").unwrap(), desc).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    says(error.message(), &["skew:0", "another runtime"]);

    let primitive = runtime.primitive::<Softmax>(device, desc.with_max_cols(2)).unwrap();
    let stream = device.stream().unwrap();
    let four = device.upload(&[0f32; 4]).unwrap();
    let bytes = device.upload(&[0u8; 16]).unwrap();
    let elsewhere = other.upload(&[0f32; 4]).unwrap();
    let unwritten = device.alloc(DType::F32, 4).unwrap();
    let mut dst = device.alloc(DType::F32, 4).unwrap();
    for (rows, cols, src, parts) in [
        (3, 2, &four, ["operand `src`", "has 16 bytes", "need 24"]),
        (2, 3, &four, ["`cols` is 3", "limit", "max_cols = 2"]),
        (-1, 2, &four, ["`rows` is -1", "must not be negative", ""]),
        (i64::MAX, 2, &four, ["operand `src`", "has 16 bytes", "need"]),
        (2, 2, &bytes, ["operand `src`", "is u8", "made for f32"]),
        (2, 2, &unwritten, ["operand `src`", "0..16 would be read", "upload or fill it first"]),
        (2, 2, &elsewhere, ["operand `src`", "is in `far` of skew:1", "copy it to a buffer of skew:0"]),
    ] {
        let call = SoftmaxCall { rows, cols, inner: 1, src, dst: &mut dst };
        let error = primitive.launch(&stream, call).expect_err(parts[0]);
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        says(error.message(), &parts);
    }
    let mut small = device.alloc(DType::F32, 3).unwrap();
    let call = SoftmaxCall { rows: 2, cols: 2, inner: 1, src: &four, dst: &mut small };
    let error = primitive.launch(&stream, call).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    says(error.message(), &["operand `dst`", "has 12 bytes", "need 16"]);
    let error = primitive
        .launch(
            &other.stream().unwrap(),
            SoftmaxCall { rows: 2, cols: 2, inner: 1, src: &four, dst: &mut dst },
        )
        .unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    says(error.message(), &["of skew:0", "of skew:1", "make the stream with that device's stream()"]);
    // The refusals have left nothing behind.
    primitive.launch(&stream, SoftmaxCall { rows: 2, cols: 2, inner: 1, src: &four, dst: &mut dst }).unwrap();
    assert_eq!(dst.download::<f32>().unwrap(), [0.5; 4]);
}

#[test]
fn out_of_memory_is_told_with_the_numbers_and_passes() {
    let folder = folder();
    let runtime = load(&good(folder.path()));
    let device = runtime.device("skew").unwrap();
    let held = device.alloc(DType::U8, 60 << 20).unwrap();
    let error = device.alloc(DType::U8, 8 << 20).unwrap_err();
    assert_eq!(error.code(), Code::OutOfMemory);
    let (asked, used, limit) =
        ((8u32 << 20).to_string(), (60u32 << 20).to_string(), (64u32 << 20).to_string());
    says(error.message(), &["skew:0", &asked, &used, &limit, "free some or ask for less"]);
    let error = device.alloc(DType::F64, usize::MAX).unwrap_err();
    assert_eq!(error.code(), Code::OutOfMemory);
    says(error.message(), &["f64", "2^64 bytes"]);
    assert_eq!(device.alloc(DType::U8, usize::MAX >> 1).unwrap_err().code(), Code::OutOfMemory);
    drop(held);
    device.alloc(DType::U8, 60 << 20).unwrap();
    assert_eq!(device.memory_stats().unwrap().in_use_bytes, 0);
    let error = device.alloc_pinned(DType::U8, 1).unwrap_err();
    assert_eq!(error.code(), Code::Unsupported);
    says(error.message(), &["use device memory"]);
}
