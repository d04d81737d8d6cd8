//! Directories for removals: opened component by component and checked through the descriptor that is used afterwards,
//! so that no link and no swapped directory leads a removal elsewhere.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};

use kennel_sys::fs::{Dir, FileFacts};
use kennel_sys::user::UserId;

/// Maximum number of links that one path may lead through, as in the kernel.
pub(crate) const MAX_LINKS: usize = 40;

/// Maximum depth of directories that a removal enters: each needs a descriptor, of which 1024 is a usual limit, and
/// stack space.
const MAX_DEPTH: usize = 500;

/// A directory that no other user could have put in its place.
#[derive(Debug)]
pub(crate) struct CheckedDir {
    dir: Dir,
    path: PathBuf,
}

impl CheckedDir {
    /// Opens the directory at `path`; `None` if it does not exist. Every directory on the way, and every link that is
    /// followed, must belong to this user or root. The error names the directory that does not.
    pub(crate) fn open(path: &Path) -> Result<Option<CheckedDir>, String> {
        let mut parents = vec![CheckedDir::root()?];
        let mut steps = steps(path);
        let mut links = 0;
        while let Some(step) = steps.pop() {
            if step == ".." {
                parents.truncate(parents.len().saturating_sub(1).max(1));
                continue;
            }
            let here = parents.last().expect("the root directory has no parent");
            let Some(facts) = here.facts_of(&step)? else {
                return Ok(None);
            };
            let path = here.path.join(&step);
            if !is_ours_or_roots(&facts) {
                return Err(wrong_owner(&path, &facts));
            }
            if facts.is_symlink() {
                links += 1;
                let target = here.dir.read_link(&step);
                let target = target.map_err(|error| failed(&path, error))?;
                if links > MAX_LINKS {
                    return Err(format!("{}: too many links", path.display()));
                }
                if target.is_absolute() {
                    parents.truncate(1);
                }
                steps.extend(self::steps(&target));
                continue;
            }
            let next = here.open_checked(&step)?;
            parents.push(next);
        }
        Ok(parents.pop())
    }

    /// Opens a subdirectory that belongs to this user; `None` if it does not exist. A link is refused.
    pub(crate) fn subdir(&self, name: impl AsRef<OsStr>) -> Result<Option<CheckedDir>, String> {
        let name = name.as_ref();
        let path = self.path.join(name);
        let Some(facts) = self.facts_of(name)? else {
            return Ok(None);
        };
        if facts.is_symlink() {
            return Err(format!("{} is a link", path.display()));
        }
        let opened = self.open_checked(name)?;
        let facts = opened.dir.facts().map_err(|error| failed(&path, error))?;
        match facts.owner().is_current() {
            true => Ok(Some(opened)),
            false => Err(wrong_owner(&path, &facts)),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The names of all entries, in order.
    pub(crate) fn names(&self) -> Result<Vec<OsString>, String> {
        let names = self.dir.names();
        names.map_err(|error| failed(&self.path, error))
    }

    /// The size of a regular file of this user; `None` for everything else.
    pub(crate) fn own_file(&self, name: &OsStr) -> Option<u64> {
        let facts = self.facts_of(name).ok()??;
        let is_it = facts.is_file() && facts.owner().is_current();
        is_it.then_some(facts.size())
    }

    /// The content of a regular file that only this user can have written: it belongs to this user, has one name, and
    /// neither the file nor this directory is writable by others. `None` for everything else.
    pub(crate) fn read_own_file(&self, name: &OsStr) -> Option<Vec<u8>> {
        let only_ours = |facts: &FileFacts| {
            let by_others = facts.is_writable_by_group() || facts.is_writable_by_everybody();
            facts.owner().is_current() && !by_others
        };
        if !only_ours(&self.dir.facts().ok()?) {
            return None;
        }
        let mut file = self.dir.open_file(name).ok()?;
        let facts = FileFacts::of(&file).ok()?;
        if !facts.is_file() || !only_ours(&facts) || facts.links() != 1 {
            return None;
        }
        let mut content = Vec::new();
        io::Read::read_to_end(&mut file, &mut content).ok()?;
        Some(content)
    }

    /// Removes a regular file of this user; leaves everything else of that name.
    pub(crate) fn remove_own_file(&self, name: &OsStr) -> Result<(), String> {
        if self.own_file(name).is_none() {
            return Ok(());
        }
        let removed = self.dir.remove_file(name);
        unless_missing(removed).map_err(|error| failed(&self.path.join(name), error))
    }

    /// Removes a directory in this one if it is empty.
    pub(crate) fn remove_if_empty(&self, name: impl AsRef<OsStr>) {
        let _ = self.dir.remove_dir(name.as_ref());
    }

    /// Removes a directory of this user with its content. Links are removed and not followed. Another file system
    /// mounted in it is an error and not entered; so is a tree more than [`MAX_DEPTH`] directories deep.
    pub(crate) fn remove_tree(&self, name: &OsStr) -> Result<(), String> {
        let Some(tree) = self.subdir(name)? else {
            return Ok(());
        };
        clear(&tree.dir, &tree.path, MAX_DEPTH)?;
        let removed = self.dir.remove_dir(name);
        removed.map_err(|error| failed(&tree.path, error))
    }

    fn root() -> Result<CheckedDir, String> {
        let path = PathBuf::from("/");
        let dir = Dir::root().map_err(|error| failed(&path, error))?;
        Ok(CheckedDir { dir, path })
    }

    /// Facts about an entry; a link is not followed.
    fn facts_of(&self, name: &OsStr) -> Result<Option<FileFacts>, String> {
        let facts = self.dir.facts_of(name);
        facts.map_err(|error| failed(&self.path.join(name), error))
    }

    /// Opens the directory of that name, and checks what was opened.
    fn open_checked(&self, name: &OsStr) -> Result<CheckedDir, String> {
        let path = self.path.join(name);
        let dir = self.dir.open_dir(name);
        let dir = dir.map_err(|error| failed(&path, error))?;
        let facts = dir.facts().map_err(|error| failed(&path, error))?;
        if !is_ours_or_roots(&facts) {
            return Err(wrong_owner(&path, &facts));
        }
        if facts.is_writable_by_everybody() && !facts.is_sticky() {
            return Err(format!("{} is writable by everybody", path.display()));
        }
        Ok(CheckedDir { dir, path })
    }
}

/// Removes the content of a directory; `depth` is how many levels may still be below it.
fn clear(dir: &Dir, path: &Path, depth: usize) -> Result<(), String> {
    for name in dir.names().map_err(|error| failed(path, error))? {
        let path = path.join(&name);
        let failed = |error: io::Error| failed(&path, error);
        let facts = dir.facts_of(&name).map_err(failed)?;
        let is_dir = facts.is_some_and(|facts| facts.is_dir());
        if is_dir {
            let below = match dir.open_dir_of_same_mount(&name) {
                Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                    return Err(format!("a file system is mounted at {}", path.display()));
                }
                below => below.map_err(failed)?,
            };
            let Some(depth) = depth.checked_sub(1) else {
                let tree = path.ancestors().nth(MAX_DEPTH + 1).unwrap_or(&path);
                return Err(format!(
                    "{} has more than {MAX_DEPTH} nested directories; remove it with `rm -r`",
                    tree.display()
                ));
            };
            clear(&below, &path, depth)?;
        }
        let removed = match is_dir {
            true => dir.remove_dir(&name),
            false => dir.remove_file(&name),
        };
        unless_missing(removed).map_err(failed)?;
    }
    Ok(())
}

/// Counts an entry that another process removed meanwhile as removed.
fn unless_missing(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The components of a path, the last one first.
pub(crate) fn steps(path: &Path) -> Vec<OsString> {
    let steps = path.components().rev();
    let steps = steps.filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    steps.collect()
}

fn is_ours_or_roots(facts: &FileFacts) -> bool {
    facts.owner().is_current() || facts.owner().is_root()
}

fn wrong_owner(path: &Path, facts: &FileFacts) -> String {
    let (theirs, ours) = (facts.owner(), UserId::current());
    format!("{} belongs to {theirs}, not to {ours}", path.display())
}

fn failed(path: &Path, error: io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use kennel_testkit::Scope;

    use super::*;

    #[test]
    fn links_of_this_user_are_followed_except_the_last_one() {
        let scope = Scope::new("judged");
        fs::create_dir_all(scope.path("real/below")).unwrap();
        symlink("real", scope.path("link")).unwrap();
        symlink("../real/below", scope.path("real/again")).unwrap();
        for path in ["real", "link", "link/again/..", "real/again/../below/.."] {
            let dir = CheckedDir::open(&scope.path(path)).unwrap().unwrap();
            assert_eq!(dir.path(), scope.path("real"), "{path}");
            assert!(dir.subdir("below").unwrap().is_some());
            assert!(dir.subdir("again").unwrap_err().contains("is a link"));
            assert!(dir.subdir("nothing").unwrap().is_none());
        }
        assert!(CheckedDir::open(&scope.path("no/such")).unwrap().is_none());
        symlink("loop", scope.path("loop")).unwrap();
        assert!(CheckedDir::open(&scope.path("loop")).is_err());
    }

    #[test]
    fn only_a_file_that_no_other_user_can_have_written_is_read() {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let scope = Scope::new("judged");
        let dir = CheckedDir::open(scope.dir()).unwrap().unwrap();
        let file = scope.path("file");
        fs::write(&file, "text").unwrap();
        mode(&file, 0o600);
        let read = || dir.read_own_file(OsStr::new("file"));
        assert_eq!(read().as_deref(), Some(&b"text"[..]));
        for open in [0o620, 0o602] {
            mode(&file, open);
            assert_eq!(read(), None, "{open:o}");
        }
        mode(&file, 0o600);
        mode(scope.dir(), 0o770);
        assert_eq!(read(), None, "its directory is open to a group");
        mode(scope.dir(), 0o700);
        fs::hard_link(&file, scope.path("other")).unwrap();
        assert_eq!(read(), None, "it has another name");
        fs::remove_file(&file).unwrap();
        symlink("other", &file).unwrap();
        assert_eq!(read(), None, "a link");
        assert_eq!(dir.read_own_file(OsStr::new("nothing")), None);
    }

    #[test]
    fn a_tree_is_removed_and_the_targets_of_its_links_stay() {
        let scope = Scope::new("judged");
        fs::create_dir_all(scope.path("tree/a/b")).unwrap();
        fs::create_dir(scope.path("dear")).unwrap();
        fs::write(scope.path("dear/file"), "").unwrap();
        fs::write(scope.path("tree/a/b/file"), "").unwrap();
        symlink(scope.path("dear"), scope.path("tree/a/link")).unwrap();
        symlink(scope.path("dear"), scope.path("entrance")).unwrap();
        let dir = CheckedDir::open(scope.dir()).unwrap().unwrap();
        dir.remove_tree(OsStr::new("tree")).unwrap();
        assert!(!scope.path("tree").exists());
        dir.remove_tree(OsStr::new("entrance")).unwrap_err();
        assert!(scope.path("dear/file").exists() && scope.path("entrance").exists());
    }

    #[test]
    fn a_tree_that_is_too_deep_is_refused_and_named() {
        let scope = Scope::new("judged");
        let dir = CheckedDir::open(scope.dir()).unwrap().unwrap();
        let tree = scope.path("tree");
        let below = "d/".repeat(MAX_DEPTH);
        fs::create_dir_all(tree.join(&below)).unwrap();
        dir.remove_tree(OsStr::new("tree")).unwrap();
        assert!(!tree.exists());
        fs::create_dir_all(tree.join(&below).join("d")).unwrap();
        let refused = dir.remove_tree(OsStr::new("tree")).unwrap_err();
        let named = format!("{} has more than 500 nested directories", tree.display());
        assert!(refused.starts_with(&named), "{refused}");
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn needs_root_a_directory_that_is_mounted_in_a_tree_is_not_entered() {
        const INSIDE: &str = "KENNEL_TEST_MOUNTED_TREE";
        // Runs this test again, in a separate mount namespace.
        if let Some(dir) = std::env::var_os(INSIDE) {
            let dir = CheckedDir::open(Path::new(&dir)).unwrap().unwrap();
            let refused = dir.remove_tree(OsStr::new("tree")).unwrap_err();
            assert!(refused.contains("a file system is mounted"), "{refused}");
            return;
        }
        let scope = Scope::new("judged");
        fs::create_dir_all(scope.path("tree/below/mount")).unwrap();
        fs::create_dir(scope.path("dear")).unwrap();
        fs::write(scope.path("dear/file"), "").unwrap();
        let script = "mount --bind dear tree/below/mount && exec \"$@\"";
        let name =
            "checked_dir::tests::needs_root_a_directory_that_is_mounted_in_a_tree_is_not_entered";
        let mut again = scope.command("unshare");
        again
            .args(["--mount", "sh", "-c", script, "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name, "--include-ignored"])
            .current_dir(scope.dir())
            .env(INSIDE, scope.dir());
        let ended = kennel_testkit::run(&mut again);
        assert_eq!(ended.code(), Some(0), "{}{}", ended.stdout, ended.stderr);
        assert!(ended.stdout.contains("1 passed"), "{}", ended.stdout);
        assert!(scope.path("dear/file").exists());
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn needs_root_a_directory_or_link_of_another_user_is_refused() {
        use std::os::unix::fs::{chown, lchown};
        let scope = Scope::new("judged");
        fs::create_dir_all(scope.path("theirs/ours")).unwrap();
        fs::create_dir(scope.path("ours")).unwrap();
        symlink("ours", scope.path("link")).unwrap();
        chown(scope.path("theirs"), Some(65534), Some(65534)).unwrap();
        lchown(scope.path("link"), Some(65534), Some(65534)).unwrap();
        for path in ["theirs", "theirs/ours", "link"] {
            let refused = CheckedDir::open(&scope.path(path)).unwrap_err();
            assert!(refused.contains("belongs to uid 65534"), "{refused}");
        }
        let dir = CheckedDir::open(scope.dir()).unwrap().unwrap();
        dir.remove_tree(OsStr::new("theirs")).unwrap_err();
        assert!(scope.path("theirs/ours").exists());
    }
}
