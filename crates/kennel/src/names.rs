//! Lists of names, each in a single string.

/// Names, separated by white space.
///
/// The loader writes the address of every string of a list when a program starts, so a list of strings uses memory in every
/// process, used or not. A single string does not.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Names(pub(crate) &'static str);

/// Directories of version control: a directory that has one is a work tree.
pub(crate) const WORK_TREES: Names = Names(".git .hg .svn .jj .bzr");

impl Names {
    pub(crate) fn iter(self) -> impl Iterator<Item = &'static str> {
        self.0.split_ascii_whitespace()
    }

    pub(crate) fn contains(self, name: &str) -> bool {
        self.iter().any(|it| it == name)
    }
}
