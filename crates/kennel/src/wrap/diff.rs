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
        let old = within(text, &range, &masks);
        let new = within(text, &range, &[edits, masks].concat());
        let line = text[..range.start].matches('\n').count() + 1;
        shown += &format!("@@ line {line} @@\n");
        shown += &marked('-', &old);
        shown += &marked('+', &new);
    }
    shown
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
