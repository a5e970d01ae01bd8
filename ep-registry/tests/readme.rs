//! What the README shows is what CI runs.

#[test]
fn the_host_program_is_the_example() {
    let readme = include_str!("../../README.md");
    let example = include_str!("../examples/softmax.rs");
    // The README leaves the line of module documentation out.
    let (_, program) = example.split_once("\n\n").unwrap();
    assert!(readme.contains(&format!("```rust\n{program}```")), "README.md and examples/softmax.rs differ");
    assert!(program.lines().filter(|line| !line.is_empty()).count() <= 15, "it is called a 15-line program");
}
