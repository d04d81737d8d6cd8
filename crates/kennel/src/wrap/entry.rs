//! What a configuration says about one server, and where in its bytes it says so.
//!
//! Every format is read into these, and every change is made of [`Edit`]s to them: what is not named here
//! keeps its bytes.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// A text that a configuration holds, and where: with its quotes, without what stands around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) value: String,
    pub(crate) span: Range<usize>,
}

/// A list of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) words: Vec<Word>,
    pub(crate) layout: Layout,
}

/// How a list is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Layout {
    /// `[a, b]`: from behind the bracket to the closing one.
    Flow(Range<usize>),
    /// A line for each, with a dash before it (YAML), from behind the colon of its key.
    Block {
        /// How far the dashes are indented.
        indent: usize,
        after_key: usize,
    },
}

/// How a server is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    /// A program, and its arguments beside it.
    Apart { command: Word, args: Args },
    /// Program and arguments in one list (opencode).
    Together(List),
    /// Nothing here starts a process, or nobody can say what does.
    None(&'static str),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Args {
    /// There are some, or an empty list. What would take the whole member away, if that can be said.
    Listed {
        list: List,
        removal: Option<Range<usize>>,
    },
    /// There are none: where they would go, and the text before them.
    Missing { at: usize, lead: String },
}

/// One server of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// The keys that lead to it, its name last: two scopes of a file may have servers of one name.
    pub(crate) path: Vec<String>,
    /// Where its name stands.
    pub(crate) at: usize,
    pub(crate) start: Start,
    /// The variables it declares, by name.
    pub(crate) env: Vec<String>,
    /// Whether it says where to start.
    pub(crate) has_cwd: bool,
    /// Whether the app is told not to start it.
    pub(crate) is_disabled: bool,
}

impl Entry {
    /// Program and arguments, if it starts any.
    pub(crate) fn command(&self) -> Option<Vec<String>> {
        let values = |words: &[Word]| words.iter().map(|word| word.value.clone()).collect();
        match &self.start {
            Start::Apart { command, args } => {
                let mut all = vec![command.value.clone()];
                if let Args::Listed { list, .. } = args {
                    all.extend(list.words.iter().map(|word| word.value.clone()));
                }
                Some(all)
            }
            Start::Together(list) => Some(values(&list.words)),
            Start::None(_) => None,
        }
    }
}

/// Which entry of a file a record means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum EntryId {
    Path(Vec<String>),
    /// In the records of earlier builds. Several entries may have it.
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

/// What cannot be read, and where.
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

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "line {}, column {}: {}",
            self.line, self.column, self.what
        )
    }
}

/// These bytes become that text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edit {
    pub(crate) span: Range<usize>,
    pub(crate) text: String,
}

/// The text with all edits made. They do not overlap.
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
