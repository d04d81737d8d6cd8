//! Remembers for each key which protocol era its server spoke, for later sessions.
//!
//! Only a yes or no: `eras/<key>` in the user's runtime directory. Sharing is safe without it.

use kennel_sys::runtime_dir::{DirError, RuntimeDir};

const ERAS: &str = "eras";
const MODERN: &[u8] = b"modern\n";
const LEGACY: &[u8] = b"legacy\n";

/// Findings of earlier sessions with the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct EraFindings {
    /// Whether the server speaks the stateless protocol; `None` if unknown.
    pub(crate) modern: Option<bool>,
}

/// The stored findings about `key`. Creates nothing; an unreadable file counts as unknown.
pub(crate) fn load(user: &RuntimeDir, key: &str) -> EraFindings {
    let content = user
        .existing_subdir(ERAS)
        .and_then(|eras| eras.map_or(Ok(None), |eras| eras.read_small(key, MODERN.len())));
    let modern = match content.ok().flatten().as_deref() {
        Some(MODERN) => Some(true),
        Some(LEGACY) => Some(false),
        _ => None,
    };
    EraFindings { modern }
}

/// Remembers, atomically (lesson 4), what the server of `key` speaks.
pub(crate) fn remember(user: &RuntimeDir, key: &str, modern: bool) -> Result<(), DirError> {
    if load(user, key).modern == Some(modern) {
        return Ok(());
    }
    let content = if modern { MODERN } else { LEGACY };
    user.subdir(ERAS)?.write_whole(key, content)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use kennel_testkit::Scope;

    use super::*;

    fn place() -> (Scope, RuntimeDir) {
        let scope = Scope::new("eras");
        let dir = RuntimeDir::ensure(scope.runtime_dir()).unwrap();
        (scope, dir)
    }

    #[test]
    fn the_last_era_is_remembered_per_key() {
        let (_scope, dir) = place();
        remember(&dir, "a", true).unwrap();
        remember(&dir, "b", false).unwrap();
        assert_eq!(load(&dir, "a").modern, Some(true));
        assert_eq!(load(&dir, "b").modern, Some(false));
        assert_eq!(load(&dir, "c").modern, None);
        remember(&dir, "a", false).unwrap();
        assert_eq!(load(&dir, "a").modern, Some(false));
    }

    #[test]
    fn asking_creates_nothing_and_writing_leaves_one_file() {
        let (_scope, dir) = place();
        assert_eq!(load(&dir, "a"), EraFindings::default());
        assert!(dir.entries().unwrap().is_empty());
        for _ in 0..3 {
            remember(&dir, "a", true).unwrap();
        }
        let eras = dir.existing_subdir(ERAS).unwrap().unwrap();
        assert_eq!(eras.entries().unwrap(), ["a"]);
    }

    #[test]
    fn a_known_era_is_not_written_again() {
        let (_scope, dir) = place();
        remember(&dir, "a", true).unwrap();
        let inode = || dir.path().join(ERAS).join("a").metadata().unwrap().ino();
        let first = inode();
        remember(&dir, "a", true).unwrap();
        assert_eq!(inode(), first);
    }

    #[test]
    fn an_unreadable_file_counts_as_unknown() {
        let (_scope, dir) = place();
        let eras = dir.subdir(ERAS).unwrap();
        for content in ["", "modern", "modern\nmodern\n", "perhaps\n"] {
            eras.write_whole("a", content.as_bytes()).unwrap();
            assert_eq!(load(&dir, "a").modern, None, "{content:?}");
        }
        assert_eq!(load(&dir, "../a").modern, None);
        assert!(remember(&dir, "../a", true).is_err());
    }
}
