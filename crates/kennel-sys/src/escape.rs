//! Escapes text from outside for a terminal or a log: names, commands, paths and server output may contain characters that
//! move the cursor, change the terminal, or reverse the text direction.

use std::path::Path;

/// Escapes text for one line.
pub fn printable(text: &str) -> String {
    escaped(text, |_| false, push_plain)
}

/// Escapes text that may have several lines.
pub fn printable_lines(text: &str) -> String {
    escaped(text, |char| matches!(char, '\n' | '\t'), push_plain)
}

/// Escapes JSON text without changing its meaning. Only strings can contain such characters.
pub fn json(text: &str) -> String {
    escaped(text, |char| char == '\n', push_json)
}

/// Escapes a path for one line.
pub fn path(path: &Path) -> String {
    printable(&path.display().to_string())
}

fn escaped(text: &str, but: impl Fn(char) -> bool, push: impl Fn(&mut String, char)) -> String {
    if !text.chars().any(is_unsafe) {
        return text.to_owned();
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for char in text.chars() {
        match is_unsafe(char) && !but(char) {
            true => push(&mut shown, char),
            false => shown.push(char),
        }
    }
    shown
}

/// Control characters (C0 and C1), and characters that change the text direction or end a line.
fn is_unsafe(char: char) -> bool {
    let turns = matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    char.is_control() || turns || matches!(char, '\u{2028}' | '\u{2029}')
}

fn push_plain(shown: &mut String, char: char) {
    shown.extend(char.escape_default());
}

fn push_json(shown: &mut String, char: char) {
    shown.push_str(&format!("\\u{:04x}", u32::from(char)));
}

#[cfg(test)]
mod tests {
    use super::*;

    const NASTY: &str = "a\x1b]0;b\x07\u{9b}31m\r\u{202e}c\u{7f}\td\n";

    #[test]
    fn no_terminal_control_sequence_is_left() {
        assert_eq!(
            printable(NASTY),
            "a\\u{1b}]0;b\\u{7}\\u{9b}31m\\r\\u{202e}c\\u{7f}\\td\\n"
        );
        let lines = printable_lines(NASTY);
        assert!(lines.ends_with("\td\n"), "{lines:?}");
        assert!(!lines.chars().any(|char| char == '\x1b' || char == '\r'));
        // Escaping twice changes nothing, and harmless text stays as it is.
        assert_eq!(printable(&printable(NASTY)), printable(NASTY));
        assert_eq!(printable("größe 日本 🐕"), "größe 日本 🐕");
    }

    #[test]
    fn escaped_json_has_the_same_meaning() {
        let text = json(&format!(
            "{{\"name\": \"{}\"}}\n",
            "\u{9b}31m\u{202e}\u{7f}"
        ));
        assert_eq!(text, "{\"name\": \"\\u009b31m\\u202e\\u007f\"}\n");
    }
}
