//! The changes as commands: the old one with a minus, the new one with a plus. Shows no line of the file itself, which
//! may contain anything, and only those words of a command that are known to be harmless ([`mask`]).

use super::entry::{Entry, LineCounter};
use super::mask;

/// The commands that differ between two versions of a file. `text` is the file that `before` was read from.
pub(crate) fn of(text: &str, before: &[Entry], after: &[Entry]) -> String {
    let mut shown = String::new();
    let mut lines = LineCounter::new(text);
    for (old, new) in before.iter().zip(after) {
        let (was, is) = (old.command(), new.command());
        if was == is {
            continue;
        }
        let line = lines.line_of(old.at);
        shown += &format!(
            "@@ line {line}: {} @@\n",
            old.name.replace(['\n', '\r'], " ")
        );
        for (mark, command) in [('-', was), ('+', is)] {
            let words = mask::shown(&command.unwrap_or_default());
            let words: Vec<String> = words.iter().map(|word| readable(word)).collect();
            shown += &format!("{mark}{}\n", words.join(" "));
        }
    }
    shown
}

/// A word on one line, with its end visible.
fn readable(word: &str) -> String {
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && !"\"'\\".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => serde_json::to_string(word).expect("a string can be serialized"),
    }
}
