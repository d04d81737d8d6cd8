//! The second pass of root's tests: the same tests as a uid without any rights, because modes and unreadable files do not
//! restrict root.
//!
//! That uid often cannot read the repository or cargo. So the built tests go into a nextest archive, and run from a new
//! directory below the temporary directory.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;
use crate::canary;
use crate::nextest::Nextest;
use crate::report::succeeds;
use crate::test::{Run, random};
use crate::workspace::Workspace;

/// `nobody`, on every Linux: a uid and gid that own nothing.
pub(crate) const UID: u32 = 65534;
/// Packages without system calls, which behave the same for every uid: the first pass has tested them.
const SEES_NO_UID: &str = "not (package(kennel-core) | package(kennel-sim))";

/// The variables of root's environment that the pass keeps. The rest (homes, caches, library paths) is root's.
const PASSED_ON: &[&str] = &[
    "CARGO_TERM_COLOR",
    "CI",
    "LANG",
    "NO_COLOR",
    "PATH",
    "RUST_BACKTRACE",
    "TERM",
];

/// Runs the tests that do not need root as [`UID`]; returns whether they passed.
pub(crate) fn pass(workspace: &Workspace, nextest: &Nextest, run: &Run) -> Outcome<bool> {
    let place = TestDir::create()?;
    if !archive(workspace, nextest, &place)? {
        return Err("the tests cannot be archived".into());
    }
    place.fill(workspace, nextest)?;

    let mut command = Command::new(place.nextest());
    command
        .args(["nextest", "run", "--archive-file"])
        .arg(place.archive())
        .arg("--extract-to")
        .arg(place.path("out"))
        .arg("--workspace-remap")
        .arg(place.source());
    if run.is_everything() {
        command.args(["-E", SEES_NO_UID]);
    }
    // That uid may not be able to read the testbed; the first pass has used it.
    run.select(&mut command, false, false);
    place.enter(&mut command);
    run.announce_to(&mut command);
    let status = command.status().map_err(|error| {
        let place = place.dir.display();
        format!("cannot run {place}/cargo-nextest as uid {UID}: {error}; set TMPDIR to a directory where every user can run programs")
    })?;
    // Before it is removed: check the output of the tests, and the files in their homes.
    let printed = canary::printed(&place.source());
    let places = [place.path("home"), place.path("t"), printed];
    let kept = places
        .iter()
        .all(|dir| canary::is_not_below(&run.canary, dir));
    Ok(status.success() && kept)
}

/// Archives the tests with every program of the workspace: by default nextest includes only the programs of packages with
/// integration tests.
fn archive(workspace: &Workspace, nextest: &Nextest, place: &TestDir) -> Outcome<bool> {
    let config = place.path("programs.toml");
    fs::write(&config, include_all(&workspace.programs))?;
    let mut tool_config = std::ffi::OsString::from("xtask:");
    tool_config.push(&config);
    succeeds(
        nextest
            .command(workspace, "archive")
            .args(["--workspace", "--archive-file"])
            .arg(place.archive())
            .arg("--tool-config-file")
            .arg(tool_config),
    )
}

fn include_all(programs: &[String]) -> String {
    let rows: String = programs
        .iter()
        .map(|name| {
            format!("    {{ path = \"debug/{name}\", relative-to = \"target\", on-missing = \"error\" }},\n")
        })
        .collect();
    format!("[profile.default]\narchive.include = [\n{rows}]\n")
}

/// A directory that [`UID`] owns, removed at the end.
#[derive(Debug)]
struct TestDir {
    dir: PathBuf,
}

impl TestDir {
    fn create() -> Outcome<TestDir> {
        // A short path: the tests' sockets are below it, and a socket path has at most 107 bytes.
        let dir = std::env::temp_dir().join(format!("kn-{:08x}", random() as u32));
        fs::create_dir(&dir)
            .map_err(|error| format!("cannot create {}: {error}", dir.display()))?;
        let place = TestDir { dir };
        fs::set_permissions(&place.dir, fs::Permissions::from_mode(0o700))?;
        Ok(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn archive(&self) -> PathBuf {
        self.path("tests.tar.zst")
    }

    fn source(&self) -> PathBuf {
        self.path("source")
    }

    fn nextest(&self) -> PathBuf {
        self.path("cargo-nextest")
    }

    /// Adds files that the archive lacks, and gives all of them to [`UID`].
    fn fill(&self, workspace: &Workspace, nextest: &Nextest) -> io::Result<()> {
        fs::copy(&nextest.path, self.nextest())?;
        // Tests run in the directory of their package, and may read files there.
        copy_sources(&workspace.root, &self.source())?;
        for name in ["home", "out", "t"] {
            fs::create_dir(self.path(name))?;
        }
        give_away(&self.dir)
    }

    /// Makes a command run here, as [`UID`], with a new environment. With a uid, `Command` also drops the supplementary
    /// groups.
    fn enter(&self, command: &mut Command) {
        command
            .uid(UID)
            .gid(UID)
            .current_dir(self.source())
            .env_clear();
        for (name, value) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if PASSED_ON.contains(&&*text) || text.starts_with("NEXTEST_") {
                command.env(name, value);
            }
        }
        command
            .env("HOME", self.path("home"))
            .env("TMPDIR", self.path("t"));
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            eprintln!("xtask: cannot remove {}: {error}", self.dir.display());
        }
    }
}

/// Copies the workspace without its history and cargo's build directories.
fn copy_sources(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, copy) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            // Cargo puts a tag into every build directory.
            if entry.file_name() != ".git" && !source.join("CACHEDIR.TAG").exists() {
                copy_sources(&source, &copy)?;
            }
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&source)?, copy)?;
        } else if kind.is_file() {
            fs::copy(&source, copy)?;
        }
    }
    Ok(())
}

fn give_away(path: &Path) -> io::Result<()> {
    lchown(path, Some(UID), Some(UID))?;
    if path.symlink_metadata()?.is_dir() {
        for entry in fs::read_dir(path)? {
            give_away(&entry?.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use kennel_testkit::Scope;

    use super::*;

    #[test]
    fn every_program_goes_into_the_archive() {
        let config = include_all(&["kennel".to_owned(), "tk-holder".to_owned()]);
        for path in ["path = \"debug/kennel\"", "path = \"debug/tk-holder\""] {
            assert!(config.contains(path), "{config}");
        }
    }

    #[test]
    fn sources_are_copied_without_history_and_build_directories() {
        let scope = Scope::new("sources");
        let from = scope.path("from");
        for dir in ["src", ".config", ".git", "target"] {
            fs::create_dir_all(from.join(dir)).expect("a small tree");
            fs::write(from.join(dir).join("file"), dir).expect("a small tree");
        }
        fs::write(from.join("target/CACHEDIR.TAG"), "").expect("a small tree");
        std::os::unix::fs::symlink("src/file", from.join("link")).expect("a small tree");

        let to = scope.path("to");
        copy_sources(&from, &to).expect("a copy");
        assert_eq!(fs::read_to_string(to.join("link")).expect("copied"), "src");
        assert_eq!(
            fs::read_to_string(to.join(".config/file")).expect("copied"),
            ".config"
        );
        assert!(!to.join(".git").exists());
        assert!(!to.join("target").exists());
    }
}
