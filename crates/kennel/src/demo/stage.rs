//! Where the show takes place: a directory that is held as long as it goes on. Whoever ends it, even with kill -9, lets go
//! of it, and the next show clears it away.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kennel_sys::fs::create_private_dir;
use kennel_sys::lock::{self, SeizedDir};
use kennel_sys::runtime_dir::{Hold, RuntimeDir};
use kennel_sys::{Signal, events};

use super::{PATIENCE, daemons_of};

/// What the name of every stage begins with.
const NAME: &str = "kennel-demo-";
/// All that there is on one.
const RUN: &str = "run";
const PAUSE: Duration = Duration::from_millis(20);

/// A stage of our own.
pub(super) struct Stage {
    path: PathBuf,
    _hold: Hold,
}

impl Stage {
    /// In `place`, after clearing away whatever shows left there that are over.
    pub(super) fn set(place: &Path) -> io::Result<Stage> {
        sweep(place);
        let path = place.join(format!("{NAME}{}", std::process::id()));
        loop {
            create_private_dir(&path)?;
            let held = RuntimeDir::ensure(&path)
                .map_err(io::Error::other)
                .and_then(|dir| Ok((dir.hold().map_err(io::Error::other)?, dir)));
            match held {
                Ok((hold, dir)) if dir.is_at_its_path() => {
                    return Ok(Stage { path, _hold: hold });
                }
                // Another show took it for one that is over, before we held it.
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

    /// After a show that was broken off: whoever is on the stage holds its directory.
    pub(super) fn everybody_leaves(&self) -> io::Result<()> {
        let Ok(Some(dir)) = RuntimeDir::open(self.path.join(RUN)) else {
            return Ok(());
        };
        let started = Instant::now();
        while let Err(error) = lock::seize(&dir) {
            if started.elapsed() > PATIENCE {
                return Err(io::Error::other(error.to_string()));
            }
            for daemon in daemons_of(&self.path)? {
                daemon.signal(Signal::TERM)?;
                daemon.wait(Some(PATIENCE))?;
            }
            events::sleep(&[], &[], Some(PAUSE))?;
        }
        Ok(())
    }

    /// Whoever is on the way out, or was on the way in, may write down a last word.
    pub(super) fn clear(self) -> io::Result<()> {
        let started = Instant::now();
        loop {
            match std::fs::remove_dir_all(&self.path) {
                Err(error)
                    if error.kind() == io::ErrorKind::DirectoryNotEmpty
                        && started.elapsed() < PATIENCE =>
                {
                    events::sleep(&[], &[], Some(PAUSE))?;
                }
                cleared => return cleared,
            }
        }
    }
}

/// Removes the stages in `place` that are ours and that nobody holds any more: what is played on, and the stage if there
/// is nothing else in it. What cannot be removed stays for another time: it is in nobody's way.
fn sweep(place: &Path) {
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    let stages = entries.filter(|entry| is_name_of_a_stage(&entry.file_name()));
    for path in stages.map(|entry| entry.path()) {
        if let Some(_seized) = abandoned(&path) {
            let _ = std::fs::remove_dir_all(path.join(RUN));
            let _ = std::fs::remove_dir(&path);
        }
    }
}

fn is_name_of_a_stage(name: &OsStr) -> bool {
    let name = name.to_str().and_then(|name| name.strip_prefix(NAME));
    name.is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|it| it.is_ascii_digit()))
}

/// Seizes a stage that nobody holds, neither the show nor anybody it started. Opening it is the gate: what is a link, or
/// another user's, is not opened.
fn abandoned(path: &Path) -> Option<Vec<SeizedDir>> {
    let stage = RuntimeDir::open(path).ok()??;
    let mut seized = vec![lock::seize(&stage).ok()?];
    // Whoever held it may have cleared it away, and another show have begun at its place.
    if !stage.is_at_its_path() {
        return None;
    }
    if let Some(run) = stage.existing_subdir(RUN).ok()? {
        seized.push(lock::seize(&run).ok()?);
    }
    Some(seized)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use kennel_testkit::Scope;

    use super::*;

    /// What a show leaves that was killed.
    fn left_behind(scope: &Scope, name: &str) -> RuntimeDir {
        let stage = RuntimeDir::ensure(scope.dir().join(name)).unwrap();
        stage.subdir("run").unwrap();
        stage
    }

    #[test]
    fn a_stage_that_nobody_holds_is_cleared_away() {
        let scope = Scope::new("demo-stage");
        let dir = left_behind(&scope, "kennel-demo-1");
        std::fs::write(dir.path().join("run/word"), "last").unwrap();
        let stage = Stage::set(scope.dir()).unwrap();
        assert!(!dir.path().exists());
        assert!(stage.path().exists());
        stage.clear().unwrap();
    }

    #[test]
    fn a_stage_that_somebody_holds_stays() {
        let scope = Scope::new("demo-stage-held");
        let (shown, peopled) = (
            left_behind(&scope, "kennel-demo-1"),
            left_behind(&scope, "kennel-demo-2"),
        );
        let _show = shown.hold().unwrap();
        let _shim = peopled.subdir("run").unwrap().hold().unwrap();
        let own = Stage::set(scope.dir()).unwrap();
        sweep(scope.dir());
        for path in [shown.path(), peopled.path(), own.path()] {
            assert!(path.exists(), "{}", path.display());
        }
    }

    #[test]
    fn what_is_no_stage_of_ours_stays_too() {
        let scope = Scope::new("demo-stage-other");
        let other = left_behind(&scope, "kennel-demo-of-mine");
        let used = left_behind(&scope, "kennel-demo-6");
        std::fs::write(used.path().join("notes"), "somebody's").unwrap();
        let loose = scope.dir().join("kennel-demo-3");
        std::fs::create_dir(&loose).unwrap();
        std::fs::set_permissions(&loose, std::fs::Permissions::from_mode(0o777)).unwrap();
        // What it leads to looks like one in every way.
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
    fn another_users_stage_stays_needs_root() {
        let scope = Scope::new("demo-stage-foreign");
        let dir = left_behind(&scope, "kennel-demo-5");
        std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).unwrap();
        sweep(scope.dir());
        assert!(dir.path().exists());
    }
}
