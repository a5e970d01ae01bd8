use super::*;
use ep_core::Code;
use proptest::prelude::*;
use std::fs;

const FULL: &str = r#"
[[provider]]
name = "onednn"
path = "lib/../libep_onednn.so"
sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
devices = ["cpu:*", "1"]
priority = -5
required = true
enabled = false
[provider.options]
text = "a b"
hex = 0x10
neg = -7
ratio = 1.5e3
on = true

[[provider]]
name = "cpu"
path = "/opt/libep_cpu.so"

[select]
softmax = ["onednn", "cpu"]
"*" = ["cpu"]

[search]
dirs = ["providers.d", "/usr/lib/ep"]
allow = ["libep_*"]
deny = ["*debug*"]

[runtime]
threads = 3
"#;

fn parse(text: &str) -> Result<Config> {
    Config::from_str(text, Path::new("/base"))
}

fn provider(extra: &str) -> String {
    format!("[[provider]]\nname = \"a\"\npath = \"a.so\"\n{extra}\n")
}

#[test]
fn every_key_is_read() {
    let config = parse(FULL).unwrap();
    let first = &config.providers[0];
    assert_eq!(first.name, "onednn");
    assert_eq!(first.path, Path::new("/base/lib/../libep_onednn.so"));
    assert_eq!(first.sha256, Some(Digest::of(b"abc")));
    assert_eq!((first.priority, first.required, first.enabled), (-5, true, false));
    let options: Vec<(&str, &str)> = first.options.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(options, [("hex", "16"), ("neg", "-7"), ("on", "true"), ("ratio", "1.5e3"), ("text", "a b")]);
    assert_eq!(config.providers[1], ProviderConfig::new("cpu", "/opt/libep_cpu.so"));
    assert_eq!(config.select["softmax"], ["onednn", "cpu"]);
    assert_eq!(config.select["*"], ["cpu"]);
    assert_eq!(config.search.dirs, [Path::new("/base/providers.d"), Path::new("/usr/lib/ep")]);
    assert_eq!(config.threads, NonZeroUsize::new(3));
    assert_eq!(parse("").unwrap(), Config::default());
}

#[test]
fn devices_are_chosen_by_index_or_glob() {
    let mut config = parse(FULL).unwrap().providers.remove(0);
    assert!(config.selects_device("cpu", 0) && config.selects_device("cuda", 1));
    assert!(!config.selects_device("cuda", 0) && !config.selects_device("cuda", 11));
    config.devices.clear();
    assert!(config.selects_device("anything", 9));
}

#[test]
fn search_patterns() {
    let search = parse(FULL).unwrap().search;
    assert_eq!(search.excludes(Path::new("/x/libep_a.so")), None);
    assert!(search.excludes(Path::new("/x/liba.so")).unwrap().contains("allow has only `libep_*`"));
    assert!(search.excludes(Path::new("/x/libep_debug.so")).unwrap().contains("deny has `*debug*`"));
    // A pattern without `/` is about the name, not about the folders above.
    assert_eq!(search.excludes(Path::new("/debug/libep_a.so")), None);
}

#[test]
fn relative_search_patterns_are_taken_from_the_folder_of_the_config() {
    let text = "[search]\nallow = [\"[a-z]/*\", \"./plugins/*\", \"?x/y\", \"*/x\", \"/y/*\"]\n\
                deny = [\"plugins/*debug*\", \"**/off/*\", \"name*\"]\n";
    let search = Config::from_str(text, Path::new("/base [1]")).unwrap().search;
    let texts = |patterns: &[Pattern]| patterns.iter().map(ToString::to_string).collect::<Vec<_>>();
    let allow = ["[a-z]/*", "/base [[]1[]]/./plugins/*", "?x/y", "*/x", "/y/*"];
    assert_eq!(texts(&search.allow), allow);
    assert_eq!(texts(&search.deny), ["/base [[]1[]]/plugins/*debug*", "**/off/*", "name*"]);
    assert!(search.excludes(Path::new("/base [1]/plugins/libdebug.so")).unwrap().contains("deny has"));
    assert_eq!(search.excludes(Path::new("/y/plugins/libdebug.so")), None);
    // The one of the root folder has no second slash.
    let root = Config::from_str("[search]\ndeny = [\"d/*\"]\n", Path::new("/")).unwrap().search;
    assert_eq!(texts(&root.deny), ["/d/*"]);
}

#[cfg(unix)]
#[test]
fn search_patterns_are_about_the_file_and_not_about_how_its_path_is_spelled() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let base = fs::canonicalize(dir.path()).unwrap();
    for folder in ["real", "other"] {
        fs::create_dir(base.join(folder)).unwrap();
    }
    for file in ["real/libdebug.so", "real/libfine.so", "other/libx.so"] {
        fs::write(base.join(file), "").unwrap();
    }
    symlink("../real/libdebug.so", base.join("other/libalias.so")).unwrap();
    symlink("../other/libx.so", base.join("real/libfar.so")).unwrap();
    symlink("real", base.join("way")).unwrap();
    let excludes = |lists: &str, path: &str| {
        let search = Config::from_str(&format!("[search]\n{lists}\n"), &base).unwrap().search;
        search.excludes(&base.join(path))
    };
    // Each of them is real/libdebug.so.
    for path in [
        "real/libdebug.so",
        "other/../real/libdebug.so",
        "way/libdebug.so",
        "other/libalias.so",
        "./way/libdebug.so",
    ] {
        for pattern in
            ["*debug*", "real/*debug*", "way/*debug*", "other/../real/libdebug.so", "other/libalias.so"]
        {
            let reason = excludes(&format!("deny = [{pattern:?}]"), path);
            assert!(reason.as_ref().is_some_and(|r| r.contains(pattern)), "{pattern} {path}: {reason:?}");
        }
        assert_eq!(excludes("deny = [\"real/libfine*\", \"*fine*\"]", path), None, "{path}");
        for pattern in ["libdebug*", "real/*", "way/*", "other/../real/*"] {
            assert_eq!(excludes(&format!("allow = [{pattern:?}]"), path), None, "{pattern} {path}");
        }
        let reason = excludes("allow = [\"other/*\", \"libalias.so\"]", path).unwrap();
        assert!(reason.contains("other/*`, `libalias.so`"), "{reason}");
        if path != "real/libdebug.so" {
            let real = format!(", and this is {}", base.join("real/libdebug.so").display());
            assert!(reason.ends_with(&real), "{reason}");
        }
    }
    // The name under which it is found is denied, and does not make it allowed.
    assert!(
        excludes("deny = [\"libalias*\"]", "other/libalias.so").unwrap().ends_with("deny has `libalias*`")
    );
    assert!(excludes("allow = [\"real/*\"]", "real/libfar.so").is_some());
    assert_eq!(excludes("allow = [\"other/*\"]", "real/libfar.so"), None);
}

#[test]
fn the_same_file_under_two_names_is_fine_and_one_name_twice_is_not() {
    let twice = provider("") + &provider("").replace("\"a\"", "\"b\"");
    assert_eq!(parse(&twice).unwrap().providers.len(), 2);
    let error = parse(&(provider("") + &provider(""))).unwrap_err();
    assert!(error.message().starts_with("config:6:8: a second provider is called `a`"), "{error}");
}

#[test]
fn wrong_texts_name_place_and_remedy() {
    for (text, needle) in [
        ("[provider]\nname = \"a\"".to_owned(), "write each `provider` as `[[provider]]`; this is a table"),
        ("provider = 3".to_owned(), "write each `provider` as `[[provider]]`"),
        ("provider = [3]".to_owned(), "config:1:13: write each"),
        (
            "providers = []".to_owned(),
            "config:1:1: unknown key `providers` in the top level; did you mean `provider`?",
        ),
        ("[serach]".to_owned(), "config:1:2: unknown key `serach` in the top level; did you mean `search`?"),
        (
            provider("prioritty = 1"),
            "config:4:1: unknown key `prioritty` in [[provider]]; did you mean `priority`?",
        ),
        ("zz = 1\naa = 2".to_owned(), "config:1:1: unknown key `zz`"),
        (provider("colour = 1"), "unknown key `colour` in [[provider]]; The keys are name, path"),
        (provider("priority = 2147483648"), "config:4:12: `priority` must be at least -2147483648"),
        (provider("priority = 99999999999999999999"), "`priority` must be at least"),
        (provider("priority = \"1\""), "`priority` must be an integer, and this is a string"),
        (provider("required = 1"), "`required` must be true or false, and this is an integer"),
        (provider("sha256 = \"12\""), "config:4:10: a SHA-256 is 64 hexadecimal digits, and this is 2"),
        (provider("devices = [\"a***\"]"), "`a***` is no glob: "),
        (provider("devices = \"cpu\""), "`devices` must be an array of strings, and this is a string"),
        (provider("options = { a = [1] }"), "`a` must be a string, number or boolean, and this is an array"),
        (provider("options = { a = 2000-01-01 }"), "this is a date or time"),
        (provider("options = 1"), "`options` must be a table, and this is an integer"),
        ("[[provider]]\nname = \"a\"".to_owned(), "config:1:1: [[provider]] has no `path`"),
        ("[[provider]]\npath = \"a\"".to_owned(), "[[provider]] has no `name`"),
        ("[[provider]]\npath = \"a\"\nname = \"a b\"".to_owned(), "config:3:8: a name consists of"),
        (
            "[[provider]]\npath = \"\"\nname = \"a\"".to_owned(),
            "config:2:8: a path has at least one character",
        ),
        ("[select]\nadd = []".to_owned(), "config:2:1: `add` lists no provider"),
        ("[select]\nadd = [\"a\", \"a\"]".to_owned(), "config:2:13: `a` is listed twice"),
        ("[select]\nadd = \"a\"".to_owned(), "`add` must be an array of strings"),
        ("[search]\ndir = []".to_owned(), "unknown key `dir` in [search]; did you mean `dirs`?"),
        ("[runtime]\nthreads = 0".to_owned(), "config:2:11: `threads` must be at least 1"),
        ("a = 1\n[select\n".to_owned(), "config:2:8: "),
        ("[runtime]\nthreads = 1\nthreads = 2".to_owned(), "config:3:1: duplicate key"),
        ("x = \"\u{1}\"".to_owned(), "config:1:"),
        (format!("x = {}", "[".repeat(10_000)), "config:1:"),
        ("a.".repeat(10_000) + "b = 1", "config:1:"),
    ] {
        let error = parse(&text).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        let clipped: String = text.chars().take(80).collect();
        assert!(error.message().contains(needle), "{clipped}\n{error}");
        assert_eq!(error.message().lines().count(), 4, "{error}");
        assert!(error.message().len() < 800, "{error}");
    }
}

#[test]
fn the_message_as_a_whole() {
    let error = parse(&provider("requird = true")).unwrap_err();
    assert_eq!(
        error.message(),
        "config:4:1: unknown key `requird` in [[provider]]; did you mean `required`? The keys are name, path, \
         sha256, devices, priority, required, enabled, options\n  |\n4 | requird = true\n  | ^^^^^^^"
    );
}

#[test]
fn files_are_read_and_paths_are_relative_to_them() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ep.toml");
    fs::write(&file, provider("")).unwrap();
    let config = Config::from_file(&file).unwrap();
    assert_eq!(config.providers[0].path, dir.path().join("a.so"));
    assert_eq!(config.file.as_deref(), Some(file.as_path()));

    fs::write(&file, "x = ").unwrap();
    let error = Config::from_file(&file).unwrap_err();
    assert!(error.message().starts_with(&format!("{}:1:", file.display())), "{error}");
    fs::write(&file, b"# caf\xe9").unwrap();
    assert!(Config::from_file(&file).unwrap_err().message().contains("byte 5 is not UTF-8"));
    fs::write(&file, vec![b'\n'; (1 << 20) + 1]).unwrap();
    assert!(Config::from_file(&file).unwrap_err().message().contains("is longer than"));
    let error = Config::from_file(&dir.path().join("none.toml")).unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    // Nothing here reads EP_CONFIG, so it is no remedy.
    let init = format!("ep init --output {}", dir.path().join("none.toml").display());
    assert!(error.message().contains(&init) && !error.message().contains("EP_CONFIG"), "{error}");
    assert_eq!(Config::from_file(dir.path()).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(Config::from_str("", Path::new("rel")).unwrap_err().code(), Code::InvalidArgument);
}

#[cfg(unix)]
#[test]
fn a_config_that_everybody_may_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ep.toml");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(Config::from_file(&file).unwrap_err().code(), Code::Refused);
    Config::from_file_with(&file, &Policy::permissive()).unwrap();
}

#[test]
fn the_first_config_in_order_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        path
    };
    let (explicit, env, system) = (make("explicit.toml"), make("env.toml"), make("etc/ep.toml"));
    let (xdg, home) = (make("xdg/ep/ep.toml"), make("home/.config/ep/ep.toml"));
    let find = |explicit: Option<&Path>, vars: &[(&str, &Path)]| {
        let var = |name: &str| vars.iter().find(|v| v.0 == name).map(|v| v.1.as_os_str().to_owned());
        Config::find_with(explicit, false, &var, &system)
    };
    let (xdg_home, user) = (dir.path().join("xdg"), dir.path().join("home"));
    let vars =
        [("EP_CONFIG", env.as_path()), ("XDG_CONFIG_HOME", xdg_home.as_path()), ("HOME", user.as_path())];
    assert_eq!(find(Some(&explicit), &vars).unwrap(), Some(explicit.clone()));
    assert_eq!(find(None, &vars).unwrap(), Some(env.clone()));
    assert_eq!(find(None, &vars[1..]).unwrap(), Some(xdg.clone()));
    assert_eq!(find(None, &vars[2..]).unwrap(), Some(home.clone()));
    assert_eq!(find(None, &[]).unwrap(), Some(system.clone()));
    // A relative folder in the environment would depend on the current one, so it does not count.
    assert_eq!(find(None, &[("XDG_CONFIG_HOME", Path::new("xdg"))]).unwrap(), Some(system.clone()));
    fs::remove_file(&xdg).unwrap();
    assert_eq!(find(None, &vars[1..2]).unwrap(), Some(system.clone()));
    fs::remove_file(&system).unwrap();
    assert_eq!(find(None, &[]).unwrap(), None);

    let gone = dir.path().join("gone.toml");
    let error = find(None, &[("EP_CONFIG", &gone)]).unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    let init = format!("ep init --output {}", gone.display());
    assert!(error.message().contains("EP_CONFIG") && error.message().contains(&init), "{error}");
    assert!(find(Some(&gone), &vars).unwrap_err().message().contains("was asked for"));
}

#[test]
fn the_current_folder_counts_only_when_asked_for() {
    // The tests run in the folder of the crate, which has no ep.toml.
    let nothing = |_: &str| None;
    let gone = Path::new("/nonexistent/ep.toml");
    assert!(!Path::new("ep.toml").exists());
    assert_eq!(Config::find_with(None, true, &nothing, gone).unwrap(), None);
    // Cargo.toml stands in for a config there: found when named, as an absolute path.
    let named = Config::find_with(Some(Path::new("Cargo.toml")), false, &nothing, gone).unwrap().unwrap();
    assert!(named.is_absolute() && named.ends_with("Cargo.toml"));
}

proptest! {
    #[test]
    fn no_text_panics(text in "[a-z=\\[\\]\"'{}., \t\r\n#0-9é\\\\]{0,80}") {
        let _ = parse(&text);
    }

    #[test]
    fn no_damage_panics(at in 0..FULL.len(), with in any::<char>()) {
        let mut text = FULL.to_owned();
        text.replace_range(at..at + 1, with.encode_utf8(&mut [0; 4]));
        if let Err(error) = parse(&text) {
            prop_assert!(error.message().starts_with("config:"));
        }
    }

    #[test]
    fn option_values_come_through(number: i64, text in "[ -~&&[^\"\\\\]]{0,20}") {
        let config = parse(&provider(&format!("options = {{ n = {number}, t = \"{text}\" }}"))).unwrap();
        let options = &config.providers[0].options;
        prop_assert_eq!(&options["n"], &number.to_string());
        prop_assert_eq!(&options["t"], &text);
    }
}
