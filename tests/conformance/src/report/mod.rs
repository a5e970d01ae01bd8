//! Reports for programs and people.

mod html;
mod junit;
pub mod matrix;

pub use html::html;
pub use junit::junit;

/// Text as XML and HTML want it, without the control characters that XML cannot hold.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() || ('\u{fffe}'..='\u{ffff}').contains(&c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_escaped() {
        assert_eq!(escaped("<a b=\"1\">&\u{1b}\n"), "&lt;a b=&quot;1&quot;&gt;&amp;\u{fffd}\n");
    }
}
