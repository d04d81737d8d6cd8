//! What would change, as lines: those that go with a minus, those that come with a plus. The values of
//! variables are not shown.

use std::ops::Range;

use super::entry::{Edit, apply};
use super::splice::line_start;

/// What stands for the value of a variable.
const HIDDEN: &str = "\"…\"";

/// The lines that the edits change.
pub(crate) fn of(text: &str, edits: &[Edit], secrets: &[Range<usize>]) -> String {
    let mut sorted: Vec<&Edit> = edits.iter().collect();
    sorted.sort_by_key(|edit| edit.span.start);
    let mut hunks: Vec<(Range<usize>, Vec<Edit>)> = Vec::new();
    for edit in sorted {
        let lines = line_start(text, edit.span.start)..line_end(text, edit.span.end);
        match hunks.last_mut() {
            Some((range, edits)) if lines.start <= range.end => {
                range.end = range.end.max(lines.end);
                edits.push(edit.clone());
            }
            _ => hunks.push((lines, vec![edit.clone()])),
        }
    }
    let mut shown = String::new();
    for (range, edits) in hunks {
        let masks = secrets
            .iter()
            .filter(|secret| range.start <= secret.start && secret.end <= range.end)
            .map(|secret| Edit {
                span: secret.clone(),
                text: HIDDEN.to_owned(),
            });
        let masks: Vec<Edit> = masks.collect();
        let old = without_secrets(&within(text, &range, &masks));
        let new = without_secrets(&within(text, &range, &[edits, masks].concat()));
        let line = text[..range.start].matches('\n').count() + 1;
        shown += &format!("@@ line {line} @@\n");
        shown += &marked('-', &old);
        shown += &marked('+', &new);
    }
    shown
}

/// What a name is made of whose value is nobody's business.
const SENSITIVE: [&str; 7] = [
    "token",
    "key",
    "secret",
    "passw",
    "auth",
    "credential",
    "cookie",
];

fn is_sensitive(name: &str) -> bool {
    let name = name.to_lowercase();
    // Ours: names follow it, and no values.
    name != "--env-key" && SENSITIVE.iter().any(|part| name.contains(part))
}

/// A diff is looked at over shoulders, and pasted: what is quoted behind a name like `--api-key` is not shown, nor
/// what stands behind its `=`.
fn without_secrets(text: &str) -> String {
    let mut shown = String::new();
    let mut before = String::new();
    let mut rest = text;
    while let Some((start, end)) = next_quoted(rest) {
        let quoted = &rest[start + 1..end];
        shown += &rest[..=start];
        shown += &match quoted.split_once('=') {
            Some((name, _)) if is_sensitive(name) => format!("{name}=…"),
            _ if is_sensitive(&before) && !quoted.starts_with('-') => "…".to_owned(),
            _ if quoted.starts_with("Bearer ") => "Bearer …".to_owned(),
            _ => quoted.to_owned(),
        };
        // What names something is followed by it; what is named names nothing.
        before = match is_sensitive(&before) && !quoted.starts_with('-') {
            true => String::new(),
            false => quoted.to_owned(),
        };
        shown += &rest[end..=end];
        rest = &rest[end + 1..];
    }
    shown + rest
}

/// Where the next quoted text begins and ends, at its quotes.
fn next_quoted(text: &str) -> Option<(usize, usize)> {
    let start = text.find(['"', '\''])?;
    let quote = text[start..].chars().next()?;
    let mut escaped = false;
    let end = text[start + 1..].char_indices().find(|&(_, char)| {
        let ends = char == quote && !escaped;
        escaped = char == '\\' && !escaped;
        ends
    })?;
    Some((start, start + 1 + end.0))
}

/// The part of a text with the edits made in it.
fn within(text: &str, range: &Range<usize>, edits: &[Edit]) -> String {
    let moved = edits.iter().map(|edit| Edit {
        span: edit.span.start - range.start..edit.span.end - range.start,
        text: edit.text.clone(),
    });
    apply(&text[range.clone()], &moved.collect::<Vec<_>>())
}

fn marked(mark: char, lines: &str) -> String {
    lines
        .lines()
        .map(|line| format!("{mark}{line}\n"))
        .collect()
}

fn line_end(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |end| at + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_like_a_secret_is_not_shown() {
        for (line, shown) in [
            (
                r#""args": ["x", "--api-key", "s3", "y"]"#,
                r#""args": ["x", "--api-key", "…", "y"]"#,
            ),
            (
                r#"["--token=s3", "--port=80"]"#,
                r#"["--token=…", "--port=80"]"#,
            ),
            (
                r#"{"oauthToken":"s3","command":"npx"}"#,
                r#"{"oauthToken":"…","command":"npx"}"#,
            ),
            (r#""Authorization": "Bearer s3""#, r#""Authorization": "…""#),
            (r#""h": "Bearer s3\"4""#, r#""h": "Bearer …""#),
            (r#"["--auth", "--verbose"]"#, r#"["--auth", "--verbose"]"#),
            (
                r#"["--env-key", "TOKEN,LOG"]"#,
                r#"["--env-key", "TOKEN,LOG"]"#,
            ),
            ("it's", "it's"),
        ] {
            assert_eq!(without_secrets(line), shown);
        }
    }

    #[test]
    fn changed_lines_are_shown_and_the_values_of_variables_are_not() {
        let text = "a\n{\"c\": \"x\", \"env\": {\"T\": \"secret\"}}\nb\n";
        let x = text.find("\"x\"").unwrap();
        let secret = text.find("\"secret\"").unwrap();
        let edit = Edit {
            span: x..x + 3,
            text: "\"y\"".to_owned(),
        };
        let secret = secret..secret + "\"secret\"".len();
        let shown = of(text, &[edit], std::slice::from_ref(&secret));
        assert_eq!(
            shown,
            "@@ line 2 @@\n-{\"c\": \"x\", \"env\": {\"T\": \"…\"}}\n+{\"c\": \"y\", \"env\": {\"T\": \"…\"}}\n"
        );
    }
}
