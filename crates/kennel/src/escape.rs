//! Names and words come from others: nothing in them may move the cursor, or turn the line around.

/// On one line.
#[cfg_attr(
    any(not(target_os = "linux"), kennel_unserved),
    expect(dead_code, reason = "nothing is shown there but what went wrong")
)]
pub(crate) fn printable(text: &str) -> String {
    escaped(text, |_| false)
}

/// What may have several lines.
pub(crate) fn printable_lines(text: &str) -> String {
    escaped(text, |char| matches!(char, '\n' | '\t'))
}

fn escaped(text: &str, but: impl Fn(char) -> bool) -> String {
    let moves = |char: char| {
        let turns = matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        char.is_control() || turns || matches!(char, '\u{2028}' | '\u{2029}')
    };
    if !text.chars().any(moves) {
        return text.to_owned();
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for char in text.chars() {
        match moves(char) && !but(char) {
            true => shown.extend(char.escape_default()),
            false => shown.push(char),
        }
    }
    shown
}
