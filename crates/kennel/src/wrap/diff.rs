//! What would change, as commands: the former one with a minus, the new one with a plus. No line of the file
//! itself is shown, for it may hold anything; of a command, only what is known to be harmless ([`mask`]).

use super::entry::{Entry, Unreadable};
use super::mask;

/// The commands that differ between two readings of a file. `text` is what `before` was read from.
pub(crate) fn of(text: &str, before: &[Entry], after: &[Entry]) -> String {
    let mut shown = String::new();
    for (old, new) in before.iter().zip(after) {
        let (was, is) = (old.command(), new.command());
        if was == is {
            continue;
        }
        let line = Unreadable::at(text, old.at, "").line;
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

/// A word whose end can be seen, on one line.
fn readable(word: &str) -> String {
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && !"\"'\\".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => serde_json::to_string(word).expect("a text has a literal"),
    }
}
