//! The demo's directory. Its lock is held while the demo runs. The kernel releases it even after kill -9, and the next
//! demo removes the directory.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kennel_sys::fs::create_private_dir;
use kennel_sys::lock::{self, SeizedDir};
use kennel_sys::runtime_dir::{Hold, RuntimeDir};
use kennel_sys::{Signal, events};

use super::{STEP_TIMEOUT, daemons_of};

/// Prefix of the name of every such directory.
const NAME: &str = "kennel-demo-";
/// The only directory in it: the demo's runtime directory.
const RUNTIME: &str = "run";
const PAUSE: Duration = Duration::from_millis(20);

/// The directory of this demo.
pub(super) struct DemoDir {
    path: PathBuf,
    _hold: Hold,
}

impl DemoDir {
    /// Creates the directory in `place`, after removing those of earlier demos that are over.
    pub(super) fn create(place: &Path) -> io::Result<DemoDir> {
        sweep(place);
        let path = place.join(format!("{NAME}{}", std::process::id()));
        loop {
            create_private_dir(&path)?;
            let held = RuntimeDir::ensure(&path)
                .map_err(io::Error::other)
                .and_then(|dir| Ok((dir.hold().map_err(io::Error::other)?, dir)));
            match held {
                Ok((hold, dir)) if dir.is_at_its_path() => {
                    return Ok(DemoDir { path, _hold: hold });
                }
                // Another demo removed it as left over before it was locked here.
                Ok(_) => {}
                Err(error) => {
                    let _ = std::fs::remove_dir(&path);
                    return Err(error);
                }
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Ends all processes of an interrupted demo: those that hold its directory.
    pub(super) fn end_all_processes(&self) -> io::Result<()> {
        let Ok(Some(dir)) = RuntimeDir::open(self.path.join(RUNTIME)) else {
            return Ok(());
        };
        let started = Instant::now();
        while let Err(error) = lock::seize(&dir) {
            if started.elapsed() > STEP_TIMEOUT {
                return Err(io::Error::other(error.to_string()));
            }
            for daemon in daemons_of(&self.path)? {
                daemon.signal(Signal::TERM)?;
                daemon.wait(Some(STEP_TIMEOUT))?;
            }
            events::sleep(&[], &[], Some(PAUSE))?;
        }
        Ok(())
    }

    /// Removes the directory. Processes that are still ending may write their last records meanwhile, so it tries
    /// again.
    pub(super) fn remove(self) -> io::Result<()> {
        let started = Instant::now();
        loop {
            match std::fs::remove_dir_all(&self.path) {
                Err(error)
                    if error.kind() == io::ErrorKind::DirectoryNotEmpty
                        && started.elapsed() < STEP_TIMEOUT =>
                {
                    events::sleep(&[], &[], Some(PAUSE))?;
                }
                removed => return removed,
            }
        }
    }
}

/// Removes the directories in `place` that belong to this user and that no process holds: the runtime directory, and
/// the directory around it if nothing else is in it. What cannot be removed stays until the next demo; it harms
/// nothing.
fn sweep(place: &Path) {
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    let stages = entries.filter(|entry| is_name_of_a_demo(&entry.file_name()));
    for path in stages.map(|entry| entry.path()) {
        if let Some(_seized) = abandoned(&path) {
            let _ = std::fs::remove_dir_all(path.join(RUNTIME));
            let _ = std::fs::remove_dir(&path);
        }
    }
}

fn is_name_of_a_demo(name: &OsStr) -> bool {
    let name = name.to_str().and_then(|name| name.strip_prefix(NAME));
    name.is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|it| it.is_ascii_digit()))
}

/// Seizes a directory that no process holds, neither a demo nor a process that it started. Refuses links and
/// directories of other users.
fn abandoned(path: &Path) -> Option<Vec<SeizedDir>> {
    let dir = RuntimeDir::open(path).ok()??;
    let mut seized = vec![lock::seize(&dir).ok()?];
    // Its demo may have removed it in the meantime, and another demo may have created a new one at its path.
    if !dir.is_at_its_path() {
        return None;
    }
    if let Some(run) = dir.existing_subdir(RUNTIME).ok()? {
        seized.push(lock::seize(&run).ok()?);
    }
    Some(seized)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use kennel_testkit::Scope;

    use super::*;

    /// Creates the directories that a killed demo leaves behind.
    fn left_behind(scope: &Scope, name: &str) -> RuntimeDir {
        let dir = RuntimeDir::ensure(scope.dir().join(name)).unwrap();
        dir.subdir("run").unwrap();
        dir
    }

    #[test]
    fn a_demo_directory_without_a_holder_is_removed() {
        let scope = Scope::new("demo-dir");
        let former = left_behind(&scope, "kennel-demo-1");
        std::fs::write(former.path().join("run/word"), "last").unwrap();
        let own = DemoDir::create(scope.dir()).unwrap();
        assert!(!former.path().exists());
        assert!(own.path().exists());
        own.remove().unwrap();
    }

    #[test]
    fn a_demo_directory_with_a_holder_stays() {
        let scope = Scope::new("demo-dir-held");
        let (shown, peopled) = (
            left_behind(&scope, "kennel-demo-1"),
            left_behind(&scope, "kennel-demo-2"),
        );
        let _show = shown.hold().unwrap();
        let _shim = peopled.subdir("run").unwrap().hold().unwrap();
        let own = DemoDir::create(scope.dir()).unwrap();
        sweep(scope.dir());
        for path in [shown.path(), peopled.path(), own.path()] {
            assert!(path.exists(), "{}", path.display());
        }
    }

    #[test]
    fn a_directory_that_is_not_of_a_demo_stays() {
        let scope = Scope::new("demo-dir-other");
        let other = left_behind(&scope, "kennel-demo-of-mine");
        let used = left_behind(&scope, "kennel-demo-6");
        std::fs::write(used.path().join("notes"), "somebody's").unwrap();
        let loose = scope.dir().join("kennel-demo-3");
        std::fs::create_dir(&loose).unwrap();
        std::fs::set_permissions(&loose, std::fs::Permissions::from_mode(0o777)).unwrap();
        // The target of the link looks like a demo's directory in every way.
        let link = scope.dir().join("kennel-demo-4");
        let target = left_behind(&scope, "target");
        std::os::unix::fs::symlink(target.path(), &link).unwrap();
        sweep(scope.dir());
        for path in [
            other.path(),
            &used.path().join("notes"),
            &loose,
            &link,
            target.path(),
        ] {
            assert!(path.symlink_metadata().is_ok(), "{}", path.display());
        }
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn another_users_stage_stays_needs_root() {
        let scope = Scope::new("demo-dir-foreign");
        let dir = left_behind(&scope, "kennel-demo-5");
        std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).unwrap();
        sweep(scope.dir());
        assert!(dir.path().exists());
    }
}
