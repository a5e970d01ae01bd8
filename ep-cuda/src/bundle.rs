//! Kernels of one source that are compiled as one program.
//!
//! The compiler takes some 40 ms for any program at all, and as much again for headers. So filling the cache compiles up to
//! [`MOST`] kernels together, which takes a sixth less time and gives the same instructions. A kernel that a launch waits for
//! is compiled alone.
//!
//! Macros that headers read must be the same for all: they are options, and the headers stand in front. What only the source
//! reads is defined before each copy of its text and undefined behind it; each copy is in a namespace of its own.

use crate::cache::Key;
use crate::compiler::{self, Source, Spec};
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};

/// Kernels in a bundle: of more the driver would load much that a program may not need.
const MOST: usize = 16;

/// Name and value of a macro.
type Macro = (&'static str, String);

/// The parts of a source: what stands in front of its last `#include` and with it, and the rest.
fn parts(text: &str) -> (&str, &str) {
    let last =
        text.rfind("#include").map_or(0, |at| text[at..].find('\n').map_or(text.len(), |n| at + n + 1));
    text.split_at(last)
}

/// The words of a text outside of comments to the end of a line.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let of_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let code = text.lines().map(|line| line.split("//").next().unwrap_or(line));
    code.flat_map(move |line| line.split(move |c| !of_word(c))).filter(|word| !word.is_empty())
}

/// All words of a source's headers, and of what stands before them.
pub(crate) fn words_of_headers(
    text: &'static str,
    headers: &[(&str, &'static str)],
) -> HashSet<&'static str> {
    headers.iter().map(|(_, text)| *text).chain([parts(text).0]).flat_map(words).collect()
}

/// The macros of a kernel that its headers read, and those that only its source does.
fn shared_and_own(spec: &Spec) -> (Vec<Macro>, Vec<Macro>) {
    let words = compiler::words_of_headers(spec.source);
    spec.macros.iter().cloned().partition(|(name, _)| words.contains(name))
}

/// Groups kernels that can be compiled together, in the order of the first of each.
pub(crate) fn group(specs: Vec<Spec>) -> Vec<Vec<Spec>> {
    let mut open: HashMap<(*const Source, Vec<Macro>), usize> = HashMap::new();
    let mut groups: Vec<Vec<Spec>> = Vec::new();
    for spec in specs {
        let (shared, _) = shared_and_own(&spec);
        let at = open.entry((spec.source, shared)).or_insert(groups.len());
        if groups.get(*at).is_none_or(|group| group.len() == MOST) {
            *at = groups.len();
            groups.push(Vec::new());
        }
        groups[*at].push(spec);
    }
    groups
}

/// A program with several kernels.
pub(crate) struct Program {
    /// What decides about its code, except for architecture and compiler.
    pub key: Key,
    /// CUDA C++.
    pub text: String,
    /// For the compiler.
    pub options: Vec<String>,
    /// Each kernel's own key, and its name in the program.
    pub members: Vec<(Key, String)>,
}

impl Program {
    /// Of kernels of one group, one at least.
    pub(crate) fn new(specs: &[Spec]) -> Program {
        let source = specs[0].source;
        let (head, body) = parts(source.text);
        let (shared, _) = shared_and_own(&specs[0]);
        let mut text = head.to_owned();
        let mut members = Vec::new();
        let line = head.lines().count() + 1;
        for (number, spec) in specs.iter().enumerate() {
            let (also_shared, own) = shared_and_own(spec);
            assert!(std::ptr::eq(spec.source, source) && also_shared == shared, "{spec} is of another group");
            let name = format!("{}_{number}", source.entry);
            let body = body.replace(&format!("{}(", source.entry), &format!("{name}("));
            let mut add = |line: String| text.extend([line.as_str(), "\n"]);
            own.iter().for_each(|(name, value)| add(format!("#define {name} {value}")));
            add(format!("namespace kernel_{number} {{\n#line {line} \"{}, kernel {number}\"", source.name));
            add(format!("{body}\n}}"));
            own.iter().for_each(|(name, _)| add(format!("#undef {name}")));
            members.push((spec.key(), name));
        }
        let options = Spec { source, macros: shared }.options();
        // The keys of the kernels have headers in them.
        let mut key = Sha256::new();
        key.update(&text);
        members.iter().for_each(|(key_of_one, _)| key.update(key_of_one));
        Program { key: key.finalize().into(), text, options, members }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiler::Arch;
    use crate::warm;

    const HOPPER: Arch = Arch::new(9, 0);

    #[test]
    fn words_are_whole_and_none_of_comments() {
        let of = |text| words(text).collect::<Vec<_>>();
        assert_eq!(of("a(EP_X);EP_XY+1 // EP_Y\n  b\n//EP_Z"), ["a", "EP_X", "EP_XY", "1", "b"]);
    }

    #[test]
    fn a_source_is_cut_behind_its_last_include() {
        assert_eq!(
            parts("// x\n#include \"a\"\n#include \"b\"\nint x;\n"),
            ("// x\n#include \"a\"\n#include \"b\"\n", "int x;\n")
        );
        assert_eq!(parts("int x;"), ("", "int x;"));
        assert_eq!(parts("#include \"a\""), ("#include \"a\"", ""));
    }

    #[test]
    fn every_kernel_is_in_one_group_of_its_like() {
        let all = warm::kernels(HOPPER, None).unwrap();
        let keys: HashSet<Key> = all.iter().map(Spec::key).collect();
        let count = all.len();
        let groups = group(all);
        let grouped: HashSet<Key> = groups.iter().flatten().map(Spec::key).collect();
        assert_eq!((groups.iter().map(Vec::len).sum::<usize>(), &grouped), (count, &keys));
        assert!(groups.iter().all(|group| (1..=MOST).contains(&group.len())));
        assert!(groups.len() < count / 4, "{}", groups.len());
        // It checks that they are of one source and share what headers read.
        groups.iter().for_each(|group| assert_eq!(Program::new(group).members.len(), group.len()));
    }

    /// Names of functions of a text, which begin a line with what is in front of them.
    fn functions(text: &str) -> HashSet<&str> {
        let of_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let lines = text.lines().filter(|line| line.contains("EP_DEVICE ") && !line.starts_with('#'));
        lines.filter_map(|line| line.split('(').next()?.rsplit(|c| !of_word(c)).next()).collect()
    }

    /// In their namespace they would hide those of the headers, where alone they overload them.
    #[test]
    fn no_function_of_a_source_has_the_name_of_one_of_its_headers() {
        let all = warm::kernels(HOPPER, None).unwrap();
        let sources: HashMap<_, _> = all.iter().map(|spec| (spec.source.name, spec.source)).collect();
        let mut count = 0;
        for source in sources.values() {
            let own = functions(parts(source.text).1);
            count += own.len();
            for (name, text) in compiler::headers(source).iter() {
                let both: Vec<_> = functions(text).intersection(&own).copied().collect();
                assert!(both.is_empty(), "{} and {name}: {both:?}", source.name);
            }
        }
        assert!(
            count > 30 && functions(include_str!("../kernels/rows.cuh")).contains("load_row_apart"),
            "{count}"
        );
    }

    /// What cutting and renaming take for granted.
    #[test]
    fn sources_define_nothing_behind_their_headers_and_name_their_kernel_once() {
        let all = warm::kernels(HOPPER, None).unwrap();
        let sources: HashMap<_, _> = all.iter().map(|spec| (spec.source.name, spec.source)).collect();
        assert!(sources.len() > 20);
        assert!(all.iter().flat_map(|spec| &spec.macros).all(|(_, value)| !value.contains("EP_")));
        for source in sources.values() {
            let (head, body) = parts(source.text);
            assert!(!body.contains("#define") && !body.contains("#undef"), "{}", source.name);
            assert!(!head.contains(source.entry), "{}", source.name);
            let calls = body.matches(&format!("{}(", source.entry)).count();
            let words = body.match_indices(source.entry).count();
            assert!(
                calls >= 1 && calls == words && calls == body.matches("__global__").count(),
                "{}",
                source.name
            );
        }
    }

    #[test]
    fn a_program_has_each_kernel_with_its_macros_by_its_name() {
        static SOURCE: Source = Source {
            name: "x.cu",
            text: "#include \"common.cuh\"\nEP_OP void ep_x(EP_T t);\n",
            entry: "ep_x",
        };
        let spec = |op: &str| Spec::new(&SOURCE).with("EP_LOOSE", 1).with("EP_OP", op);
        let program = Program::new(&[spec("a").with("EP_T", "int"), spec("b")]);
        assert_eq!(
            program.text,
            "#include \"common.cuh\"\n\
             #define EP_OP a\n#define EP_T int\nnamespace kernel_0 {\n#line 2 \"x.cu, kernel 0\"\n\
             EP_OP void ep_x_0(EP_T t);\n\n}\n#undef EP_OP\n#undef EP_T\n\
             #define EP_OP b\nnamespace kernel_1 {\n#line 2 \"x.cu, kernel 1\"\n\
             EP_OP void ep_x_1(EP_T t);\n\n}\n#undef EP_OP\n"
        );
        assert_eq!(program.options, ["--std=c++17", "-DEP_LOOSE=1"]);
        let (first, second) = (spec("a").with("EP_T", "int").key(), spec("b").key());
        assert_eq!(program.members, [(first, "ep_x_0".to_owned()), (second, "ep_x_1".to_owned())]);
        let others =
            [Program::new(&[spec("b"), spec("a").with("EP_T", "int")]).key, Program::new(&[spec("b")]).key];
        assert!(!others.contains(&program.key) && others[1] != second);
    }
}
