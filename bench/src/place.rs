//! A private place to measure in: programs built beside us, and a runtime directory that is nobody's.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::beside_us;

/// A directory of our own. Dropping it stops whatever `kennel` still runs there, and removes it.
#[derive(Debug)]
pub(crate) struct Place {
    dir: PathBuf,
    kennel: PathBuf,
    server: PathBuf,
}

/// A way to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Direct,
    /// One process that copies bytes.
    Relay,
    /// Two of them, joined by a socket.
    TwoRelays,
    /// `kennel run`.
    Solo,
    /// `kennel run --share always`.
    Daemon,
}

impl Way {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Way::Direct => "direct",
            Way::Relay => "bare relay",
            Way::TwoRelays => "two bare relays",
            Way::Solo => "kennel, solo",
            Way::Daemon => "kennel, daemon",
        }
    }
}

impl Place {
    pub(crate) fn new() -> io::Result<Place> {
        Place::with_kennel(beside_us("kennel")?)
    }

    /// A place with a copy of its own of this build of Kennel.
    pub(crate) fn with_copy_of(kennel: &Path) -> io::Result<Place> {
        let mut place = Place::with_kennel(kennel.to_owned())?;
        place.kennel = place.dir.join("kennel");
        std::fs::copy(kennel, &place.kennel)?;
        Ok(place)
    }

    fn with_kennel(kennel: PathBuf) -> io::Result<Place> {
        static PLACES: AtomicUsize = AtomicUsize::new(0);
        let number = PLACES.fetch_add(1, Ordering::Relaxed);
        let place = Place {
            dir: std::env::temp_dir().join(format!("bench-{}-{number}", std::process::id())),
            kennel,
            server: beside_us("tk-server")?,
        };
        std::fs::create_dir(&place.dir)?;
        Ok(place)
    }

    /// Starts the server this way.
    pub(crate) fn command(&self, way: Way) -> io::Result<Command> {
        self.command_of(way, &[self.server.clone().into()])
    }

    /// Starts another server this way.
    pub(crate) fn command_of(&self, way: Way, server: &[OsString]) -> io::Result<Command> {
        let relay = || beside_us("tk-relay");
        let before: Vec<OsString> = match way {
            Way::Direct => Vec::new(),
            Way::Relay => vec![relay()?.into()],
            Way::TwoRelays => vec![relay()?.into(), "--socket".into(), relay()?.into()],
            Way::Solo => vec![
                self.kennel.clone().into(),
                "run".into(),
                "--share".into(),
                "never".into(),
                "--".into(),
            ],
            Way::Daemon => vec![
                self.kennel.clone().into(),
                "run".into(),
                "--share".into(),
                "always".into(),
                "--".into(),
            ],
        };
        let mut words = before.iter().chain(server);
        let program = words.next().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command
            .args(words)
            .env("KENNEL_RUNTIME_DIR", self.runtime_dir());
        Ok(command)
    }

    /// Starts this server for many, who may come and go.
    pub(crate) fn share(&self, server: &[OsString]) -> Command {
        let mut command = self.kennel(&["run", "--share", "always", "--linger", "10m", "--"]);
        command.args(server);
        command
    }

    /// For what else has to be somewhere.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    fn runtime_dir(&self) -> PathBuf {
        self.dir.join("run")
    }

    /// Ends everything of Kennel's that runs here, and waits until it has.
    pub(crate) fn stop_all(&self) -> io::Result<()> {
        let mut stop = self.kennel(&["stop", "--all"]);
        // It says whether there was anything to stop, which does not matter here.
        stop.stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .map(drop)
    }

    /// What `kennel ps` knows.
    pub(crate) fn listed(&self) -> io::Result<Value> {
        let output = self.kennel(&["ps", "--json"]).output()?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// The only daemon that runs here.
    pub(crate) fn daemon(&self) -> io::Result<u32> {
        let listed = self.listed()?;
        let mut pids = listed
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|entry| entry["daemon_pid"].as_u64());
        let pid = pids.next().and_then(|pid| u32::try_from(pid).ok());
        pid.ok_or_else(|| io::Error::other("no daemon runs"))
    }

    /// The log of the only daemon that runs here.
    pub(crate) fn daemon_log(&self) -> io::Result<PathBuf> {
        fn find(dir: &Path) -> Option<PathBuf> {
            for entry in std::fs::read_dir(dir).ok()?.flatten() {
                let path = entry.path();
                match entry.file_type().ok()? {
                    kind if kind.is_dir() => match find(&path) {
                        Some(found) => return Some(found),
                        None => continue,
                    },
                    kind if kind.is_file() && entry.file_name() == "log" => return Some(path),
                    _ => {}
                }
            }
            None
        }
        find(&self.runtime_dir()).ok_or_else(|| io::Error::other("the daemon has no log"))
    }

    fn kennel(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.kennel);
        command
            .args(arguments)
            .env("KENNEL_RUNTIME_DIR", self.runtime_dir())
            .stdin(Stdio::null());
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.stop_all();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
