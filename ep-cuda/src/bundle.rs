//! Kernels of one source that are compiled as one program.
//!
//! The compiler takes some 40 ms for any program at all, and as much again for headers; and functions that several kernels
//! have are read and checked once. So filling the cache compiles up to [`MOST`] kernels together, which takes about three
//! quarters of the time, and gives the same instructions. A kernel that a launch waits for is compiled alone.
//!
//! What headers read must be the same for all: those macros are options, and the headers stand in front. What the source
//! itself reads is defined before its text and undefined behind it, in a namespace for each kernel.

use crate::cache::Key;
use crate::compiler::{self, Source, Spec};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt::Write;

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

/// Whether a text has this word outside of comments to the end of a line.
fn has_word(text: &str, word: &str) -> bool {
    let of_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let code = text.lines().map(|line| line.split("//").next().unwrap_or(line));
    code.flat_map(|line| line.split(|c| !of_word(c))).any(|found| found == word)
}

/// The macros of a kernel that its headers read, and those that only its source does.
fn shared_and_own(spec: &Spec, known: &mut HashMap<(&str, &'static str), bool>) -> (Vec<Macro>, Vec<Macro>) {
    let source = spec.source;
    let mut is_shared = |name: &'static str| {
        *known.entry((source.name, name)).or_insert_with(|| {
            has_word(parts(source.text).0, name)
                || compiler::headers(source).iter().any(|(_, text)| has_word(text, name))
        })
    };
    spec.macros.iter().cloned().partition(|(name, _)| is_shared(name))
}

/// Groups kernels that can be compiled together, in the order of the first of each.
pub(crate) fn group(specs: Vec<Spec>) -> Vec<Vec<Spec>> {
    let mut known = HashMap::new();
    let mut open: HashMap<(&str, Vec<Macro>), usize> = HashMap::new();
    let mut groups: Vec<Vec<Spec>> = Vec::new();
    for spec in specs {
        let (shared, _) = shared_and_own(&spec, &mut known);
        let at = open.entry((spec.source.name, shared)).or_insert(groups.len());
        if groups.get(*at).is_none_or(|group| group.len() == MOST) {
            *at = groups.len();
            groups.push(Vec::new());
        }
        groups[*at].push(spec);
    }
    groups
}

/// The name of a kernel in a bundle.
fn name(source: &Source, number: usize) -> String {
    format!("{}_{number}", source.entry)
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
        let mut known = HashMap::new();
        let (shared, _) = shared_and_own(&specs[0], &mut known);
        let mut text = head.to_owned();
        let mut key = Sha256::new();
        key.update(b"bundle");
        let mut members = Vec::new();
        let line = head.lines().count() + 1;
        for (number, spec) in specs.iter().enumerate() {
            let (_, own) = shared_and_own(spec, &mut known);
            let name = name(source, number);
            let body = body.replace(&format!("{}(", source.entry), &format!("{name}("));
            for (name, value) in &own {
                let _never = writeln!(text, "#define {name} {value}");
            }
            let _never = writeln!(text, "namespace kernel_{number} {{\n#line {line} \"{}\"", source.name);
            text.push_str(&body);
            text.push_str("}\n");
            for (name, _) in &own {
                let _never = writeln!(text, "#undef {name}");
            }
            key.update(spec.key());
            members.push((spec.key(), name));
        }
        let options = Spec { source, macros: shared }.options();
        Program { key: key.finalize().into(), text, options, members }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiler::Arch;
    use crate::warm;
    use std::collections::HashSet;

    const HOPPER: Arch = Arch::new(9, 0);

    #[test]
    fn words_are_whole() {
        assert!(has_word("a EP_X;", "EP_X") && has_word("EP_X", "EP_X") && has_word("EP_XY, EP_X", "EP_X"));
        assert!(!has_word("EP_XY AEP_X EP_X_ // EP_X", "EP_X") && has_word("// EP_X\nEP_X", "EP_X"));
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
        let mut known = HashMap::new();
        for group in &groups {
            let shared: HashSet<_> =
                group.iter().map(|s| (s.source.name, shared_and_own(s, &mut known).0)).collect();
            assert_eq!(shared.len(), 1, "{shared:?}");
        }
    }

    /// What cutting and renaming take for granted.
    #[test]
    fn sources_define_nothing_behind_their_headers_and_name_their_kernel_once() {
        let all = warm::kernels(HOPPER, None).unwrap();
        let sources: HashMap<_, _> = all.iter().map(|spec| (spec.source.name, spec.source)).collect();
        assert!(sources.len() > 20);
        for source in sources.values() {
            let (head, body) = parts(source.text);
            assert!(!body.contains("#define") && !body.contains("#undef"), "{}", source.name);
            assert!(!has_word(head, source.entry), "{}", source.name);
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
             #define EP_OP a\n#define EP_T int\nnamespace kernel_0 {\n#line 2 \"x.cu\"\nEP_OP void ep_x_0(EP_T t);\n}\n\
             #undef EP_OP\n#undef EP_T\n\
             #define EP_OP b\nnamespace kernel_1 {\n#line 2 \"x.cu\"\nEP_OP void ep_x_1(EP_T t);\n}\n#undef EP_OP\n"
        );
        assert_eq!(program.options, ["--std=c++17", "-DEP_LOOSE=1"]);
        let (first, second) = (spec("a").with("EP_T", "int").key(), spec("b").key());
        assert_eq!(program.members, [(first, "ep_x_0".to_owned()), (second, "ep_x_1".to_owned())]);
        let others =
            [Program::new(&[spec("b"), spec("a").with("EP_T", "int")]).key, Program::new(&[spec("b")]).key];
        assert!(!others.contains(&program.key) && others[1] != second);
    }
}
