//! The change of an entry: puts Kennel before a command, and removes it. Only `command` and `args` change, and the
//! words in them keep their notation.

use std::path::Path;

use super::entry::{Args, Edit, Entry, Layout, List, Start, Word};

/// The options that every released version knows: an older program must not fail on an entry written by a newer one.
pub(crate) const OPTIONS: &[&str] = &["--cwd", "--env-key"];

/// The words before a command: `kennel`, `run`, options, and `--`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prefix {
    pub(crate) program: String,
    pub(crate) words: Vec<String>,
}

impl Prefix {
    pub(crate) fn new(program: &str, cwd: Option<&str>, env_key: &[String]) -> Prefix {
        let mut words = vec!["run".to_owned()];
        if let Some(cwd) = cwd {
            words.extend(["--cwd".to_owned(), cwd.to_owned()]);
        }
        if !env_key.is_empty() {
            words.extend(["--env-key".to_owned(), env_key.join(",")]);
        }
        words.push("--".to_owned());
        Prefix {
            program: program.to_owned(),
            words,
        }
    }
}

/// Kennel's words at the beginning of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KennelPrefix {
    /// The path of Kennel's program.
    pub(crate) program: String,
    /// The index of the server's first word in the whole command.
    pub(crate) server: usize,
    /// Whether it has options that `wrap` does not write.
    pub(crate) own_options: bool,
}

impl KennelPrefix {
    /// Whether that program is missing: the app cannot start the server.
    pub(crate) fn is_gone(&self) -> bool {
        let program = Path::new(&self.program);
        program.is_absolute() && !program.exists()
    }
}

/// Whether this command runs Kennel at all: `run NAME`, `guard` and all others.
pub(crate) fn is_kennel(command: &[String]) -> bool {
    let program = command.first().map(Path::new);
    program
        .and_then(Path::file_name)
        .is_some_and(|name| name == "kennel")
}

/// Kennel's words in this command, if it already runs through Kennel.
pub(crate) fn kennel_prefix(command: &[String]) -> Option<KennelPrefix> {
    let (program, rest) = command.split_first()?;
    if !is_kennel(command) || rest.first()? != "run" {
        return None;
    }
    let dashes = rest.iter().position(|word| word == "--")?;
    let options = &rest[1..dashes];
    let known = options
        .chunks(2)
        .all(|pair| OPTIONS.contains(&pair[0].as_str()) && pair.len() == 2);
    // `kennel run --` without a command starts nothing.
    (rest.len() > dashes + 1).then(|| KennelPrefix {
        program: program.clone(),
        server: dashes + 2,
        own_options: !known,
    })
}

/// Puts Kennel before an entry's command.
pub(crate) fn wrap(text: &str, entry: &Entry, prefix: &Prefix) -> Vec<Edit> {
    let words: Vec<String> = prefix.words.iter().map(|word| quoted(word)).collect();
    match &entry.start {
        Start::Separate { command, args } => {
            let program = Edit {
                span: command.span.clone(),
                text: quoted(&prefix.program),
            };
            let moved = |flow: bool| {
                let literal = &text[command.span.clone()];
                // An unquoted YAML word may contain the characters that separate the members of a list.
                let bare = !literal.starts_with(['"', '\'']);
                match bare && flow && literal.contains([',', '[', ']', '{', '}']) {
                    true => quoted(&command.value),
                    false => literal.to_owned(),
                }
            };
            let with = |flow| [words.clone(), vec![moved(flow)]].concat();
            let args = match args {
                Args::Listed { list, .. } => {
                    let flow = matches!(list.layout, Layout::Flow(_));
                    insert_prefix(text, list, &with(flow))
                }
                Args::Missing { at, lead } => Edit {
                    span: *at..*at,
                    text: format!("{lead}[{}]", with(true).join(", ")),
                },
            };
            vec![program, args]
        }
        Start::SingleList(list) => {
            let all = [vec![quoted(&prefix.program)], words].concat();
            vec![insert_prefix(text, list, &all)]
        }
        Start::None(_) => Vec::new(),
    }
}

/// Removes Kennel again. `args_added`: the entry had no arguments before.
pub(crate) fn unwrap(
    text: &str,
    entry: &Entry,
    behind: &KennelPrefix,
    args_added: bool,
) -> Vec<Edit> {
    match &entry.start {
        Start::Separate {
            command,
            args: Args::Listed { list, removal },
        } => {
            // The program itself is not in this list.
            let Some(own) = list.words.get(behind.server - 1) else {
                return Vec::new();
            };
            let program = Edit {
                span: command.span.clone(),
                text: text[own.span.clone()].to_owned(),
            };
            let nothing_left = list.words.len() == behind.server;
            let args = match removal {
                Some(removal) if nothing_left && args_added => Edit {
                    span: removal.clone(),
                    text: String::new(),
                },
                _ => take_first(text, list, behind.server),
            };
            vec![program, args]
        }
        Start::SingleList(list) => vec![take_first(text, list, behind.server)],
        Start::Separate { .. } | Start::None(_) => Vec::new(),
    }
}

/// Replaces the path of Kennel before the command.
pub(crate) fn repoint(entry: &Entry, program: &str) -> Vec<Edit> {
    let word = match &entry.start {
        Start::Separate { command, .. } => Some(command),
        Start::SingleList(list) => list.words.first(),
        Start::None(_) => None,
    };
    let edit = |word: &Word| Edit {
        span: word.span.clone(),
        text: quoted(program),
    };
    word.map(edit).into_iter().collect()
}

fn insert_prefix(text: &str, list: &List, literals: &[String]) -> Edit {
    match (&list.layout, list.words.first()) {
        (Layout::Flow(inside), Some(first)) => {
            let lead = &text[inside.start..first.span.start];
            // A list with a line for each word keeps that layout.
            let separator = match lead.trim().is_empty() && lead.contains('\n') {
                true => format!(",{lead}"),
                false => ", ".to_owned(),
            };
            Edit {
                span: first.span.start..first.span.start,
                text: literals.join(&separator) + &separator,
            }
        }
        (Layout::Flow(inside), None) => Edit {
            span: inside.start..inside.start,
            text: literals.join(", "),
        },
        (Layout::Block { indent, .. }, first) => {
            let at = first.map_or(0, |first| line_start(text, first.span.start));
            let end = end_of_line(text);
            let line = |literal: &String| format!("{}- {literal}{end}", " ".repeat(*indent));
            Edit {
                span: at..at,
                text: literals.iter().map(line).collect(),
            }
        }
    }
}

fn take_first(text: &str, list: &List, count: usize) -> Edit {
    let first = list.words[0].span.start;
    let last = list.words[count - 1].span.end;
    let next = list.words.get(count);
    let (span, rest) = match (&list.layout, next) {
        (Layout::Flow(_), Some(next)) => (first..next.span.start, ""),
        (Layout::Flow(inside), None) => {
            let behind = &text[last..inside.end];
            let comma = match behind.trim_start().starts_with(',') {
                true => behind.find(',').map_or(0, |at| at + 1),
                false => 0,
            };
            (first..last + comma, "")
        }
        (Layout::Block { .. }, Some(next)) => (
            line_start(text, first)..line_start(text, next.span.start),
            "",
        ),
        (Layout::Block { after_key, .. }, None) => (*after_key..last, " []"),
    };
    Edit {
        span,
        text: rest.to_owned(),
    }
}

pub(super) fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |newline| newline + 1)
}

/// The line ending of this text.
pub(super) fn end_of_line(text: &str) -> &'static str {
    match text.find('\n') {
        Some(at) if text[..at].ends_with('\r') => "\r\n",
        _ => "\n",
    }
}

/// A string in double quotes, which JSON, TOML and YAML read alike.
pub(super) fn quoted(word: &str) -> String {
    serde_json::to_string(word)
        .expect("a string can be serialized")
        .replace('\u{7f}', "\\u007f")
}
