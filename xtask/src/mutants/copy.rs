//! A copy of the workspace's files, in which mistakes are made. The workspace itself is never touched.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;

#[derive(Debug)]
pub(super) struct Copy {
    root: PathBuf,
}

impl Copy {
    /// As the files are now, committed or not. What is as it was keeps its time: cargo need not build it again.
    pub(super) fn of(workspace: &Path, root: PathBuf) -> Outcome<Copy> {
        let listed = Command::new("git")
            .current_dir(workspace)
            .args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ])
            .output()
            .map_err(|error| format!("cannot run git: {error}"))?;
        if !listed.status.success() {
            return Err("git does not list the files of the workspace".into());
        }
        let listed = String::from_utf8(listed.stdout)?;
        let files: BTreeSet<&str> = listed.split_terminator('\0').collect();
        // One that is listed and gone was removed, and is not committed yet.
        for file in files.iter().filter(|file| workspace.join(file).is_file()) {
            let (from, to) = (workspace.join(file), root.join(file));
            let content = fs::read(&from)?;
            if fs::read(&to).is_ok_and(|there| there == content) {
                continue;
            }
            fs::create_dir_all(to.parent().ok_or("a file is in a directory")?)?;
            fs::write(&to, content)?;
            fs::set_permissions(&to, fs::metadata(&from)?.permissions())?;
        }
        remove_others(&root, &root, &|file| workspace.join(file).is_file())?;
        Ok(Copy { root })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Makes a change in one file, for as long as what it gives is kept.
    pub(super) fn change(&mut self, file: &str, text: &str, instead: &str) -> Outcome<Changed> {
        let path = self.root.join(file);
        let before = fs::read_to_string(&path).map_err(|error| format!("{file}: {error}"))?;
        match before.matches(text).count() {
            1 => fs::write(&path, before.replacen(text, instead, 1))?,
            times => return Err(format!("{file} has {times} times: {text}").into()),
        }
        Ok(Changed { path, before })
    }
}

/// A change that was made.
#[derive(Debug)]
pub(super) struct Changed {
    path: PathBuf,
    before: String,
}

impl Drop for Changed {
    fn drop(&mut self) {
        // Where that fails, the next run copies the file again.
        let _ = fs::write(&self.path, &self.before);
    }
}

fn remove_others(root: &Path, dir: &Path, is_wanted: &dyn Fn(&Path) -> bool) -> Outcome<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let file = path.strip_prefix(root)?;
        match path.symlink_metadata()?.is_dir() {
            true => remove_others(root, &path, is_wanted)?,
            false if is_wanted(file) => {}
            false => fs::remove_file(&path)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_lasts_as_long_as_it_is_kept_and_is_made_once_or_not_at_all() {
        let scope = kennel_testkit::Scope::new("mutants");
        let file = scope.path("file.rs");
        fs::write(&file, "one two two").expect("a file");
        let mut copy = Copy {
            root: scope.dir().to_owned(),
        };
        let changed = copy.change("file.rs", "one", "three").expect("a change");
        assert_eq!(fs::read_to_string(&file).expect("it"), "three two two");
        drop(changed);
        assert_eq!(fs::read_to_string(&file).expect("it"), "one two two");
        assert!(copy.change("file.rs", "two", "three").is_err());
        assert!(copy.change("file.rs", "four", "three").is_err());
    }

    #[test]
    fn a_copy_has_what_is_there_now_and_nothing_else() {
        let scope = kennel_testkit::Scope::new("mutants");
        let from = scope.path("from");
        fs::create_dir(&from).expect("a directory");
        let git = |words: &[&str]| {
            let done = scope.command("git").current_dir(&from).args(words).output();
            assert!(done.expect("git").status.success(), "{words:?}");
        };
        git(&["init", "--quiet"]);
        fs::write(from.join("new.rs"), "new").expect("a file");
        let copy = Copy::of(&from, scope.path("to")).expect("a copy");
        let there = copy.root().join("new.rs");
        let time = |path: &Path| {
            fs::metadata(path)
                .and_then(|meta| meta.modified())
                .expect("it")
        };
        let before = time(&there);
        fs::write(copy.root().join("stale.rs"), "stale").expect("a file");
        Copy::of(&from, scope.path("to")).expect("a copy");
        assert!(!copy.root().join("stale.rs").exists());
        assert_eq!(time(&there), before);
        fs::write(from.join("new.rs"), "newer").expect("a file");
        Copy::of(&from, scope.path("to")).expect("a copy");
        assert_eq!(fs::read_to_string(&there).expect("it"), "newer");
    }
}
