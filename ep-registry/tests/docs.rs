//! What the documentation names exists, and what it shows is what is compiled.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every file under a folder whose name ends like this; build outputs and hidden folders left out.
fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            files(&path, ending, found);
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
}

#[test]
fn the_readme_shows_the_examples() {
    let readme = read(&root().join("README.md"));
    for path in ["ep-registry/examples/softmax.rs", "ep-ops/examples/tensors.rs"] {
        let example = read(&root().join(path));
        // The README leaves the line of module documentation out.
        let (_, program) = example.split_once("\n\n").unwrap();
        assert!(readme.contains(&format!("```rust\n{program}```")), "README.md and {path} differ");
        assert!(
            program.lines().filter(|line| !line.is_empty()).count() <= 15,
            "a host program takes 15 lines"
        );
    }
}

#[test]
fn the_guide_for_hosts_shows_the_example() {
    let guide = read(&root().join("docs/hosting.md"));
    let example = read(&root().join("ep-registry/examples/matmul_gather.rs"));
    let (_, program) = example.split_once("\n\n").unwrap();
    let (shown, _) = program.split_once("\n/// What both give").unwrap();
    assert!(
        guide.contains(&format!("```rust\n{shown}```")),
        "hosting.md and examples/matmul_gather.rs differ"
    );
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut documents = Vec::new();
    for folder in ["docs", "data"] {
        files(&root().join(folder), ".md", &mut documents);
    }
    documents.extend(["README.md", "CHANGELOG.md", "SECURITY.md"].map(|name| root().join(name)));
    let mut links = 0;
    for document in &documents {
        let text = read(document);
        for (_, rest) in text.match_indices("](").map(|(at, _)| text.split_at(at + 2)) {
            let target = rest.split(')').next().unwrap_or_default();
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { document.clone() } else { document.parent().unwrap().join(file) };
            assert!(path.exists(), "{} links to {target}, which does not exist", document.display());
            if !anchor.is_empty() {
                assert!(
                    anchors(&read(&path)).iter().any(|a| a == anchor),
                    "{} links to {target}, which has no such heading",
                    document.display()
                );
            }
            links += 1;
        }
    }
    assert!(documents.len() > 10 && links > 50, "{links} links in {} documents", documents.len());
}

/// The headings of a Markdown text as link targets.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let kept = line.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn the_rules_name_real_tests() {
    let mut sources = Vec::new();
    files(&root(), ".rs", &mut sources);
    let code: String = sources.iter().map(|path| read(path)).collect();
    let abi = read(&root().join("docs/abi.md"));
    let rows: Vec<&str> = abi.lines().filter(|line| line.starts_with("| checked by |")).collect();
    assert_eq!(rows.len(), 12, "one for each rule");
    for row in rows {
        // Quoted pieces are every second one.
        let quoted: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        let is_test = |q: &&&str| {
            q.contains('_') && q.chars().all(|c| c.is_ascii_lowercase() || "_0123456789".contains(c))
        };
        let tests: Vec<_> = quoted.iter().filter(is_test).collect();
        assert!(!tests.is_empty(), "no test is named in: {row}");
        for test in tests {
            assert!(
                code.contains(&format!("fn {test}(")),
                "docs/abi.md names the test `{test}`, which is gone"
            );
        }
    }
}
