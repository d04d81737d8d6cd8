//! A server of a configuration, and the positions of its parts in the file.
//!
//! All formats are read into these types, and all changes are [`Edit`]s at these positions: all other bytes stay.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// A string in a configuration, and its position: with its quotes, without the characters around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) value: String,
    pub(crate) span: Range<usize>,
}

/// A list of strings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) words: Vec<Word>,
    pub(crate) layout: Layout,
}

/// The notation of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Layout {
    /// `[a, b]`: from after the bracket to the closing one.
    Flow(Range<usize>),
    /// A line with a dash for each string (YAML), from after the colon of its key.
    Block {
        /// The indentation of the dashes.
        indent: usize,
        after_key: usize,
    },
}

/// How a server is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    /// A program, and its arguments in a separate member.
    Separate { command: Word, args: Args },
    /// Program and arguments in one list (opencode).
    SingleList(List),
    /// It starts no process, or an unknown one, for this reason.
    None(&'static str),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Args {
    /// A list, which may be empty. `removal` is the range that removes the whole member, if known.
    Listed {
        list: List,
        removal: Option<Range<usize>>,
    },
    /// No list: the position for one, and the text before it.
    Missing { at: usize, lead: String },
}

/// A server of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// The keys that lead to it, ending with its name: two scopes of a file may have servers with one name.
    pub(crate) path: Vec<String>,
    /// The position of its name.
    pub(crate) at: usize,
    pub(crate) start: Start,
    /// The names of the variables it sets.
    pub(crate) env: Vec<String>,
    /// Whether it sets the working directory.
    pub(crate) has_cwd: bool,
    /// Whether it is disabled in the app.
    pub(crate) is_disabled: bool,
}

impl Entry {
    /// Program and arguments, if it starts a process.
    pub(crate) fn command(&self) -> Option<Vec<String>> {
        let values = |words: &[Word]| words.iter().map(|word| word.value.clone()).collect();
        match &self.start {
            Start::Separate { command, args } => {
                let mut all = vec![command.value.clone()];
                if let Args::Listed { list, .. } = args {
                    all.extend(list.words.iter().map(|word| word.value.clone()));
                }
                Some(all)
            }
            Start::SingleList(list) => Some(values(&list.words)),
            Start::None(_) => None,
        }
    }
}

/// Identifies an entry of a file in a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum EntryId {
    Path(Vec<String>),
    /// In the records of earlier builds. Several entries may have this name.
    Name(String),
}

impl EntryId {
    pub(crate) fn of(entry: &Entry) -> EntryId {
        EntryId::Path(entry.path.clone())
    }

    pub(crate) fn fits(&self, entry: &Entry) -> bool {
        match self {
            EntryId::Path(path) => *path == entry.path,
            EntryId::Name(name) => *name == entry.name,
        }
    }
}

/// Why a file cannot be read, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unreadable {
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) what: String,
}

impl Unreadable {
    pub(crate) fn at(text: &str, offset: usize, what: impl Into<String>) -> Unreadable {
        let before = text.get(..offset).unwrap_or(text);
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Unreadable {
            line: before.matches('\n').count() + 1,
            column: before[start..].chars().count() + 1,
            what: what.into(),
        }
    }
}

/// Finds the lines of many positions in one text. For ascending positions it reads the text once.
#[derive(Debug)]
pub(crate) struct LineCounter<'a> {
    text: &'a str,
    offset: usize,
    line: usize,
}

impl<'a> LineCounter<'a> {
    pub(crate) fn new(text: &'a str) -> LineCounter<'a> {
        LineCounter {
            text,
            offset: 0,
            line: 1,
        }
    }

    pub(crate) fn line_of(&mut self, offset: usize) -> usize {
        if offset < self.offset {
            *self = LineCounter::new(self.text);
        }
        let between = &self.text.as_bytes()[self.offset..offset];
        self.line += between.iter().filter(|byte| **byte == b'\n').count();
        self.offset = offset;
        self.line
    }
}

/// Refuses a text that is longer than any configuration of its format. Its parser would take many times the memory.
pub(crate) fn check_size(text: &str, most: usize) -> Result<(), Unreadable> {
    match text.len() <= most {
        true => Ok(()),
        false => {
            let what = format!("more than {} MB: too large for a configuration", most >> 20);
            Err(Unreadable::at(text, most, what))
        }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "line {}, column {}: {}",
            self.line, self.column, self.what
        )
    }
}

/// Replaces a range of bytes by a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edit {
    pub(crate) span: Range<usize>,
    pub(crate) text: String,
}

/// Applies all edits to a text. They must not overlap.
pub(crate) fn apply(text: &str, edits: &[Edit]) -> String {
    let mut edits: Vec<&Edit> = edits.iter().collect();
    edits.sort_by_key(|edit| (edit.span.start, edit.span.end));
    let mut result = String::with_capacity(text.len());
    let mut done = 0;
    for edit in edits {
        result += &text[done..edit.span.start];
        result += &edit.text;
        done = edit.span.end;
    }
    result + &text[done..]
}
